"""Pipelines over the API: as they reported, their last hour, who may start one, and a stop that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.admin import history
from penstock.broker.access.checks import SYSTEM, Principal
from penstock.broker.pipelines import LAG_UNKNOWN, Report, Stage
from tests.admin.api.asking import LOGIN_REQUIRED, Asking, asking, new_key, on_loop
from tests.admin.launching import await_end, declared, process_of, silent_server, write_file


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    monkeypatch.setattr(history, "FIRST_AFTER_S", None)  # samples are taken by the tests
    with asking(listeners=LOGIN_REQUIRED) as found:
        yield found


def report(ask: Asking, rows: int, lag: int, *, by: Principal = SYSTEM) -> bool:
    """Report a run of the pipeline shop; returns whether it should stop."""
    stages = [
        Stage("bronze", "running", rows, 1, lag, 1, 20, 2, 3, 4),
        Stage("silver", "running", 0, 0, LAG_UNKNOWN, 0, 0),
    ]
    pipelines = ask.broker.server.broker.pipelines
    return bool(on_loop(ask.broker, pipelines.report(by, "shop", Report("run", 1, "running", "", stages))))


def sample(ask: Asking) -> None:
    admin = ask.broker.server.admin
    assert admin is not None
    on_loop(ask.broker, admin._history.sample())


def test_pipelines_are_listed_as_they_reported(ask: Asking) -> None:
    report(ask, 5, LAG_UNKNOWN)
    [pipeline] = ask.with_key(new_key(ask.broker, "reader", "consumer")).ok("GET", "/pipelines")
    assert (pipeline["name"], pipeline["state"], pipeline["alive"]) == ("shop", "running", True)
    assert pipeline["stages"][0]["lag"] is None
    assert [pipeline["stages"][0][name] for name in ("dropped", "late", "future")] == [2, 3, 4]


def test_stages_are_sampled(ask: Asking) -> None:
    for rows, lag in ((0, LAG_UNKNOWN), (50, 7), (90, 0)):
        report(ask, rows, lag)
        sample(ask)
    reader = ask.with_key(new_key(ask.broker, "reader", "consumer"))
    bronze, silver = reader.ok("GET", "/pipelines/shop/history")
    assert (bronze["name"], bronze["rows"], bronze["lag"]) == ("bronze", [0, 50, 90], [None, 7, 0])
    assert (bronze["rejects"], bronze["batch_ms"], len(bronze["at_ms"])) == ([1, 1, 1], [20, 20, 20], 3)
    assert silver["lag"] == [None, None, None]
    assert reader.ok("GET", "/pipelines/none/history") == []


def test_stages_that_are_sampled_are_bounded(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "STAGES_SAMPLED_MAX", 1)
    report(ask, 1, 1)
    sample(ask)
    reader = ask.with_key(new_key(ask.broker, "reader", "consumer"))
    assert [each["name"] for each in reader.ok("GET", "/pipelines/shop/history")] == ["bronze"]


def test_a_pipeline_is_asked_to_stop_by_its_owner_or_an_administrator(ask: Asking) -> None:
    owner = Principal("key:owner", frozenset({"consumer"}))
    keys = {
        name: ask.with_key(new_key(ask.broker, name, role))
        for name, role in (("owner", "consumer"), ("other", "consumer"), ("root", "admin"))
    }
    assert not report(ask, 1, 1, by=owner)
    assert keys["other"]("POST", "/pipelines/shop/stop").code == "access_denied"
    assert not report(ask, 2, 1, by=owner)
    for name in ("owner", "root"):
        assert keys[name].ok("POST", "/pipelines/shop/stop") == {"asked": True}
        assert report(ask, 3, 1, by=owner)
    assert keys["root"].ok("GET", "/pipelines")[0]["stopping"] is True
    assert keys["root"]("POST", "/pipelines/none/stop").code == "entry_not_found"
    assert "pipeline.stop" in [each["type"] for each in keys["root"].ok("GET", "/audit")["events"]]


@pytest.mark.timeout(180)
def test_administrators_alone_start_a_pipeline_and_the_audit_trail_says_who(tmp_path: Path) -> None:
    with (
        silent_server() as silent,
        asking(listeners=LOGIN_REQUIRED, pipelines=declared(tmp_path, "shop")) as ask,
    ):
        file = write_file(tmp_path, "shop", silent.address)
        reader, root = (
            ask.with_key(new_key(ask.broker, name, role)) for name, role in (("reader", "consumer"), ("root", "admin"))
        )
        [seen] = reader.ok("GET", "/pipelines")
        assert (seen["state"], seen["startable"]) == ("declared", False)
        assert ask("POST", "/pipelines/shop/start").code == "authentication_required"
        for path in ("/pipelines/shop/start", "/pipelines/shop/log"):
            assert reader("GET" if path.endswith("log") else "POST", path).code == "access_denied"

        login = ask("POST", "/session", {"key": new_key(ask.broker, "browser", "admin")})
        session = ask.with_headers(cookie=login.headers["set-cookie"].partition(";")[0])
        assert session("POST", "/pipelines/shop/start").code == "access_denied", "without the session's CSRF token"
        assert session("POST", "/pipelines/shop/start", origin="http://elsewhere").code == "cross_origin"
        assert root.ok("GET", "/pipelines")[0]["state"] == "declared"

        answer = session("POST", "/pipelines/shop/start", x_csrf_token=login.json["csrf_token"])
        assert (answer.status, answer.json["state"], answer.json["startable"]) == (202, "starting", True)
        assert answer.json["process"]["pid"] == process_of(ask.broker, "shop").pid
        [started] = [each for each in root.ok("GET", "/audit")["events"] if each["type"] == "pipeline.start"]
        assert (started["user"], started["resource"], started["details"]) == (
            "key:browser",
            "shop",
            {"file": str(file)},
        )

        assert reader("POST", "/pipelines/shop/stop").code == "access_denied", "it has not reported, so it has no owner"
        assert root.ok("POST", "/pipelines/shop/stop") == {"asked": True}
        await_end(ask.broker, "shop")
        assert root.ok("GET", "/pipelines")[0]["state"] == "stopped"
        assert root("POST", "/pipelines/shop/stop").code == "entry_not_found"
        assert sum(each["type"] == "pipeline.stop" for each in root.ok("GET", "/audit")["events"]) == 1

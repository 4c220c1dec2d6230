"""The suggested alerts, evaluated by the broker: each rule is Prometheus's, and holds for as long before it is told."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from penstock.admin import alerts, history
from penstock.admin.alerts import RULES, Alerts, Window
from penstock.admin.history import Kind, LagSeries
from penstock.background import Background
from penstock.broker.access.checks import SYSTEM
from penstock.broker.pipelines import Report, Stage
from tests.admin.api.asking import LOGIN_REQUIRED, Asking, asking, new_key, on_loop

SUGGESTED = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"
MINUTE_MS = 60_000


@pytest.fixture
def ask(unsampled: Asking) -> Asking:
    return unsampled


def alerts_of(ask: Asking) -> Alerts:
    admin = ask.broker.server.admin
    assert admin is not None
    return admin._alerts


def evaluate(ask: Asking, *minutes: float) -> list[Any]:
    """Sample, and evaluate as if it were this many minutes after the epoch."""
    alerts_of(ask).history.on_sampled = lambda now_ms: None

    async def evaluating() -> None:
        await alerts_of(ask).history.sample()
        for each in minutes:
            alerts_of(ask).evaluate(int(each * MINUTE_MS))

    on_loop(ask.broker, evaluating())
    return list(ask.ok("GET", "/alerts"))


def test_the_rules_are_those_that_are_suggested_for_prometheus() -> None:
    suggested = {
        rule["alert"]: rule for group in yaml.safe_load(SUGGESTED.read_text())["groups"] for rule in group["rules"]
    }
    assert set(suggested) - {rule.name for rule in RULES} == {"PenstockDown"}
    for rule in RULES:
        wanted = suggested[rule.name]
        assert rule.severity == wanted["labels"]["severity"]
        assert rule.for_s == 60 * int(str(wanted.get("for", "0m")).removesuffix("m"))
        assert wanted["annotations"]["action"].startswith(rule.action.removesuffix("."))


def test_thresholds_and_windows_are_those_that_are_suggested_for_prometheus(ask: Asking) -> None:
    evaluated = alerts_of(ask)
    compared: dict[str, tuple[str, float, Window | None]] = {
        "PenstockCannotWrite": (">", 0, None),
        "PenstockDiskFull": ("<", alerts.DISK_FREE_BYTES_MIN, None),
        "PenstockDiskFillsUp": ("<", 0, None),
        "PenstockBackgroundTaskFails": (">", 0, None),
        "PenstockDeadLettersHeldUp": (">", 0, None),
        "PenstockCorruptBlocks": (">", 0, evaluated.corrupt_blocks),
        "PenstockConsumerLag": (">", alerts.LAG_S_MAX, None),
        "PenstockSubscriptionLag": (">", alerts.UNSETTLED_MAX, None),
        "PenstockSlowDisk": (">", alerts.SLOW_S, evaluated.flushes),
        "PenstockEventLoopLag": (">", alerts.SLOW_S, evaluated.loop_lags),
        "PenstockInternalErrors": (">", 0, evaluated.internal_errors),
        "PenstockPipelineDown": ("==", 0, None),
        "PenstockPipelineLateRows": (">", 0, None),
    }
    assert compared.keys() == {rule.name for rule in RULES}
    for group in yaml.safe_load(SUGGESTED.read_text())["groups"]:
        for rule in group["rules"]:
            if rule["alert"] not in compared:
                continue
            operator, threshold, window = compared[rule["alert"]]
            left, compares, right = rule["expr"].rpartition(f" {operator} ")
            assert (compares, float(right)) == (f" {operator} ", threshold), rule["alert"]
            if window is not None:
                [(number, unit)] = re.findall(r"\[(\d+)([mh])\]", left)
                assert int(number) * {"m": 60, "h": 3600}[unit] == window.window_s, rule["alert"]
            for quantile in re.findall(r"histogram_quantile\(([\d.]+)", left):
                assert float(quantile) == alerts.QUANTILE, rule["alert"]
            for hours in re.findall(r"predict_linear\(.*, (\d+) \* 3600\)", left):
                assert int(hours) * 3600 == alerts.DISK_S_MIN, rule["alert"]


@pytest.mark.parametrize(("kind", "series"), [("group", "seconds"), ("subscription", "records")])
def test_what_is_at_its_threshold_is_well(
    ask: Asking, monkeypatch: pytest.MonkeyPatch, kind: Kind, series: str
) -> None:
    threshold = {"group": alerts.LAG_S_MAX, "subscription": alerts.UNSETTLED_MAX}[kind]
    lag = LagSeries()
    key = history.SeriesKey(kind, "orders", "billing")
    monkeypatch.setattr(alerts_of(ask).history, "lags", lambda wanted: iter([(key, lag)] if wanted == kind else []))
    for above, on in ((0, []), (1, [True])):
        lag.add(int(threshold) + above, threshold + above)
        assert getattr(lag, series)[-1] == threshold + above
        alerts_of(ask).evaluate(0)
        alerts_of(ask).evaluate(20 * MINUTE_MS)
        assert [each.rule.about_groups for each in alerts_of(ask).on] == on


def test_a_broker_that_is_well_has_no_alerts(ask: Asking) -> None:
    assert evaluate(ask, 1, 20, 60) == []


def test_an_alert_is_on_once_it_has_held_for_its_time(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "LAG_S_MAX", -1.0)  # so that every group is late
    ask.ok("POST", "/topics", {"name": "orders"})
    ask.ok("POST", "/groups/billing/reset", {"topic": "orders", "to": "earliest"})
    assert evaluate(ask, 0, 9.9) == []
    [alert] = evaluate(ask, 10)
    assert (alert["name"], alert["severity"]) == ("PenstockConsumerLag", "warning")
    assert "Group billing is 0 min behind in orders" in alert["summary"]
    assert alert["since_ms"] == 0
    assert alert["action"].startswith("Look at the group's consumers")
    monkeypatch.setattr(alerts, "LAG_S_MAX", 300.0)
    assert evaluate(ask, 11) == []
    monkeypatch.setattr(alerts, "LAG_S_MAX", -1.0)
    assert evaluate(ask, 12, 21.9) == []  # it begins again
    assert len(evaluate(ask, 22)) == 1


def test_each_rule_finds_what_it_is_for(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "UNSETTLED_MAX", 2)
    server = ask.broker.server
    sources = alerts_of(ask).sources
    ask.ok("POST", "/topics", {"name": "orders"})
    on_loop(ask.broker, server.broker.subscriptions.subscribe(SYSTEM, "orders", 1, name="mailer"))
    ask.ok("POST", "/topics/orders/records", {"records": [{"value": "x"}] * 3})
    evaluate(ask, 0)
    stages = [Stage("bronze", "failed", 0, 0, 0, 0, 0)]
    on_loop(ask.broker, server.broker.pipelines.report(SYSTEM, "shop", Report("r", 1, "failed", "", stages)))
    sources.engine.stats.corrupt_blocks += 2
    for _ in range(100_000):
        sources.loop_lag.observe(0.4)
        sources.engine.stats.flush_seconds.observe(0.2)
    monkeypatch.setattr(alerts_of(ask).history, "disk_full_in_s", lambda: 7200.0)
    monkeypatch.setattr(Background, "failing", property(lambda self: {"sweep": "no space"}))
    found = {each["name"]: each["summary"] for each in evaluate(ask, 1, 31)}
    assert found == {
        "PenstockCorruptBlocks": "Blocks with wrong checksums were read in the last hour: 2",
        "PenstockDiskFillsUp": "At the rate of the last hour, the disk will be full in 2 hours",
        "PenstockBackgroundTaskFails": "Background task sweep fails: no space",
        "PenstockSubscriptionLag": "Subscription mailer has 3 unsettled records in orders",
        "PenstockSlowDisk": "One flush in a hundred takes over 100 ms",
        "PenstockEventLoopLag": "The event loop is over 100 ms late",
        "PenstockPipelineDown": "Pipeline shop reports no run",
    }


def test_rows_that_gold_leaves_out_are_told_for_an_hour_over_runs(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SAMPLES_MAX", 3)
    pipelines = ask.broker.server.broker.pipelines

    def report(run: int, late: int, future: int, dropped: int = 0) -> None:
        stages = [
            Stage("gold/g", "running", 1, 0, 0, 1, 1, dropped, late, future),
            Stage("s", "running", 1, 0, 0, 1, 1),
        ]
        on_loop(ask.broker, pipelines.report(SYSTEM, "shop", Report(f"r{run}", run, "running", "", stages)))

    report(1, 2, 0, dropped=9)
    assert evaluate(ask, 0) == [], "from before"
    report(1, 4, 1, dropped=10)
    [alert] = evaluate(ask, 1)
    assert (alert["name"], alert["summary"]) == (
        "PenstockPipelineLateRows",
        "Pipeline shop left 3 late or future rows out of gold/g in the last hour",
    )
    report(2, 2, 0)
    assert "left 5 late" in evaluate(ask, 2)[0]["summary"], "a run counts from 0"
    assert evaluate(ask, 3) != []
    assert evaluate(ask, 4) == [], "none in the hour"


def test_a_full_disk_is_told_although_it_fills_no_further(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes = alerts.DISK_FREE_BYTES_MIN
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    assert evaluate(ask, 0, 1) == []
    free_bytes -= 1
    [alert] = evaluate(ask, 2)
    assert (alert["name"], alert["severity"], alert["summary"]) == (
        "PenstockDiskFull",
        "critical",
        "The disk has 63 MiB left",
    )


def test_an_alert_stays_on_when_the_clock_is_set_back(ask: Asking) -> None:
    evaluate(ask, 60)
    alerts_of(ask).sources.engine.stats.corrupt_blocks += 1
    assert [each["since_ms"] for each in evaluate(ask, 61)] == [61 * MINUTE_MS]
    assert [each["since_ms"] for each in evaluate(ask, 1)] == [MINUTE_MS]


def test_only_who_may_list_groups_hears_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "FIRST_AFTER_S", None)
    monkeypatch.setattr(alerts, "LAG_S_MAX", -1.0)
    with asking(listeners=LOGIN_REQUIRED) as nobody:
        admin = nobody.with_key(new_key(nobody.broker, "root", "admin"))
        reader = nobody.with_key(new_key(nobody.broker, "reader", "consumer"))
        admin.ok("POST", "/topics", {"name": "orders"})
        admin.ok("POST", "/groups/billing/reset", {"topic": "orders", "to": "earliest"})
        assert [each["name"] for each in evaluate(admin, 0, 11)] == ["PenstockConsumerLag"]
        assert reader.ok("GET", "/alerts") == []
        assert nobody("GET", "/alerts").status == 401


def test_every_sample_is_evaluated(ask: Asking) -> None:
    for blocks in (0, 1):
        alerts_of(ask).sources.engine.stats.corrupt_blocks += blocks
        on_loop(ask.broker, alerts_of(ask).history.sample())
    [alert] = ask.ok("GET", "/alerts")
    assert (alert["name"], alert["severity"]) == ("PenstockCorruptBlocks", "critical")


def test_a_window_tells_how_much_was_added_in_it() -> None:
    window = Window(20.0)
    assert window.grown() == []
    for count in (1, 5, 6, 9):
        window.add([count, 0])
    assert window.grown() == [4, 0]

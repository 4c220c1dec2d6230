"""The doctor's report and its exit code."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli import checks
from penstock.cli.checks import Finding
from penstock.cli.sample import Sample
from penstock.testing import RunningBroker
from tests.cli.conftest import Run

FINE = Finding("Python", "ok", "3.11")
SLOW = Finding("disk flush", "warn", "p50 9 ms", "use a faster disk")
TAKEN = Finding("port flymq", "fail", "127.0.0.1:9092: in use", "stop it")


@pytest.mark.parametrize(
    ("findings", "args", "code"),
    [([FINE], [], 0), ([FINE, SLOW], [], 0), ([FINE, SLOW], ["--strict"], 1), ([SLOW, TAKEN, FINE], [], 1)],
)
def test_a_failure_ends_with_1_and_a_warning_only_when_asked(
    run: Run, monkeypatch: pytest.MonkeyPatch, findings: list[Finding], args: list[str], code: int
) -> None:
    monkeypatch.setattr(checks, "all_checks", lambda data_dir, binds, **_: iter(findings))
    assert run("doctor", *args).code == code


def test_each_line_has_a_verdict_and_each_problem_its_advice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "all_checks", lambda data_dir, binds, **_: iter([FINE, SLOW, TAKEN]))
    assert run("doctor").text == (
        "ok    Python          3.11\n"
        "warn  disk flush      p50 9 ms\n"
        "                      -> use a faster disk\n"
        "fail  port flymq      127.0.0.1:9092: in use\n"
        "                      -> stop it\n"
    )


def test_programs_get_json(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "all_checks", lambda data_dir, binds, **_: iter([FINE]))
    assert json.loads(run("doctor", "--json").out) == [
        {"check": "Python", "status": "ok", "found": "3.11", "advice": ""}
    ]


def test_it_looks_at_the_ports_and_the_directory_of_the_configuration(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def remember(data_dir: Path, binds: list[tuple[str, str]], *, admin_tls: bool) -> Iterator[Finding]:
        asked.append((str(data_dir), binds))
        yield FINE

    monkeypatch.setattr(checks, "all_checks", remember)
    monkeypatch.setenv("PENSTOCK_LISTENERS__FLYMQ__BIND", "127.0.0.1:7")
    run("doctor", "--data-dir", "there")
    others = [("blipmq", "127.0.0.1:5555"), ("rustlog", "127.0.0.1:9292")]
    quic = [("fujin", "127.0.0.1:4848/udp"), ("felix", "127.0.0.1:5000/udp")]
    assert asked == [("there", [("flymq", "127.0.0.1:7"), *others, *quic, ("admin", "127.0.0.1:9600")])]


def test_a_running_broker_is_recognized(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningBroker(admin=True) as broker:
        for name, address in broker.addresses.items():
            key = "ADMIN__BIND" if name == "admin" else f"LISTENERS__{name.upper()}__BIND"
            monkeypatch.setenv(f"PENSTOCK_{key}", address)
        found = {each["check"]: each for each in json.loads(run("doctor", "--json").out)}
        assert found["broker"]["found"].endswith("is running and ready")
        for name, address in broker.addresses.items():
            port = found[f"port {name}"]
            udp = "/udp" if name in ("fujin", "felix") else ""
            assert (port["status"], port["found"]) == ("ok", f"{address}{udp} is in use by this broker"), name


def test_another_program_on_a_port_is_not_the_broker(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningBroker(admin=True) as broker, socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("PENSTOCK_ADMIN__BIND", broker.addresses["admin"])
        monkeypatch.setenv("PENSTOCK_LISTENERS__FLYMQ__BIND", f"127.0.0.1:{other.getsockname()[1]}")
        found = {each["check"]: each for each in json.loads(run("doctor", "--json").out)}
    assert found["port flymq"]["status"] == "fail"
    assert found["port admin"]["status"] == "ok"


def test_a_broker_that_is_not_ready_is_a_failure() -> None:
    ill = Sample(0.0, False, "ready", ["background task sweep fails"], "1")
    assert checks.broker(ill).status == "fail"
    assert "background task sweep fails" in checks.broker(ill).found


def test_declared_pipelines_are_part_of_the_report(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "all_checks", lambda data_dir, binds, **_: iter([FINE]))
    (tmp_path / "penstock.toml").write_text('[listeners.flymq]\n[[pipelines]]\nname = "shop"\nfile = "shop.toml"\n')
    result = run("doctor", "--config", "penstock.toml")
    assert result.code == 1
    assert f"fail  pipeline shop   {tmp_path / 'shop.toml'} does not exist" in result.text

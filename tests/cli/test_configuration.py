"""`config check`: the effective configuration, with the origin of each value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.testing import RunningBroker
from penstock.units import format_setting
from tests.cli.conftest import Run


def test_every_value_is_printed_with_its_origin(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("penstock.toml").write_text('[listeners.flymq]\n[log]\nsegment_bytes = "64 MiB"\n')
    monkeypatch.setenv("PENSTOCK_LOG__RETENTION_MS", "7d")
    result = run("config", "check", "--config", "penstock.toml", "--data-dir", "d", "--set", "limits.topics_max=5")
    assert result.code == 0
    rows = {line.split("  ")[0]: line.split(None, 1)[1] for line in result.text.splitlines()}
    assert rows["setting"].split() == ["value", "origin"]
    assert rows["data_dir"].split(None, 1) == ["d", "flag --data-dir"]
    assert rows["log.segment_bytes"].split("  ")[:1] == ["64 MiB"]
    assert rows["log.segment_bytes"].endswith("file penstock.toml")
    assert rows["log.retention_ms"].split(None, 1) == ["7d", "environment PENSTOCK_LOG__RETENTION_MS"]
    assert rows["limits.topics_max"].split(None, 1) == ["5", "flag --set"]
    assert rows["log.retention_bytes"].split() == ["forever", "default"]


def test_only_what_was_changed_can_be_printed(run: Run) -> None:
    result = run("config", "check", "--changed", "--set", "durability=none")
    assert result.text == "setting     value  origin\ndurability  none   flag --set\n"


def test_a_stop_that_may_outlast_its_service_manager_is_noted(run: Run) -> None:
    assert run("config", "check", "--changed", "--set", "limits.stop_grace_s=25s").err == ""
    result = run("config", "check", "--changed", "--set", "limits.stop_grace_s=26s")
    assert result.code == 0
    assert result.err.startswith("limits.stop_grace_s is 26 s, and pipelines may take 35 s more; the files in deploy/")
    assert "killed 60 s after" in result.err


def test_topics_that_the_first_start_would_create_are_listed(run: Run, tmp_path: Path) -> None:
    Path("penstock.toml").write_text('[listeners.flymq]\n[[topics]]\nname = "orders"\n')
    result = run("config", "check", "--changed", "-c", "penstock.toml", "--data-dir", str(tmp_path / "data"))
    assert result.code == 0
    assert result.text.splitlines()[-1] == "topic orders would be created"


def test_topics_that_the_next_start_would_create_or_alter_are_listed(run: Run, tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", topics=[{"name": "orders", "partitions": 2}]):
        pass
    Path("penstock.toml").write_text(
        "[listeners.flymq]\n"
        '[[topics]]\nname = "orders"\npartitions = 4\nretention_ms = "7d"\n'
        '[[topics]]\nname = "clicks"\n'
    )
    data_dir = str(tmp_path / "data")
    result = run("config", "check", "--changed", "-c", "penstock.toml", "--data-dir", data_dir)
    assert result.code == 0
    assert result.text.splitlines()[-3:] == [
        "topic orders would be altered: partitions 2 -> 4",
        "topic orders would be altered: retention_ms forever -> 7d",
        "topic clicks would be created",
    ]
    as_json = json.loads(run("config", "check", "--json", "-c", "penstock.toml", "--data-dir", data_dir).out)
    assert as_json["topic_changes"] == [
        {
            "topic": "orders",
            "action": "alter",
            "settings": {
                "partitions": {"before": "2", "after": "4"},
                "retention_ms": {"before": "forever", "after": "604800000"},
            },
        },
        {"topic": "clicks", "action": "create", "settings": {}},
    ]
    Path("penstock.toml").write_text('[listeners.flymq]\n[[topics]]\nname = "orders"\npartitions = 1\n')
    result = run("config", "check", "-c", "penstock.toml", "--data-dir", data_dir)
    assert result.code == 1
    assert "topics[0].partitions is 1, and topic orders has 2: partitions cannot be removed" in result.err


def test_programs_get_json(run: Run) -> None:
    result = run("config", "check", "--changed", "--json", "--data-dir", "d", "--set", "log.retention_ms=7d")
    assert json.loads(result.out) == {
        "data_dir": {"value": "d", "origin": "flag --data-dir"},
        "log.retention_ms": {"value": 604_800_000, "origin": "flag --set"},
    }


def test_the_file_may_be_named_by_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("other.toml").write_text('durability = "none"\n[listeners.flymq]\n')
    monkeypatch.setenv("PENSTOCK_CONFIG", "other.toml")
    assert "file other.toml" in run("config", "check", "--changed").text


def test_every_problem_has_its_line_and_the_command_ends_with_1(run: Run) -> None:
    Path("penstock.toml").write_text('durabilty = "fsync"\n[listeners.flymq]\nbind = 5\n')
    result = run("config", "check", "-c", "penstock.toml")
    assert (result.code, result.out) == (1, b"")
    assert sorted(result.err.splitlines()) == [
        "error: penstock.toml: durabilty is not a setting; did you mean durability?",
        (
            "error: penstock.toml: listeners.flymq.bind = 5 is not a text: write it between quotes, as in "
            'listeners.flymq.bind = "..."'
        ),
    ]


def test_topic_names_are_checked_as_the_broker_does(run: Run) -> None:
    Path("penstock.toml").write_text('[listeners.flymq]\n[[topics]]\nname = "ok"\n[[topics]]\nname = "../etc"\n')
    result = run("config", "check", "-c", "penstock.toml")
    assert result.code == 1
    assert result.err.startswith("error: penstock.toml: topics[1].name: topic name '../etc' has a level '..'")


def test_what_the_tls_files_hold_is_checked_too(run: Run) -> None:
    for name in ("cert.pem", "key.pem"):
        Path(name).write_text("not a certificate")
    Path("penstock.toml").write_text('[listeners.flymq]\ntls = {cert = "cert.pem", key = "key.pem"}\n')
    result = run("config", "check", "-c", "penstock.toml")
    assert result.code == 1
    (line,) = result.err.splitlines()
    assert line.startswith("error: listeners.flymq: ")
    assert "cert.pem" in line


def test_a_flag_without_a_value_is_refused(run: Run) -> None:
    result = run("config", "check", "--set", "durability")
    assert (result.code, result.err) == (
        2,
        (
            "error: Invalid value for --set: durability has no value: write it as KEY=VALUE, as in --set log.retention_ms=7d "
            "(see: penstock config check --help)\n"
        ),
    )


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("log.segment_bytes", 128 << 20, "128 MiB"),
        ("limits.record_bytes_max", 1000, "1000 B"),
        ("limits.under_pressure_bytes_min", 64 << 10, "64 KiB"),
        ("log.tail_bytes_per_partition", 4 << 20, "4 MiB"),
        ("log.segment_ms", 604_800_000, "7d"),
        ("listeners.flymq.idle_s_max", 300.0, "5m"),
        ("listeners.flymq.header_s_max", 0.25, "250ms"),
        ("log.retention_ms", None, "forever"),
        ("listeners.flymq.tls", None, "-"),
        ("admin.insecure", False, "false"),
        ("limits.topics_max", 5, "5"),
        ("topics", [], "none"),
        ("data_dir", Path("d"), "d"),
    ],
)
def test_values_are_shown_as_a_person_writes_them(key: str, value: object, shown: str) -> None:
    assert format_setting(key, value) == shown


def test_a_table_of_secrets_is_one_setting_whose_values_are_not_shown(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[listeners.felix]\n[listeners.felix.tokens]\nt1 = "a secret"\n')
    shown = run("config", "check", "--config", str(file), "--changed").text
    assert "t1 = **********" in shown
    assert "a secret" not in shown
    as_json = json.loads(run("--json", "config", "check", "--config", str(file)).out)
    assert as_json["listeners.felix.tokens"] == {"value": {"t1": "**********"}, "origin": f"file {file}"}

"""`penstock backup` of a running broker."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def test_backups_are_made_and_listed(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    client = broker.connect()
    client.send_many("orders", [b"one", b"two"])
    first = json.loads(run("backup", "create", "kept", "--json").out)
    assert first["copied_bytes"] == first["bytes"] > 0
    assert (tmp_path / "kept" / first["id"] / "topics").is_dir()
    broker.clock.advance(1)
    client.send("orders", b"three")
    result = run("backup", "create", "kept")
    assert result.code == 0, result.err
    listed = json.loads(run("backup", "list", "kept", "--json").out)
    assert listed[0]["id"] == first["id"]
    assert result.text.startswith(f"backup {listed[1]['id']} of {listed[1]['topics']} topics: copied ")
    table = run("backup", "list", "kept").text.splitlines()
    assert table[0].split() == ["backup", "time", "topics", "records", "size"]
    assert [line.split()[0] for line in table[1:]] == [each["id"] for each in listed]


def test_a_second_backup_copies_less_and_a_full_one_everything(run: Run, broker: RunningBroker) -> None:
    broker.connect().send("orders", b"x" * 100_000)
    copied = []
    for args in ([], [], ["--full"]):
        broker.clock.advance(1)
        copied.append(json.loads(run("backup", "create", "kept", "--json", *args).out)["copied_bytes"])
    assert copied[1] < 50_000 < copied[0] <= copied[2]


def test_errors_say_what_to_do(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one").touch()
    result = run("backup", "create", "photos")
    assert (result.code, result.out) == (1, b"")
    assert "not a directory of backups: choose another" in result.err
    result = run("backup", "list", "photos")
    assert result.code == 1
    assert "photos is not a directory of backups" in result.err

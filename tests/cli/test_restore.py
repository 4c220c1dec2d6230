"""`penstock restore`: to a new directory, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.testing import RunningBroker
from tests.cli.conftest import Run


@pytest.fixture
def backups(run: Run, broker: RunningBroker) -> list[str]:
    """The ids of two backups in `kept`, of one record and of two."""
    client = broker.connect()
    ids: list[str] = []
    for value in (b"one", b"two"):
        broker.clock.advance(1)
        client.send("orders", value)
        client.commit("orders", "billing", 0, len(ids) + 1)
        ids.append(json.loads(run("backup", "create", "kept", "--json").out)["id"])
    return ids


def test_the_latest_backup_or_the_one_that_is_named_is_restored(run: Run, backups: list[str], tmp_path: Path) -> None:
    result = run("restore", "kept", "latest")
    assert result.code == 0, result.err
    assert result.text.splitlines()[-1] == f"restored backup {backups[1]} to latest"
    assert json.loads(run("restore", "kept", "named", "--at", backups[0], "--json").out)["backup"] == backups[0]
    for directory, values in (("latest", [b"one", b"two"]), ("named", [b"one"])):
        with RunningBroker(tmp_path / directory) as broker:
            client = broker.connect()
            assert [record.value for record in client.records("orders")] == values
            assert client.committed("orders", "billing", 0) == len(values)
        assert run("verify", directory).code == 0


def test_a_damaged_backup_ends_with_1_and_restores_nothing_unless_told_to(
    run: Run, backups: list[str], tmp_path: Path
) -> None:
    [path] = (tmp_path / "kept" / backups[1]).glob("topics/orders.*/0/*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    result = run("restore", "kept", "there")
    assert result.code == 1
    assert path.relative_to(tmp_path / "kept" / backups[1]).as_posix() in result.text
    assert "--accept-damage" in result.err
    assert not (tmp_path / "there").exists()
    report = json.loads(run("restore", "kept", "there", "--accept-damage", "--json").out)
    assert report["restored"] is True
    assert report["damage"] > 0
    with RunningBroker(tmp_path / "there") as broker:
        assert [record.value for record in broker.connect().records("orders")] == [b"one"]


def test_what_is_in_the_way_or_missing_is_said(run: Run, backups: list[str], tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    for args, text in (
        (["kept", "used"], "not empty"),
        (["kept", "there", "--at", "then"], "penstock backup list kept"),
        (["used", "there"], "not a directory of backups"),
        ([f"kept/{backups[0]}", "there"], f"use the directory that it is in, kept, with --at {backups[0]}"),
        (["kept", "used/file"], "file is not a directory"),
        (["kept", "kept/there"], "is in a directory of backups"),
    ):
        result = run("restore", *args)
        assert (result.code, result.out) == (1, b"")
        assert text in result.err


def test_topics_that_are_left_out_are_named(run: Run, backups: list[str], tmp_path: Path) -> None:
    for path in (tmp_path / "kept" / backups[1]).glob("topics/orders.*/topic.json*"):
        path.write_bytes(b"garbage")
    assert run("restore", "kept", "there").code == 1
    result = run("restore", "kept", "there", "--accept-damage")
    assert result.code == 1
    assert result.text.splitlines()[-1] == f"restored backup {backups[1]} to there, without topic orders"
    assert json.loads(run("restore", "kept", "again", "--accept-damage", "--json").out)["left_out"] == ["orders"]
    with RunningBroker(tmp_path / "there") as broker:
        assert "orders" not in broker.connect().topics()


def test_a_broker_starts_although_a_block_of_its_own_tables_was_damaged(
    run: Run, backups: list[str], tmp_path: Path
) -> None:
    [path] = (tmp_path / "kept" / backups[1]).glob("topics/__groups.*/0/*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert json.loads(run("restore", "kept", "there", "--accept-damage", "--json").out)["restored"]
    with RunningBroker(tmp_path / "there") as broker:
        assert [record.value for record in broker.connect().records("orders")] == [b"one", b"two"]

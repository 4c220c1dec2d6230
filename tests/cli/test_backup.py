"""`penstock backup` of a running broker."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.protocols.flymq.operations.access import AuditQuery
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
    (tmp_path / "file").touch()
    assert "file is not a directory" in run("backup", "create", "file").err
    inside = str(broker.data_dir / "backups")
    assert "in the data directory of the broker" in run("backup", "create", inside).err


def test_no_snapshot_is_left_by_a_command_that_has_ended(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    broker.connect().send("orders", b"one")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one").touch()
    for args, code in (
        (["backup", "create", "kept"], 0),
        (["backup", "create", "kept"], 1),
        (["backup", "create", str(broker.data_dir / "backups")], 1),
        (["verify"], 0),
    ):
        assert run(*args).code == code, "the second backup of the same moment fails"
        assert list((broker.data_dir / "snapshots").iterdir()) == []
    [event] = broker.connect().access.audit(AuditQuery(types=["snapshot.create"], limit=1)).events
    run("backup", "create", "photos")
    assert broker.connect().access.audit(AuditQuery(types=["snapshot.create"], limit=1)).events == [event]


def test_a_backup_whose_manifest_is_damaged_is_listed_as_that(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    broker.connect().send("orders", b"one")
    ids = []
    for _ in range(3):
        broker.clock.advance(1)
        ids.append(json.loads(run("backup", "create", "kept", "--json").out)["id"])
    (tmp_path / "kept" / ids[0] / "manifest.json").write_bytes(b"garbage")
    (tmp_path / "kept" / ids[1] / "manifest.json").unlink()
    result = run("backup", "list", "kept")
    assert result.code == 1
    assert [line.split()[0] for line in result.text.splitlines()[1:]] == ids
    assert [line.split()[1] == "damaged" for line in result.text.splitlines()[1:]] == [True, True, False]
    assert f"kept/{ids[0]}/manifest.json is damaged" in result.err
    assert f"kept/{ids[1]}/manifest.json is missing" in result.err
    listed = json.loads(run("backup", "list", "kept", "--json").out)
    assert [each["id"] for each in listed] == ids
    assert [each["damage"] is None for each in listed] == [False, False, True]
    for backup_id in ids[:2]:
        checked = run("verify", f"kept/{backup_id}", "--json")
        assert checked.code == 1
        assert "manifest.json" in {finding["path"] for finding in json.loads(checked.out)["findings"]}
    assert run("verify", f"kept/{ids[2]}").code == 0

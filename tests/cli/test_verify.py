"""`penstock verify`: its report, its exit codes, and both ways to a log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.log.block import BEGINS, ENDS, encode_block
from penstock.log.salts import PartitionSalts, decode_metadata
from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes().rstrip(b"\0"))
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def segment(data_dir: Path, topic: str) -> Path:
    [path] = data_dir.glob(f"topics/{topic}.*/0/*.log")
    return path


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The data directory of a broker that was stopped."""
    with RunningBroker(tmp_path / "stopped") as broker:
        client = broker.connect()
        client.send_many("orders", [b"one", b"two"])
        client.commit("orders", "billing", 0, 1)
    return tmp_path / "stopped"


def test_a_sound_directory_ends_with_0_and_a_table_of_topics(run: Run, stopped: Path) -> None:
    result = run("verify", str(stopped))
    assert result.code == 0, result.err
    [row] = [line.split() for line in result.text.splitlines() if line.startswith("orders ")]
    assert row[:5] == ["orders", "1", "1", "1", "2"]
    assert row[-1] == "0"
    assert result.text.splitlines()[-1] == f"{stopped}: no damage found"


def test_damage_ends_with_1_and_names_file_and_position(run: Run, stopped: Path) -> None:
    path = segment(stopped, "orders")
    flip_last_byte(path)
    result = run("verify", str(stopped))
    assert result.code == 1
    assert f"damage  {path.relative_to(stopped)} at byte 0" in result.text
    assert "fails its checksum" in result.text
    assert result.text.splitlines()[-1] == f"{stopped}: damage in 1 place"


def test_programs_get_json(run: Run, stopped: Path) -> None:
    flip_last_byte(segment(stopped, "orders"))
    result = run("verify", str(stopped), "--json")
    assert result.code == 1
    report = json.loads(result.out)
    [finding] = report["findings"]
    assert (finding["severity"], finding["kind"], finding["position"]) == ("damage", "segment", 0)
    assert (report["damage"], report["notes"]) == (1, 0)
    assert {topic["topic"] for topic in report["topics"]} >= {"orders", "__groups"}


def test_a_table_that_a_broker_could_not_load_is_damage(run: Run, stopped: Path) -> None:
    [directory] = stopped.glob("topics/__users.*")
    salt = decode_metadata((directory / "topic.json").read_bytes())["salt"]
    path = segment(stopped, "__users")
    seal = PartitionSalts(bytes.fromhex(salt), 0).of(path.stem)
    path.write_bytes(encode_block(0, 0, [b"no user"], [b"no name"], seal=seal, commit=BEGINS | ENDS))
    path.with_suffix(".index").unlink(missing_ok=True)
    result = run("verify", str(stopped))
    assert result.code == 1
    assert "table __users: the record at offset 0 cannot be read" in result.text


def test_what_cannot_be_checked_ends_with_2(run: Run, tmp_path: Path, broker: RunningBroker) -> None:
    for path, text in (
        (tmp_path, "not a Penstock data directory (no topics/ in it)"),
        (tmp_path / "gone", "is not a directory"),
        (broker.data_dir, "a broker is running"),
    ):
        result = run("verify", str(path))
        assert (result.code, result.out) == (2, b"")
        assert text in result.err
    result = run("verify", "--server", "flymq://127.0.0.1:1")
    assert result.code == 2
    assert run("verify", str(tmp_path), "--server", broker.url).code == 2


def test_a_running_broker_is_checked_up_to_what_is_committed(run: Run, broker: RunningBroker) -> None:
    client = broker.connect()
    client.send_many("orders", [b"one", b"two"])
    result = run("verify", "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["directory"] == str(broker.data_dir.resolve())
    assert {topic["topic"]: topic["records"] for topic in report["topics"]}["orders"] == 2


def test_damage_under_a_running_broker_is_found(run: Run, broker: RunningBroker) -> None:
    broker.connect().send_many("orders", [b"one", b"two"])
    path = segment(broker.data_dir, "orders")
    flip_last_byte(path)
    result = run("verify")
    assert result.code == 1
    assert f"damage  {path.relative_to(broker.data_dir)} at byte 0" in result.text


def test_the_check_of_a_running_broker_takes_the_right_to_administer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningBroker(listeners={"flymq": {"auth": "required"}}) as broker:
        monkeypatch.setenv("PENSTOCK_SERVER", broker.url)
        result = run("verify")
    assert result.code == 2
    assert "authentication" in result.err

"""`penstock migrate` from one data directory to another; tests/kafka moves a log to Kafka and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.cli.migrate import _engine
from penstock.config import Config
from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def configure(directory: Path, name: str, data_dir: Path) -> str:
    """Write a configuration file; returns its name."""
    (directory / name).write_text(f"data_dir = {json.dumps(str(data_dir))}\n[listeners.flymq]\n")
    return name


def test_a_log_is_moved_while_its_broker_runs_and_finished_when_it_is_stopped(
    run: Run, broker: RunningBroker, tmp_path: Path
) -> None:
    source, target = configure(tmp_path, "old.toml", broker.data_dir), configure(tmp_path, "new.toml", tmp_path / "new")
    client = broker.connect()
    client.send_many("orders", [b"one", b"two"])
    copied = run("migrate", source, target)
    assert copied.code == 0, copied.err
    assert "source and target are equal" in copied.text
    client.send("orders", b"three")
    refused = run("migrate", source, target, "--finish")
    assert refused.code == 1
    assert "stop it, then finish" in refused.err
    broker.stop()
    finished = json.loads(run("migrate", source, target, "--finish", "--json").out)
    assert finished["finished"]
    [orders] = [each for each in finished["partitions"] if each["topic"] == "orders"]
    assert (orders["start"], orders["end"], orders["records"]) == (0, 3, 3)
    assert len(finished["passes"]) == 1
    with RunningBroker(tmp_path / "new") as moved:
        assert [record.value for record in moved.connect().records("orders")] == [b"one", b"two", b"three"]
    again = run("migrate", source, target, "--finish")
    assert again.code == 1
    assert "was finished before" in again.err


def test_the_broker_that_is_asked_must_be_that_of_the_source(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    target = configure(tmp_path, "new.toml", tmp_path / "new")
    with RunningBroker(tmp_path / "other"):
        refused = run("migrate", configure(tmp_path, "other.toml", tmp_path / "other"), target)
    assert refused.code == 1
    assert "name that of SOURCE with --server" in refused.err


def test_a_log_is_not_moved_onto_itself(run: Run, tmp_path: Path) -> None:
    config = configure(tmp_path, "old.toml", tmp_path / "data")
    refused = run("migrate", config, config)
    assert refused.code == 1
    assert "are the same log" in refused.err


def test_topics_in_kafka_are_not_moved_onto_themselves_by_another_address(run: Run, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / f"{name}.toml").write_text(
            f'data_dir = "{tmp_path / name}"\nengine = "kafka"\nkafka.bootstrap = ["{name}.invalid:9092"]\n[listeners.flymq]\n'
        )
    refused = run("migrate", "old.toml", "new.toml")
    assert refused.code == 1
    assert "are the same log, or may be" in refused.err


def test_a_log_in_kafka_is_opened_with_the_memory_that_is_configured(tmp_path: Path) -> None:
    settings = {"tail_bytes_per_partition": 1 << 20, "tail_bytes_max": 2 << 20}
    config = Config(data_dir=tmp_path, engine="kafka", kafka={"bootstrap": ["127.0.0.1:1"]}, log=settings)
    engine: Any = _engine(config, "observe")
    assert (engine._tail_bytes, engine._tails._bytes_max) == (1 << 20, 2 << 20)

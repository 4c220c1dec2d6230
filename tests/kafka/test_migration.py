"""A log that is moved to Kafka and back is the same log: to our readers, to those of others, and to the clients of its broker."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.kafka import Kafka
from penstock.log.api import Engine, TopicConfig
from penstock.log.embedded import EmbeddedEngine
from penstock.log.kafka.batches import EXPIRES, GAP
from penstock.log.kafka.engine import KafkaEngine
from penstock.log.kafka.names import kafka_name
from penstock.log.migration.migration import Migration, PartitionResult
from penstock.log.migration.source import EngineSource
from penstock.log.migration.state import StateFile
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.record_headers import decode_headers, encode_headers
from penstock.testing.process import BrokerProcess, BrokerProcessFailed
from tests.kafka import foreign
from tests.kafka.cluster import Cluster
from tests.kafka.killed_migration import TOMBSTONE_MS, Move
from tests.log.records import Record, append, read_all
from tests.log.storage import make_partition

EXPIRY_MS = 4_000_000_000_000


KILLS = 3
STEPS = range(5, 13)
"""At which it is killed: it has at least this many whenever it begins."""


async def open_embedded(directory: Path) -> EmbeddedEngine:
    engine = EmbeddedEngine(directory)
    await engine.start()
    return engine


async def open_kafka(storage: Cluster, role: str = "import") -> KafkaEngine:
    engine = KafkaEngine(storage.settings, role=role)  # type: ignore[arg-type]
    await engine.start()
    return engine


async def every_kind(directory: Path) -> EmbeddedEngine:
    """A log with topics of every kind: sizes, keys, headers, expiry, tombstones, times, names, trimmed, compacted, empty."""
    engine = await open_embedded(directory)
    plain = await make_partition(engine, "plain", TopicConfig(partitions=3))
    for number in range(5):
        await append(plain, [b"%04d" % row for row in range(100 * number, 100 * number + 100)])
    await append(engine.partition("plain", 2), [b"", None, b"x" * 300_000])
    rich = await make_partition(engine, "site/hall 7", TopicConfig(compression="zstd"))
    cells = [encode_headers([("h", b"1"), ("h", None)]), None, encode_headers([(EXPIRES, b"mine")]), None] * 50
    await append(
        rich,
        [b"v%d" % row for row in range(200)],
        [b"k", None, b"", b"q"] * 50,
        cells,
        [0, EXPIRY_MS, EXPIRY_MS, 0] * 50,
    )
    trimmed = await make_partition(engine, "trimmed")
    await append(trimmed, [b"%d" % row for row in range(3_000)])
    await engine.truncate_topic("trimmed", {0: 2_500})
    gone = await make_partition(engine, "all-gone")
    await append(gone, [b"%d" % row for row in range(7)])
    await engine.truncate_topic("all-gone", {0: 7})
    await make_partition(engine, "empty", TopicConfig(partitions=2))
    table = await make_partition(engine, "__table", TopicConfig(cleanup="compact", segment_bytes=1 << 12))
    for turn in range(20):
        keys = [b"%d" % (row % (3 + turn)) if row % 30 else b"%d-%d" % (turn, row) for row in range(100)]
        await append(table, [b"%d-%d" % (turn, row) for row in range(100)], keys)
    await append(table, [None], [b"1"])
    await engine.maintain()
    await engine.close()  # which forgets what is in memory of the table
    engine = await open_embedded(directory)
    kept = await read_all(engine.partition("__table", 0))
    assert kept[0].offset == 0
    assert len(kept) < kept[-1].offset, "compaction has left gaps"
    return engine


async def contents(engine: Engine) -> dict[tuple[str, int], list[Record]]:
    """Every record of every partition."""
    found = {}
    for name, info in engine.topics().items():
        for index in range(info.config.partitions):
            found[name, index] = await read_all(engine.partition(name, index))
    return found


def by_partition(results: list[PartitionResult]) -> Mapping[tuple[str, int], PartitionResult]:
    return {(each.topic, each.partition): each for each in results}


async def migrate(source: Engine, target: Engine, directory: Path, *, finish: bool = True) -> list[PartitionResult]:
    name = "kafka" if isinstance(target, KafkaEngine) else "embedded"
    migration = Migration(target, StateFile(directory, name), tombstone_ms=TOMBSTONE_MS)
    result = await (migration.finish if finish else migration.copy)(EngineSource(source))
    return result.partitions


async def test_a_log_of_every_kind_is_the_same_in_kafka_and_back(
    kafka: Kafka, storage: Cluster, prefix: str, tmp_path: Path
) -> None:
    source = await every_kind(tmp_path / "source")
    before, infos = await contents(source), dict(source.topics())
    target = await open_kafka(storage)
    there = await migrate(source, target, tmp_path)
    await target.close()
    assert await contents(source) == before, "nothing is taken from the source"
    await source.close()

    for (topic, index), records in before.items():
        name = kafka_name(topic, prefix)
        theirs = [each for each in foreign.read_all(kafka, name) if each.partition == index]
        theirs = [each for each in theirs if not any(header == GAP for header, _ in each.headers)]
        assert [(each.offset, each.timestamp_ms, each.key, each.value) for each in theirs] == [
            (each.offset, each.timestamp_ms, each.key, each.value) for each in records
        ], topic
        for ours, other in zip(records, theirs, strict=True):
            headers = decode_headers(ours.headers or b"")
            if ours.expiry_ms or any(header == EXPIRES for header, _ in headers):
                headers.append((EXPIRES, b"%d" % ours.expiry_ms))
            assert other.headers == headers

    served = await storage.open()
    assert await contents(served) == before
    assert dict(served.topics()) == infos
    assert served.partition("trimmed", 0).start_offset == 2_500
    assert served.partition("all-gone", 0).committed_end == 7
    appended = await append(served.partition("plain", 0), [b"next"])
    assert appended.base_offset == before["plain", 0][-1].offset + 1
    assert appended.timestamp_ms > before["plain", 0][-1].timestamp_ms, "Kafka sets the time again"

    back = await open_embedded(tmp_path / "back")
    again = await migrate(served, back, tmp_path / "back")
    await back.close()
    assert by_partition(again).keys() == by_partition(there).keys()
    for place, result in by_partition(there).items():
        if place != ("plain", 0):  # one more by now
            assert by_partition(again)[place] == result
    reopened = await open_embedded(tmp_path / "back")
    after = await contents(reopened)
    assert after.pop(("plain", 0))[:-1] == before.pop(("plain", 0))
    assert after == before
    assert dict(reopened.topics()) == infos
    await append(reopened.partition("all-gone", 0), [b"next"])
    assert [each.offset for each in await read_all(reopened.partition("all-gone", 0))] == [7]
    await reopened.close()


def run_until_killed(move: Move, step: int, when: str) -> int:
    """Run a migration in a process of its own; returns its exit code."""
    described = msgspec.json.encode(move).decode()
    command = [sys.executable, "-m", "tests.kafka.killed_migration", str(step), when, described]
    return subprocess.run(command, check=False, timeout=120).returncode


@pytest.mark.timeout(240)
@pytest.mark.parametrize("to_kafka", [True, False], ids=["to-kafka", "to-embedded"])
async def test_a_migration_that_is_killed_at_any_step_continues(
    storage: Cluster, prefix: str, tmp_path: Path, to_kafka: bool
) -> None:
    source = await every_kind(tmp_path / "source")
    before = await contents(source)
    if not to_kafka:
        target = await open_kafka(storage)
        await migrate(source, target, tmp_path / "source")
        await target.close()
    await source.close()
    (tmp_path / "target").mkdir()
    here, there = str(tmp_path / "source"), str(tmp_path / "target")
    source_dir, target_dir = (here, None) if to_kafka else (None, there)
    move = Move(storage.settings.bootstrap[0], prefix, source_dir, target_dir, there)
    rng = random.Random(7)
    for _ in range(KILLS):
        code = run_until_killed(move, rng.choice(STEPS), rng.choice(["before", "after"]))
        assert code == -signal.SIGKILL, "there are fewer steps than that"
    assert run_until_killed(move, 1 << 30, "before") == 0
    served: Engine = await storage.open() if to_kafka else await open_embedded(tmp_path / "target")
    assert await contents(served) == before
    if not to_kafka:
        await served.close()


def start_migrate(source: Path, target: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`penstock migrate --json` in a process of its own."""
    command = [sys.executable, "-m", "penstock", "migrate", str(source), str(target), "--json", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def run_migrate(source: Path, target: Path, *options: str) -> dict[str, Any]:
    ended = start_migrate(source, target, *options)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


class Writer(threading.Thread):
    """Sends numbered records until it is told to stop; keeps the offset of each that was acknowledged."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        super().__init__(daemon=True)
        self._client = broker.connect()
        self._topic = topic
        self._stopping = threading.Event()
        self.sent: dict[int, bytes] = {}

    def run(self) -> None:
        while not self._stopping.is_set():
            value = b"live %d" % len(self.sent)
            self.sent[self._client.send(self._topic, value).offset] = value

    def stop(self) -> dict[int, bytes]:
        self._stopping.set()
        self.join()
        self._client.close()
        return self.sent


def check_continues(client: FlyMQClient, sent: Mapping[int, bytes], turn: int) -> None:
    """Everything a client had is there, where it was, and it continues from there."""
    found = {record.offset: record.value for record in client.records("orders")}
    assert {offset: found[offset] for offset in sent} == sent
    assert client.committed("orders", "billing", 0) == 5 + turn
    with client.consumer(["orders"], group="billing") as consumer:
        assert consumer.poll(1)[0].offset == 5 + turn
    client.commit("orders", "billing", 0, 6 + turn)
    assert client.schemas.get("order", 1).definition == '{"type": "object"}'
    assert client.access.user("ada").roles == ["readers"]
    assert [key.name for key in client.keys.list()] == ["robot"]
    assert client.access.acl("secret").users == ["ada"]
    assert client.send("orders", b'{"turn": %d}' % turn).offset > max(sent)


@pytest.mark.timeout(240)
def test_a_broker_is_moved_to_kafka_and_back_while_clients_use_it(kafka: Kafka, prefix: str, tmp_path: Path) -> None:
    with ExitStack() as brokers:
        first = brokers.enter_context(BrokerProcess(tmp_path / "embedded"))
        client = brokers.enter_context(closing(first.connect()))
        client.create_topic("orders")
        client.send_many("orders", [b"%d" % number for number in range(2_000)])
        client.commit("orders", "billing", 0, 5)
        client.schemas.register("order", '{"type": "object"}')
        client.access.set_role("readers", ["read"])
        client.access.create_user("ada", "correct horse", ["readers"])
        client.access.set_acl("secret", users=["ada"])
        client.keys.create("robot", ["readers"])
        settings = f'engine = "kafka"\n[kafka]\nbootstrap = ["{kafka.bootstrap}"]\ntopic_prefix = "{prefix}"\n'
        second = BrokerProcess(tmp_path / "kafka", config=settings, bind=first.address, start_s_max=60)
        third = BrokerProcess(tmp_path / "back", bind=first.address)
        for turn, (old, new) in enumerate([(first, second), (second, third)]):
            configured = new.write_config()
            writer = Writer(old, "orders")
            writer.start()
            live = run_migrate(old.config_file, configured, "--server", old.url)
            sent = writer.stop()
            assert sent
            assert not live["finished"]
            assert old.terminate() == 0
            if not turn:
                with pytest.raises(BrokerProcessFailed, match="has not finished"):
                    new.start()
            finished = run_migrate(old.config_file, configured, "--finish")
            assert finished["finished"]
            brokers.callback(new.close)
            new.start()
            check_continues(client, sent, turn)


def test_a_log_that_a_node_serves_is_left_alone(kafka: Kafka, prefix: str, tmp_path: Path) -> None:
    """Importing claims the topics, so a node that has them writes nothing more: it is asked first whether they are free."""
    settings = f'engine = "kafka"\n[kafka]\nbootstrap = ["{kafka.bootstrap}"]\ntopic_prefix = "{prefix}"\n'
    with BrokerProcess(tmp_path / "embedded") as source:
        assert source.terminate() == 0
    with BrokerProcess(tmp_path / "kafka", config=settings, start_s_max=60) as node, closing(node.connect()) as client:
        client.create_topic("orders")
        other = BrokerProcess(tmp_path / "other", config=settings)
        refused = start_migrate(source.config_file, other.write_config())
        assert refused.returncode != 0
        assert "another broker keeps its log there: use another kafka.topic_prefix" in refused.stderr
        finished = StateFile(node.data_dir, "kafka")
        finished.state.finished = True
        finished.save()
        refused = start_migrate(source.config_file, node.config_file)
        assert refused.returncode != 0
        assert "this migration was finished before" in refused.stderr
        client.create_topic("more")  # which a node that was fenced refuses
        client.send("orders", b"x")

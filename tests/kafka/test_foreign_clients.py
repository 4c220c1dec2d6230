"""Topics are Kafka's own: a client that we did not write reads what we wrote, and we read what it wrote."""

from __future__ import annotations

import pytest

from bench.kafka import Kafka
from penstock.errors import RecordTooLarge
from penstock.log.api import Batch, BatchFor, TopicConfig
from penstock.log.appending import start_append
from penstock.log.kafka.batches import EXPIRES
from penstock.record_headers import encode_headers
from tests.kafka import foreign
from tests.kafka.cluster import Cluster, until
from tests.log.records import append, read_all, read_values, start_atomic_append
from tests.log.storage import make_partition


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_a_foreign_consumer_reads_records_as_they_were_given(
    kafka: Kafka, storage: Cluster, prefix: str, compression: str
) -> None:
    engine = await storage.open()
    config = TopicConfig(compression=compression)  # type: ignore[arg-type]
    partition = await make_partition(engine, config=config)
    many = [b"%05d" % number for number in range(9000)]  # of one size, in several widths of offsets
    await append(partition, many)
    cells = [encode_headers([("trace", b"\0\xff"), ("none", None)]), None, None]
    await append(partition, [b"v" * 300, None, b""], [b"k", b"", None], cells, [0, 5, 0])
    found = foreign.read_all(kafka, f"{prefix}orders")
    assert [record.value for record in found[:9000]] == many
    assert [record.offset for record in found] == list(range(9003))
    assert [record[2:5] for record in found[9000:]] == [
        (b"k", b"v" * 300, [("trace", b"\0\xff"), ("none", None)]),
        (b"", None, [(EXPIRES, b"5")]),
        (None, b"", []),
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_records_of_a_foreign_producer_are_read_in_every_compression(
    kafka: Kafka, storage: Cluster, prefix: str, codec: str
) -> None:
    engine = await storage.open()
    partition = await make_partition(engine)
    writer = foreign.producer(kafka, compression_type=codec, linger_ms="50")
    values = [b"compressible %d " % number * 20 for number in range(50)]
    for number, value in enumerate(values):
        key = None if number % 2 else b"k%d" % number
        writer.produce(f"{prefix}orders", value, key, headers=[("n", b"%d" % number), ("n", None)])
    writer.produce(f"{prefix}orders", None, b"gone", headers=[(EXPIRES, b"77")])
    writer.flush(30)
    await partition.follow()
    records = await read_all(partition)
    assert [record.value for record in records] == [*values, None]
    assert [record.key for record in records[:3]] == [b"k0", None, b"k2"]
    assert records[3].headers == encode_headers([("n", b"3"), ("n", None)])
    assert records[-1][2:] == (b"gone", None, None, 77)
    assert {record.expiry_ms for record in records[:-1]} == {0}


async def test_a_header_of_a_user_is_not_taken_for_an_expiry(storage: Cluster) -> None:
    engine = await storage.open()
    partition = await make_partition(engine)
    cell = encode_headers([("a", b"1"), (EXPIRES, b"5")])
    await append(partition, [b"x", b"y"], None, [cell, cell], [0, 9])
    engine = await storage.reopen()
    records = await read_all(engine.partition("orders", 0))
    assert [(record.headers, record.expiry_ms) for record in records] == [(cell, 0), (cell, 9)]


async def test_watchers_hear_of_foreign_records_and_the_tail_has_them(
    kafka: Kafka, storage: Cluster, prefix: str
) -> None:
    engine = await storage.open()
    partition = await make_partition(engine)
    await append(partition, [b"ours"])
    ends: list[int] = []
    partition.watch(lambda: ends.append(partition.committed_end))
    writer = foreign.producer(kafka)
    for number in range(3):
        writer.produce(f"{prefix}orders", b"theirs %d" % number)
        writer.flush(30)
    await until(lambda: partition.committed_end == 4)
    assert ends[-1:] == [4]
    assert partition.read_cached(1) is not None, "what was followed is in memory"
    assert await read_values(partition) == [b"ours", b"theirs 0", b"theirs 1", b"theirs 2"]


async def test_appends_between_foreign_ones_are_told_where_they_are(
    kafka: Kafka, storage: Cluster, prefix: str
) -> None:
    engine = await storage.open()
    partition = await make_partition(engine)
    writer = foreign.producer(kafka)
    for number in range(5):
        writer.produce(f"{prefix}orders", b"theirs")
        writer.flush(30)
        appended = await append(partition, [b"ours"])
        assert appended.base_offset == 2 * number + 1
        assert partition.committed_end == 2 * number + 2
    assert await read_values(partition) == [b"theirs", b"ours"] * 5


async def test_an_append_behind_an_open_foreign_transaction_is_answered_when_it_can_be_read(
    kafka: Kafka, storage: Cluster, prefix: str
) -> None:
    engine = await storage.open()
    partition = await make_partition(engine)
    await append(partition, [b"before"])
    writer = foreign.producer(kafka, transactional_id=f"{prefix}foreign")
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(f"{prefix}orders", b"aborted")
    writer.flush(30)
    pending = start_append(partition, Batch([b"ours"]))
    await until(lambda: partition.size_bytes > len(b"before") + len(b"ou"))  # Kafka has stored it
    assert not pending.done()
    assert partition.committed_end == 1
    writer.abort_transaction(30)
    appended = await pending
    assert appended.base_offset == 2
    assert partition.committed_end == 3
    assert await read_values(partition) == [b"before", b"ours"]
    await storage.close()
    partition = (await storage.open()).partition("orders", 0)
    await partition.follow()
    assert partition.committed_end == 3, "the end is behind the last record, and not behind the end of a transaction"
    assert await read_values(partition) == [b"before", b"ours"]


async def test_a_foreign_consumer_sees_atomic_appends_whole_and_no_aborted_ones(
    kafka: Kafka, storage: Cluster, prefix: str
) -> None:
    engine = await storage.open()
    await engine.create_topic("orders", TopicConfig(partitions=3))
    parts = [engine.partition("orders", index) for index in range(3)]
    for number in range(3):
        await start_atomic_append(engine, [BatchFor(part, Batch([b"%d" % number])) for part in parts])
    writer = foreign.producer(kafka, transactional_id=f"{prefix}foreign")
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(f"{prefix}orders", b"aborted", partition=0)
    writer.flush(30)
    writer.abort_transaction(30)
    found = foreign.read_all(kafka, f"{prefix}orders")
    assert [(record.partition, record.value) for record in found] == [
        (index, b"%d" % number) for index in range(3) for number in range(3)
    ]
    everything = foreign.read_all(kafka, f"{prefix}orders", committed=False)
    assert b"aborted" in [record.value for record in everything]
    await parts[0].follow()
    assert await read_values(parts[0]) == [b"0", b"1", b"2"]


async def test_topics_of_others_are_adopted_and_those_they_delete_vanish(
    kafka: Kafka, storage: Cluster, prefix: str
) -> None:
    admin = foreign.admin(kafka)
    foreign.create_topic(admin, f"{prefix}theirs", 2, {"retention.ms": "86400000", "cleanup.policy": "compact"})
    engine = await storage.open()
    info = engine.topics()["theirs"]
    assert (info.config.partitions, info.config.retention_ms, info.config.cleanup) == (2, 86_400_000, "compact")
    told: list[str] = []
    engine.watch_topics(told.append)
    foreign.create_topic(admin, f"{prefix}later", 1, {})
    await engine.look_around()
    assert "later" in engine.topics()
    await append(engine.partition("later", 0), [b"x"])
    foreign.delete_topic(admin, f"{prefix}later")
    while "later" in engine.topics():
        await engine.look_around()
    assert told == ["later", "later"]
    engine = await storage.reopen()
    assert engine.topics()["theirs"] == info
    assert "later" not in engine.topics()


async def test_an_append_that_is_too_large_for_a_topic_of_others_is_refused_alone(
    kafka: Kafka, storage: Cluster, prefix: str
) -> None:
    foreign.create_topic(foreign.admin(kafka), f"{prefix}small", 1, {"max.message.bytes": "2000"})
    engine = await storage.open()
    partition = engine.partition("small", 0)
    pending = [start_append(partition, Batch([bytes(size)])) for size in (100, 3000, 200)]
    assert (await pending[0]).base_offset == 0
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        await pending[1]
    assert (await pending[2]).base_offset == 1
    assert [len(value or b"") for value in await read_values(partition)] == [100, 200]

"""A topic is altered, gets partitions and is truncated while clients of several protocols write and read it over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from penstock.clients.records import Record
from penstock.clock import SystemClock
from penstock.errors import OffsetOutOfRange
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import RunningBroker

KEYS = [b"key-%d" % number for number in range(8)]
BATCHES = 60
"""Of one record for each key, before the last change and after it, at least."""
WAIT_S_MAX = 60.0


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    settings: dict[str, Any] = {"topics": [{"name": "orders", "partitions": 2}]}
    with RunningBroker(clock=SystemClock(), **settings) as broker:
        yield broker


class Writer:
    """Writes numbered records of each key, a batch at a time, until it is stopped. Every record is acknowledged."""

    def __init__(self, client: FlyMQClient) -> None:
        self._client = client
        self._stopping = threading.Event()
        self._batch_done = threading.Condition()
        self.batches = 0

    def run(self) -> int:
        while not self._stopping.is_set():
            self._client.send_many("orders", [(key, b"%d" % self.batches) for key in KEYS])
            with self._batch_done:
                self.batches += 1
                self._batch_done.notify_all()
        return self.batches

    def wait_for_batches(self, more: int) -> None:
        with self._batch_done:
            wanted = self.batches + more
            assert self._batch_done.wait_for(lambda: self.batches >= wanted, WAIT_S_MAX)

    def stop(self) -> None:
        self._stopping.set()


class Follower:
    """Reads the topic as a group, until it was told how many records there are and has that many."""

    def __init__(self, client: FlyMQClient) -> None:
        self._client = client
        self.total: int | None = None
        self.found: list[Record] = []

    def run(self) -> list[Record]:
        for record in self._client.records("orders", follow=True, group="billing"):
            self.found.append(record)
            if len(self.found) == self.total:
                break
        return self.found


@pytest.mark.timeout(180)
def test_no_record_is_lost_and_each_key_keeps_its_order_between_changes(broker: RunningBroker) -> None:
    admin, reading = broker.connect(), broker.connect()
    writer, follower = Writer(broker.connect()), Follower(reading)
    with ThreadPoolExecutor(2) as threads:
        writing, following = threads.submit(writer.run), threads.submit(follower.run)
        try:
            writer.wait_for_batches(BATCHES)
            admin.alter_topic("orders", retention_ms="7d", durability="none", segment_bytes="64 KiB")
            writer.wait_for_batches(BATCHES)
            asked_at = writer.batches
            admin.add_partitions("orders", 5)
            added_at = writer.batches
            writer.wait_for_batches(BATCHES)
            admin.alter_topic("orders", durability="fsync", compression="zstd")
            writer.wait_for_batches(BATCHES)
        except BaseException:
            reading.close()  # which ends the follower
            raise
        finally:
            writer.stop()
        batches = writing.result(WAIT_S_MAX)
        follower.total = batches * len(KEYS) + 1
        admin.send("orders", b"end", partition=4)
        found = following.result(WAIT_S_MAX)
    described = admin.describe_topic("orders")
    assert (described.config["retention_ms"], described.config["compression"]) == ("604800000", "zstd")
    assert len(described.partitions) == 5
    assert sum(each.next_offset for each in described.partitions) == len(found)
    assert {record.partition for record in found} == set(range(5)), "new partitions take records, too"
    for key in KEYS:
        places = [(record.partition, int(record.value or b"")) for record in found if record.key == key]
        assert sorted(number for _, number in places) == list(range(batches)), f"{key!r}: lost or repeated"
        for partition in range(5):
            numbers = [number for at, number in places if at == partition]
            assert numbers == sorted(numbers), f"{key!r} is out of order in partition {partition}"
        # What was on its way while the partitions were added went by the old number of partitions or by the new one.
        assert len({at for at, number in places if number < asked_at}) == 1
        assert len({at for at, number in places if number > added_at}) == 1


@pytest.mark.parametrize("protocol", ["flymq", "rustlog", "rustlog+json"])
def test_a_reader_that_follows_a_topic_takes_up_partitions_and_continues_after_a_truncation(
    broker: RunningBroker, protocol: str
) -> None:
    admin = broker.connect()
    admin.send_many("orders", [b"old-0", b"old-1"], partition=0)
    admin.truncate_topic("orders", 1, partition=0)
    url = broker.url if protocol == "flymq" else broker.rustlog_url.replace("rustlog:", f"{protocol}:")
    with penstock.connect(url) as client:
        records = client.records("orders", follow=True)
        assert next(records).value == b"old-1"
        admin.add_partitions("orders", 3)
        admin.send("orders", b"new", partition=2)
        record = next(records)
        assert (record.partition, record.offset, record.value) == (2, 0, b"new")


@pytest.mark.parametrize("protocol", ["flymq", "rustlog"])
def test_a_reader_that_follows_a_topic_is_told_that_another_has_taken_its_place(
    broker: RunningBroker, protocol: str
) -> None:
    admin = broker.connect()
    admin.send_many("orders", [b"old-0", b"old-1", b"old-2"], partition=0)
    with penstock.connect(broker.url if protocol == "flymq" else broker.rustlog_url) as client:
        records = client.records("orders", follow=True)
        assert [next(records).value for _ in range(3)] == [b"old-0", b"old-1", b"old-2"]
        admin.delete_topic("orders")
        admin.create_topic("orders", 2)
        admin.send("orders", b"new", partition=0)
        with pytest.raises(
            OffsetOutOfRange, match="orders-0 was read up to offset 3, and ends at 1: the topic was deleted"
        ):
            next(records)
        assert [record.value for record in client.records("orders")] == [b"new"]


@pytest.mark.parametrize("protocol", ["blipmq", "fujin"])
def test_a_subscriber_gets_the_records_of_partitions_that_are_added(broker: RunningBroker, protocol: str) -> None:
    admin = broker.connect()
    with penstock.connect(getattr(broker, f"{protocol}_url")) as client:
        records = client.records("orders", follow=True)
        reading = threading.Event()
        values: list[bytes] = []

        def read() -> None:
            for record in records:
                values.append(record.value)
                reading.set()
                if {b"0", b"1", b"2"} <= set(values):
                    break

        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(read)
            while not reading.wait(0.1):
                admin.send("orders", b"first")  # until the subscription has begun
            admin.add_partitions("orders", 3)
            for partition in range(3):
                admin.send("orders", b"%d" % partition, partition=partition)
            done.result(WAIT_S_MAX)

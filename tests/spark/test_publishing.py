"""How far a stream has read, as the offsets of a group: published without anybody waiting for it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

import penstock.spark.publishing
from penstock.errors import GroupNotFound
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.offsets import Positions
from penstock.testing import RunningBroker
from tests.spark.by_hand import Source, Stream

PUBLISHED_LOOKS_MAX = 20_000


@pytest.fixture
def client(running: RunningBroker) -> FlyMQClient:
    return running.connect()


@pytest.fixture
def source(running: RunningBroker) -> Source:
    return Source(running.address, subscribe="orders")


def until_published(client: FlyMQClient, group: str, offsets: dict[int, int]) -> None:
    """It is not waited for."""
    found: dict[int, int] = {}
    for _ in range(PUBLISHED_LOOKS_MAX):
        with contextlib.suppress(GroupNotFound):
            [described] = client.describe_group(group, "orders")
            found = dict(described.offsets)
        if found == offsets:
            return
    raise AssertionError(f"{group} has {found}, and should have {offsets}")


def is_done(stream: Stream, end: dict[str, Any]) -> None:
    """A batch that ends there is done: Spark asks for the one after it."""
    stream.reader.latestOffset(end, stream.reader.getDefaultReadLimit())


def test_what_was_read_is_published_as_offsets_of_a_group(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders", 2)
    client.send("orders", b"a", partition=0)
    client.send_many("orders", [b"b", b"c"], 1)
    stream = source.stream(startingOffsets="earliest", group="billing")
    stream.batch()
    with pytest.raises(GroupNotFound):
        client.describe_group("billing")
    is_done(stream, stream.offsets[0])
    until_published(client, "billing", {0: 1, 1: 2})
    client.send("orders", b"d", partition=0)
    assert client.lag("orders", "billing", 0).lag == 1


def test_each_query_has_a_group_of_its_own_and_keeps_it(client: FlyMQClient, source: Source) -> None:
    client.send_many("orders", [b"a", b"b"])
    one, other = (source.stream(startingOffsets="earliest", groupIdPrefix="team") for _ in range(2))
    for stream in (one, other):
        stream.batch()
        is_done(stream, stream.offsets[0])
    groups = [f"team-orders-{stream.offsets[0]['__query__']}" for stream in (one, other)]
    assert groups[0] != groups[1]
    for group in groups:
        until_published(client, group, {0: 2})
    client.send("orders", b"c")
    restarted = source.stream(groupIdPrefix="team")
    restarted.offsets = one.offsets
    restarted.batch()
    is_done(restarted, restarted.offsets[-1])
    until_published(client, groups[0], {0: 3})
    until_published(client, groups[1], {0: 2})


def test_a_checkpoint_of_an_earlier_release_keeps_its_group(client: FlyMQClient, source: Source) -> None:
    client.send("orders", b"a")
    stream = source.stream(startingOffsets="earliest")
    stream.batch()
    end = {name: value for name, value in stream.offsets[0].items() if name != "__query__"}
    is_done(stream, end)
    until_published(client, "spark-orders", {0: 1})


def test_a_query_that_reads_what_there_is_and_ends_has_published_its_last_batch(
    client: FlyMQClient, source: Source
) -> None:
    client.send_many("orders", [b"a", b"b"])
    stream = source.stream(startingOffsets="earliest", group="nightly")
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.values() == [b"a", b"b"]
    assert stream.batch() is None
    assert dict(client.describe_group("nightly", "orders")[0].offsets) == {0: 2}


def test_only_the_latest_of_what_waits_to_be_published_is(
    client: FlyMQClient, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.send_many("orders", [b"a"] * 5)
    stream = source.stream(startingOffsets="earliest", group="billing")
    stream.batch()
    begun, go_on = threading.Event(), threading.Event()
    sent: list[int] = []

    def slow(client: FlyMQClient, group: str, positions: Positions) -> None:
        begun.set()
        assert go_on.wait(30)
        sent.append(positions["orders"][0])
        publishing(client, group, positions)

    publishing = penstock.spark.publishing.publish
    monkeypatch.setattr("penstock.spark.publishing.publish", slow)
    for offset in (1, 2, 3, 4):
        is_done(stream, {**stream.offsets[0], "orders": {"0": offset}})
        assert begun.wait(30), "nobody waits for the broker"
    go_on.set()
    until_published(client, "billing", {0: 4})
    assert sent == [1, 4]
    is_done(stream, {**stream.offsets[0], "orders": {"0": 4}})
    is_done(stream, {**stream.offsets[0], "orders": {"0": 5}})
    until_published(client, "billing", {0: 5})
    assert sent == [1, 4, 5], "what is published already is not again"


def test_a_query_continues_where_offsets_cannot_be_published(
    running: RunningBroker, client: FlyMQClient, source: Source
) -> None:
    client.send("orders", b"a")
    stream = source.stream(startingOffsets="earliest", group="x" * 300)
    silent = source.stream(startingOffsets="earliest", group="")
    last = source.stream(startingOffsets="earliest", group="last")
    for each in (stream, silent, last):
        each.batch()
        is_done(each, each.offsets[0])
    until_published(client, "last", {0: 1})
    assert [each.group for each in client.groups()] == ["last"]
    stream.reader.stop()


def test_a_publication_that_fails_for_whatever_reason_does_not_end_those_after_it(
    client: FlyMQClient, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.send_many("orders", [b"a", b"b"])
    stream = source.stream(startingOffsets="earliest", group="billing")
    stream.batch()
    failed = threading.Event()

    def failing(client: FlyMQClient, group: str, positions: Positions) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a fault of the program")
        publishing(client, group, positions)

    publishing = penstock.spark.publishing.publish
    monkeypatch.setattr("penstock.spark.publishing.publish", failing)
    is_done(stream, {**stream.offsets[0], "orders": {"0": 1}})
    assert failed.wait(30)
    is_done(stream, {**stream.offsets[0], "orders": {"0": 2}})
    until_published(client, "billing", {0: 2})

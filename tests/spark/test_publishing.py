"""How far a stream has read, as the offsets of a group: published without anybody waiting for it."""

from __future__ import annotations

import contextlib
import threading

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


def test_what_was_read_is_published_as_offsets_of_a_group(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders", 2)
    client.send("orders", b"a", partition=0)
    client.send_many("orders", [b"b", b"c"], 1)
    stream = source.stream(startingOffsets="earliest", group="billing")
    stream.batch()
    with pytest.raises(GroupNotFound):
        client.describe_group("billing")
    stream.reader.commit(stream.offsets[0])
    until_published(client, "billing", {0: 1, 1: 2})
    client.send("orders", b"d", partition=0)
    assert client.lag("orders", "billing", 0).lag == 1
    unnamed = Stream(source.stream(startingOffsets="earliest").reader)
    unnamed.batch()
    unnamed.reader.commit(unnamed.offsets[0])
    until_published(client, "spark-orders", {0: 2, 1: 2})


def test_only_the_latest_of_what_waits_to_be_published_is(
    client: FlyMQClient, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.send("orders", b"a")
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
        stream.reader.commit({**stream.offsets[0], "orders": {"0": offset}})
        assert begun.wait(30), "nobody waits for the broker"
    go_on.set()
    until_published(client, "billing", {0: 4})
    assert sent == [1, 4]
    stream.reader.commit({**stream.offsets[0], "orders": {"0": 4}})
    stream.reader.commit({**stream.offsets[0], "orders": {"0": 5}})
    until_published(client, "billing", {0: 5})
    assert sent == [1, 4, 5], "what is published already is not again"


def test_a_query_goes_on_where_offsets_cannot_be_published(
    running: RunningBroker, client: FlyMQClient, source: Source
) -> None:
    client.send("orders", b"a")
    stream = source.stream(startingOffsets="earliest", group="x" * 300)
    silent = source.stream(startingOffsets="earliest", group="")
    last = source.stream(startingOffsets="earliest", group="last")
    for each in (stream, silent, last):
        each.batch()
        each.reader.commit(each.offsets[0])
    until_published(client, "last", {0: 1})
    assert [each.group for each in client.groups()] == ["last"]
    stream.reader.stop()


def test_a_publication_that_fails_for_whatever_reason_does_not_end_those_after_it(
    client: FlyMQClient, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.send("orders", b"a")
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
    stream.reader.commit({**stream.offsets[0], "orders": {"0": 1}})
    assert failed.wait(30)
    stream.reader.commit({**stream.offsets[0], "orders": {"0": 2}})
    until_published(client, "billing", {0: 2})

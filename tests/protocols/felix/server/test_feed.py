"""What becomes of subscriptions when partitions are added to their topic."""

from __future__ import annotations

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.log.api import TopicConfig
from penstock.protocols.felix.session import Felix
from penstock.protocols.felix.wire import CLOSE_GONE
from tests.broker.producing import produce
from tests.protocols.felix.conversation import Peer
from tests.protocols.felix.server.test_subscribing import ALL_FLAGS, published, received, subscribed


@pytest.mark.parametrize("client_flags", [None, 0x0007])
async def test_records_of_partitions_that_are_added_are_pushed(
    peer: Peer, broker: Broker, client_flags: int | None
) -> None:
    await broker.topics.create(ANONYMOUS, "wide", TopicConfig(partitions=2))
    talk = peer.open() if client_flags is None else await peer.log_in(client_flags=client_flags)
    events = await subscribed(talk, peer, "wide")
    await broker.topics.add_partitions(ANONYMOUS, "wide", 3)
    await produce(broker, "wide", [b"new"], partition=2)
    assert await received(events, 1) == [b"new"]
    await produce(broker, "wide", [b"old", b"old"], partition=0)
    await produce(broker, "wide", [b"new"], partition=2)
    assert sorted(await received(events, 3)) == [b"new", b"old", b"old"]


async def test_a_second_subscriber_takes_up_added_partitions_for_all(peer: Peer, felix: Felix, broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "wide", TopicConfig(partitions=2))
    first = await subscribed(peer.open(), peer, "wide")
    await broker.topics.add_partitions(ANONYMOUS, "wide", 3)
    await produce(broker, "wide", [b"one"], partition=2)
    other = Peer(felix)
    second = await subscribed(other.open(), other, "wide", start="earliest")
    assert await received(first, 1) == await received(second, 1) == [b"one"]


async def test_a_subscription_with_offsets_ends_when_there_is_more_than_one_partition(
    peer: Peer, broker: Broker
) -> None:
    events = await subscribed(await peer.log_in(client_flags=ALL_FLAGS), peer)
    await published(broker, b"one")
    assert await received(events, 1) == [b"one"]
    await broker.topics.add_partitions(ANONYMOUS, "demo", 2)
    await events.cut_off()
    assert events.stream.was_reset == CLOSE_GONE

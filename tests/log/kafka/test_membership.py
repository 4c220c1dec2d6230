"""A node among others, where Kafka does not answer as it should."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import msgspec
import pytest

from penstock.background import Background
from penstock.log.kafka.client import Joined, KafkaClient
from penstock.log.kafka.faults import Code, KafkaFault, Unanswered
from penstock.log.kafka.membership import Membership, _Said, _shared_out


class Group:
    """Kafka's side of a group with one other member, which assigns: `leader` names the one that leads."""

    def __init__(self) -> None:
        self.leader = "other"
        self.shards: list[int] = []
        """Those that we are given."""
        self.faults: list[Exception | None] = []
        """Of the requests to come, in their order; None for one that is answered."""
        self.requests: list[str] = []
        self._said = b""

    def _note(self, request: str) -> None:
        self.requests.append(request)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault

    async def join_group(self, group: str, member: str, protocol: str, said: bytes, *_: int) -> Joined:
        self._note("join" if member else "join anew")
        self._said = said
        return Joined("us", 1, {})

    async def sync_group(self, group: str, joined: Joined, assignments: Mapping[str, bytes]) -> bytes:
        self._note("sync")
        us = msgspec.json.decode(self._said)
        members = {"us": us, "other": us | {"id": "other"}}
        told = {name: said | {"leads": name == self.leader, "shards": []} for name, said in members.items()}
        told["us"]["shards"] = self.shards
        return msgspec.json.encode(told)

    async def heartbeat(self, group: str, joined: Joined) -> None:
        self._note("heartbeat")

    async def leave_group(self, group: str, member: str) -> None:
        self._note("leave")


async def membership(group: Group, beats: Iterable[Exception | None] = ()) -> Membership:
    """A node that has joined and sent as many heartbeats, whose requests end as given."""
    node = Membership(cast(KafkaClient, group), "", "us", 0, lambda: None, Background())
    await node.join()
    assert node._loop is not None
    await node._loop.cancel()  # so that a test says when
    group.faults = list(beats)
    while group.faults:
        await node._beat()
    return node


async def test_a_node_that_was_not_told_what_was_shared_out_asks_again() -> None:
    """Kafka takes its heartbeats as if it had been: if it was to lead, nobody would."""
    group = Group()
    node = await membership(group)
    group.leader = "us"
    group.faults = [KafkaFault(Code.REBALANCE_IN_PROGRESS), None, Unanswered("cut off")]
    while not node.leads:
        await node._beat()
    assert group.requests == ["join anew", "sync", "heartbeat", "join", "sync", "join", "sync"]


@pytest.mark.parametrize("code", [Code.REBALANCE_IN_PROGRESS, Code.ILLEGAL_GENERATION])
async def test_a_node_that_is_late_joins_again(code: Code) -> None:
    group = Group()
    node = await membership(group, [KafkaFault(code), None, KafkaFault(code), None, None])
    assert group.requests == ["join anew", "sync", "heartbeat", "join", "sync", "join", "sync"]
    assert not node.leads


async def test_a_node_that_kafka_has_forgotten_joins_again() -> None:
    group = Group()
    await membership(group, [KafkaFault(Code.UNKNOWN_MEMBER_ID), None, None])
    assert group.requests[-3:] == ["heartbeat", "join anew", "sync"]


async def test_a_node_that_kafka_has_forgotten_while_it_led_is_lost() -> None:
    group = Group()
    group.leader = "us"
    node = await membership(group, [KafkaFault(Code.UNKNOWN_MEMBER_ID)])
    assert not node.leads
    assert node.lost == "Kafka has not heard of this node for too long"
    assert await node._beat() is None, "it waits to be closed"
    await node.leave()
    assert group.requests[-1] == "heartbeat", "there is nothing to leave"


async def test_a_coordinator_that_is_loading_is_not_asked_without_end() -> None:
    group = Group()
    node = await membership(group, [KafkaFault(Code.UNKNOWN_MEMBER_ID)])
    group.faults = [KafkaFault(Code.COORDINATOR_LOAD_IN_PROGRESS)]
    assert await node._beat()
    assert await node._beat()
    assert group.requests[-3:] == ["join anew", "join anew", "sync"]


async def test_a_node_that_kafka_has_forgotten_while_it_owned_shards_is_lost() -> None:
    group = Group()
    group.shards = [3, 5]
    node = await membership(group)
    assert node.given == {3, 5}
    group.faults = [Unanswered("cut off"), KafkaFault(Code.UNKNOWN_MEMBER_ID)]
    assert await node._beat()
    assert node.lost is None, "nobody has been given them as far as is known"
    await node._beat()
    assert node.lost == "Kafka has not heard of this node for too long"


async def test_a_shard_that_is_to_move_is_held_until_it_is_released() -> None:
    group = Group()
    group.shards = [3, 5]
    node = await membership(group)
    group.shards = [5]
    group.faults = [KafkaFault(Code.REBALANCE_IN_PROGRESS), None, None]
    while group.faults:
        await node._beat()
    assert node.given == {5}
    assert list(node._said.shards) == [3, 5]
    node.release(5)
    assert list(node._said.shards) == [3, 5], "it was given to this node"
    node.release(3)
    assert await node._beat()
    assert group.requests[-2:] == ["join", "sync"]
    assert list(node._said.shards) == [5]


def test_nodes_that_can_be_reached_are_given_shards_and_those_that_move_are_given_to_nobody() -> None:
    def said(node: str, since_ms: int, *shards: int, reached: bool = True) -> bytes:
        addresses = {"cluster": "10.0.0.1:9700"} if reached else {}
        return msgspec.json.encode(_Said(node, addresses, since_ms, node == "one", shards, 4))

    shared = _shared_out({"a": said("one", 1, 0, 1, 2, 3), "b": said("two", 2), "c": said("new", 3, reached=False)})
    assert len(set(shared.values())) == 1, "all are told the same"
    told = msgspec.json.decode(shared["a"], type=dict[str, _Said])
    assert {member: each.shards for member, each in told.items()} == {"a": (0, 1), "b": (), "c": ()}
    assert [each.leads for each in told.values()] == [True, False, False]

"""What each request about members and lag does, asked of a real broker over a session."""

from __future__ import annotations

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.log.api import TopicConfig
from penstock.protocols.flymq.errors import decode_error
from penstock.protocols.flymq.operations.groups import (
    AssignedPartition,
    GroupAssignment,
    GroupCommit,
    GroupHeartbeat,
    GroupLeave,
    GroupList,
    GroupMember,
    GroupPage,
    GroupProgress,
    OwnedOffset,
    OwnedPartition,
    PartitionProgress,
    SubscriptionList,
    SubscriptionPage,
    SubscriptionPartition,
    SubscriptionProgress,
)
from penstock.protocols.flymq.operations.operation import decode_reply, encode_request
from penstock.protocols.flymq.wire import ERROR, frame
from penstock.testing.clock import START_MS, ManualClock
from tests.broker.producing import produce
from tests.protocols.flymq.conversation import Conversation


def heartbeat(sequence: int = 0, *owned: OwnedPartition) -> GroupHeartbeat:
    return GroupHeartbeat("g", "m", ["t"], sequence, "earliest", "", 10_000, owned)


async def test_a_member_joins_commits_and_leaves(broker: Broker, talk: Conversation) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=2))
    encoded = encode_request(heartbeat())
    assert encoded == frame(
        0xDB,
        bytes.fromhex("0001 67 0001 6d 00000001 0001 74 0000000000000000 0008 6561726c69657374 0000 00002710 00000000"),
    )
    reply = await talk.ask(encoded)
    assert reply.payload == bytes.fromhex(
        "0000000000000001 000003e8 00000002"
        "0001 74 00000000 0000000000000001 0000000000000000 00"
        "0001 74 00000001 0000000000000001 0000000000000000 00"
    )
    commit = encode_request(GroupCommit("g", "m", [OwnedOffset("t", 0, 1, 7)]))
    assert commit == frame(
        0xDD, bytes.fromhex("0001 67 0001 6d 00000001 0001 74 00000000 0000000000000001 0000000000000007")
    )
    assert await talk.ask(commit) == (0xDD, b"\x01")
    owned = [OwnedPartition("t", 0, 1)]
    reply = await talk.ask(encode_request(heartbeat(1, *owned)))
    assert decode_reply(GroupHeartbeat, reply.payload) == GroupAssignment(
        1,
        1000,
        [AssignedPartition("t", 0, 1, 0, committed=True), AssignedPartition("t", 1, 1, 0, committed=False)],
    )
    leave = encode_request(GroupLeave("g", "m", ["t"]))
    assert leave == frame(0xDC, bytes.fromhex("0001 67 0001 6d 00000001 0001 74"))
    assert await talk.ask(leave) == (0xDC, b"\x01")
    opcode, payload = await talk.ask(commit)
    assert opcode == ERROR
    assert decode_error(payload).startswith("consumer fenced: m is not a member of group g")


@pytest.mark.dense
async def test_groups_are_listed_with_members_and_lag(broker: Broker, talk: Conversation, clock: ManualClock) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=2))
    await produce(broker, "t", [b"x"] * 3, partition=1)
    await broker.groups.commit(ANONYMOUS, "gone", "g", 4, 9)
    await talk.ask(encode_request(heartbeat()))
    clock.advance(2)
    reply = await talk.ask(encode_request(GroupList("g", "")))
    assert decode_reply(GroupList, reply.payload) == GroupPage(
        [
            GroupProgress("gone", "g", 0, 1, "empty", [], [PartitionProgress(4, 9, -1, -1, -1, "")]),
            GroupProgress(
                "t",
                "g",
                0,
                1,
                "stable",
                [GroupMember("m", "", "anonymous", 10_000, 2000)],
                [PartitionProgress(0, -1, 0, 0, 0, "m"), PartitionProgress(1, -1, 3, 3, 2000, "m")],
            ),
        ],
        more=False,
    )
    reply = await talk.ask(encode_request(GroupList("", "", "t", "g")))
    assert decode_reply(GroupList, reply.payload) == GroupPage([], more=False)


async def test_subscriptions_are_listed_with_what_is_in_flight(
    broker: Broker, talk: Conversation, clock: ManualClock
) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=1))
    subscription = await broker.subscriptions.subscribe(ANONYMOUS, "t", 1, name="jobs")
    await produce(broker, "t", [b"x"] * 3, partition=0)
    clock.advance(2)
    broker.subscriptions.take_many(ANONYMOUS, "t", subscription, 1, 1)
    reply = await talk.ask(encode_request(SubscriptionList("", "")))
    expected = SubscriptionProgress("t", "jobs", "", START_MS, 3, 2000, 1, 0, 0, 0, [SubscriptionPartition(0, 1, 3)])
    assert decode_reply(SubscriptionList, reply.payload) == SubscriptionPage([expected], more=False)

"""What every request does, asked of a real broker over a session."""

from __future__ import annotations

import pytest

from penstock.broker.broker import Broker
from penstock.protocols.flymq.codec.record_layouts import (
    Fetched,
    decode_consumed,
    decode_fetched,
    decode_produced,
    encode_produce,
    encode_produce_many,
)
from penstock.protocols.flymq.operations.access import Auth, Whoami
from penstock.protocols.flymq.operations.operation import decode_reply, encode_request
from penstock.protocols.flymq.operations.records import Consume, Fetch, FetchBinary
from penstock.protocols.flymq.operations.topics import (
    ClusterMetadata,
    ClusterPartition,
    ClusterTopic,
    ClusterTopics,
    Commit,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DescribeGroup,
    GetLag,
    GetOffset,
    GroupLag,
    GroupState,
    ListGroups,
    ListTopics,
    Metadata,
    PartitionLeader,
    PartitionMetadata,
    ResetOffset,
    SeekToTimestamp,
    Subscribe,
)
from penstock.protocols.flymq.server.dispatch import Dialect, Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.flymq.wire import frame
from penstock.testing.clock import START_MS, ManualClock
from tests.protocols.flymq.conversation import Conversation, Frame

OFFSET_MAX = (1 << 64) - 1


def done(opcode: int) -> Frame:
    return Frame(opcode, b"\x01")


async def fill(talk: Conversation, topic: str, *values: bytes) -> None:
    talk.say(encode_produce_many(topic, values))
    await talk.replies(len(values))


# --- topics ---


async def test_create_topic_says_so(talk: Conversation, broker: Broker) -> None:
    reply = await talk.ask(encode_request(CreateTopic("orders", 3)))
    assert reply == (0x03, b"\x01\x00\x14topic orders created")
    assert broker.topics.exists("orders")


async def test_a_topic_that_exists_is_left_unchanged(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 3)))
    reply = await talk.ask(encode_request(CreateTopic("orders", 7)))
    assert (reply.opcode, reply.payload[0]) == (0x03, 1)
    assert len(decode_reply(Metadata, (await talk.ask(encode_request(Metadata("orders")))).payload).partitions) == 3


async def test_no_partitions_mean_one(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 0)))
    assert len(decode_reply(Metadata, (await talk.ask(encode_request(Metadata("orders")))).payload).partitions) == 1


@pytest.mark.parametrize(
    ("name", "partitions", "settings", "text"),
    [
        ("orders", -1, {}, "invalid request: -1 partitions"),
        ("../evil", 1, {}, "invalid topic name: "),
        ("", 1, {}, "invalid topic name: topic name is empty"),
        ("a\nb", 1, {}, "invalid topic name: "),
        ("x" * 250, 1, {}, "invalid topic name: topic name has 250 bytes"),
        ("__groups", 1, {}, "access denied: "),
        ("orders", 2_000_000_000, {}, "invalid request: topic setting partitions"),
        ("orders", 1, {"colour": "red"}, "invalid request: topic setting 'colour' is not known"),
        ("orders", 1, {"durability": "maybe"}, "invalid request: topic setting durability"),
    ],
)
async def test_a_topic_that_cannot_be_is_refused(
    talk: Conversation, name: str, partitions: int, settings: dict[str, str], text: str
) -> None:
    reply = await talk.ask(encode_request(CreateTopic(name, partitions, list(settings.items()))))
    assert reply.error.startswith(text)
    assert decode_reply(ListTopics, (await talk.ask(encode_request(ListTopics()))).payload) == []


async def test_settings_travel_with_create_and_come_back_with_metadata(talk: Conversation) -> None:
    settings = {"durability": "none", "retention_ms": "7d", "cleanup": "compact", "compression": "zstd"}
    await talk.ask(encode_request(CreateTopic("orders", 2, list(settings.items()))))
    reply = await talk.ask(encode_request(Metadata("orders")))
    assert reply.opcode == 0x04
    metadata = decode_reply(Metadata, reply.payload)
    assert metadata.partitions == [PartitionMetadata(0, 0, 0, 0), PartitionMetadata(1, 0, 0, 0)]
    assert metadata.config["durability"] == "none"
    assert metadata.config["retention_ms"] == str(7 * 24 * 3600 * 1000)
    assert metadata.config["cleanup"] == "compact"
    assert metadata.config["compression"] == "zstd"
    assert metadata.config["retention_bytes"] == "forever"
    assert metadata.config["created_ms"] == str(START_MS)
    assert set(metadata.config) == {
        "durability",
        "retention_ms",
        "retention_bytes",
        "cleanup",
        "compression",
        "segment_bytes",
        "segment_ms",
        "id",
        "created_ms",
    }


@pytest.mark.dense
async def test_metadata_gives_the_range_of_offsets(talk: Conversation) -> None:
    await fill(talk, "orders", b"1", b"2")
    reply = await talk.ask(encode_request(Metadata("orders")))
    assert decode_reply(Metadata, reply.payload).partitions == [PartitionMetadata(0, 0, 0, 2)]


async def test_list_topics_is_sorted_and_hides_internal_ones(talk: Conversation) -> None:
    for name in ("zebra", "a/b", "middle"):
        await talk.ask(encode_request(CreateTopic(name, 1)))
    await talk.ask(encode_request(Commit("zebra", "g", 0, 0)))
    assert decode_reply(ListTopics, (await talk.ask(encode_request(ListTopics()))).payload) == [
        "a/b",
        "middle",
        "zebra",
    ]


async def test_delete_topic_is_done_whether_it_existed_or_not(talk: Conversation, broker: Broker) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    assert await talk.ask(encode_request(DeleteTopic("orders"))) == done(0x09)
    assert not broker.topics.exists("orders")
    assert await talk.ask(encode_request(DeleteTopic("orders"))) == done(0x09)


async def test_cluster_metadata_names_this_node_for_every_partition(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 2)))
    reply = await talk.ask(encode_request(ClusterMetadata("orders")))
    leader = b"\0\x06node-1\0\x0e192.0.2.9:9092\0\0\0\0\0\0\0\x01\0\x06online"
    replicas = b"\0\0\0\x01\0\x06node-1" * 2
    partitions = b"".join(index.to_bytes(4) + leader + replicas for index in range(2))
    assert reply == (0x53, b"\0\x0astandalone\0\0\0\x01\0\x06orders\0\0\0\x02" + partitions)


@pytest.mark.parametrize("request_frame", [frame(ClusterMetadata.opcode), encode_request(ClusterMetadata(""))])
async def test_cluster_metadata_of_no_topic_means_all(talk: Conversation, request_frame: bytes) -> None:
    await talk.ask(encode_request(CreateTopic("a", 1)))
    await talk.ask(encode_request(CreateTopic("b", 1)))
    here = [ClusterPartition(0, PartitionLeader("node-1", "192.0.2.9:9092", 1, "online", ("node-1",), ("node-1",)))]
    assert decode_reply(ClusterMetadata, (await talk.ask(request_frame)).payload) == ClusterTopics(
        "standalone", [ClusterTopic("a", here), ClusterTopic("b", here)]
    )


# --- produce ---


@pytest.mark.dense
async def test_produce_creates_the_topic_with_one_partition(talk: Conversation) -> None:
    reply = await talk.ask(encode_produce("orders", b"hello"))
    assert reply.opcode == 0x01
    assert decode_produced(reply.payload) == ("orders", 0, 0, START_MS)
    assert reply.payload[-8:] == b"\xff\xff\xff\xff\x00\x00\x00\x05"
    assert len(decode_reply(Metadata, (await talk.ask(encode_request(Metadata("orders")))).payload).partitions) == 1


async def test_keys_go_where_fnv_sends_them(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 3)))
    keys = [b"a", b"b", b"k1", b"user-123", b"user-0", b"user-1", b"user-2", b"order-1"]
    talk.say(encode_produce_many("orders", [b"v"] * len(keys), keys))
    placed = [decode_produced(reply.payload)[1] for reply in await talk.replies(len(keys))]
    assert placed == [1, 1, 0, 2, 0, 1, 1, 1]


async def test_records_without_keys_take_turns(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 3)))
    talk.say(encode_produce_many("orders", [b"v"] * 7))
    placed = [decode_produced(reply.payload)[1:3] for reply in await talk.replies(7)]
    assert placed == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)]


async def test_an_explicit_partition_is_honoured(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 3)))
    reply = await talk.ask(encode_produce("orders", b"v", b"a", 2))
    assert decode_produced(reply.payload)[1] == 2


@pytest.mark.parametrize("partition", [3, -2, 2**31 - 1, -(2**31)])
async def test_a_partition_that_is_not_there_is_refused(talk: Conversation, partition: int) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 3)))
    reply = await talk.ask(encode_produce("orders", b"v", None, partition))
    assert reply.error.startswith(f"partition {partition} out of range")


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        ("../evil", "invalid topic name"),
        ("", "invalid topic name"),
        ("__groups", "access denied"),
        ("__x", "access denied"),
    ],
)
async def test_produce_to_a_name_that_cannot_be_is_refused(talk: Conversation, topic: str, text: str) -> None:
    assert (await talk.ask(encode_produce(topic, b"v"))).error.startswith(text)


# --- consume and fetch ---


@pytest.mark.dense
@pytest.mark.parametrize("opcode", [0x02, 0x0A])
async def test_consume_gives_one_record(talk: Conversation, opcode: int) -> None:
    talk.say(encode_produce_many("orders", [b"first", b"", b"x" * 70_000], [None, b"k", b"key"]))
    await talk.replies(3)
    found = []
    for offset in range(3):
        request = bytearray(encode_request(Consume("orders", 0, offset)))
        request[2] = opcode
        reply = await talk.ask(bytes(request))
        assert reply.opcode == opcode
        found.append(decode_consumed(reply.payload))
    assert found == [(None, b"first"), (b"k", b""), (b"key", b"x" * 70_000)]


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "text"),
    [
        ("nope", 0, 0, "topic not found: nope"),
        ("orders", 7, 0, "partition 7 out of range"),
        ("orders", -1, 0, "partition -1 out of range"),
        ("orders", 0, 1, "EOF"),
        ("orders", 0, OFFSET_MAX, "EOF"),
        ("__groups", 0, 0, "access denied"),
    ],
)
async def test_consume_of_what_is_not_there_is_refused(
    talk: Conversation, topic: str, partition: int, offset: int, text: str
) -> None:
    await fill(talk, "orders", b"only")
    assert (await talk.ask(encode_request(Consume(topic, partition, offset)))).error.startswith(text)


@pytest.mark.dense
@pytest.mark.parametrize("operation", [Fetch, FetchBinary])
@pytest.mark.parametrize("wanted", [None, ""], ids=["contract", "deployed"])
async def test_fetch_gives_records_and_the_next_offset(
    talk: Conversation, operation: type[Fetch], wanted: str | None
) -> None:
    talk.say(encode_produce_many("orders", [b"hello", b"v", b"last"], [None, b"k1", None]))
    await talk.replies(3)
    reply = await talk.ask(encode_request(operation("orders", 0, 0, 2, wanted)))
    assert reply.opcode == operation.opcode
    assert decode_fetched(reply.payload, native=wanted is not None) == Fetched(
        [0, 1], [None, b"k1"], [b"hello", b"v"], 2
    )


@pytest.mark.dense
@pytest.mark.parametrize("dialect", list(Dialect))
async def test_the_listener_can_settle_the_layout(
    broker: Broker, clock: ManualClock, node: Node, dialect: Dialect
) -> None:
    talk = Conversation(FlyMQ(broker, clock=clock, node=node, dialect=dialect))
    await fill(talk, "orders", b"hello")
    for wanted in (None, ""):
        reply = await talk.ask(encode_request(Fetch("orders", 0, 0, 10, wanted)))
        native = dialect is Dialect.NATIVE or (dialect is Dialect.AUTO and wanted is not None)
        assert decode_fetched(reply.payload, native=native) == Fetched([0], None, [b"hello"], 1)


@pytest.mark.dense
@pytest.mark.parametrize("maximum", [0, -1, -(2**31)])
async def test_no_maximum_means_ten(talk: Conversation, maximum: int) -> None:
    await fill(talk, "orders", *[b"%d" % n for n in range(25)])
    fetched = decode_fetched((await talk.ask(encode_request(Fetch("orders", 0, 5, maximum, "")))).payload, native=True)
    assert fetched.values == [b"%d" % n for n in range(5, 15)]
    assert fetched.next_offset == 15


@pytest.mark.dense
@pytest.mark.parametrize("offset", [2, 3, 50, OFFSET_MAX])
async def test_at_or_past_the_end_there_is_nothing_and_the_offset_stays(talk: Conversation, offset: int) -> None:
    await fill(talk, "orders", b"1", b"2")
    reply = await talk.ask(encode_request(Fetch("orders", 0, offset, 10)))
    assert reply == (0x07, bytes(4) + offset.to_bytes(8))


@pytest.mark.parametrize(
    ("topic", "partition", "text"),
    [
        ("nope", 0, "topic not found: nope"),
        ("orders", 4, "partition 4 not found"),
        ("orders", -1, "partition -1 not found"),
    ],
)
async def test_fetch_of_what_is_not_there_is_refused(talk: Conversation, topic: str, partition: int, text: str) -> None:
    await fill(talk, "orders", b"1")
    assert (await talk.ask(encode_request(Fetch(topic, partition, 0, 10, "")))).error.startswith(text)


# --- groups ---


@pytest.mark.dense
@pytest.mark.parametrize("native", [True, False], ids=["deployed", "contract"])
async def test_subscribe_gives_the_place_to_start(talk: Conversation, native: bool) -> None:
    await fill(talk, "orders", b"1", b"2", b"3")

    async def start(mode: str) -> int:
        reply = await talk.ask(encode_request(Subscribe("orders", "g", 0, mode, native=native)))
        assert reply.opcode == 0x05
        return decode_reply(GetOffset, reply.payload)

    assert await start("earliest") == 0
    assert await start("latest") == 3
    assert await start("") == 3
    assert await start("commit") == 0
    await talk.ask(encode_request(Commit("orders", "g", 0, 2)))
    assert await start("commit") == 2
    assert await start("committed") == 2


async def test_latest_of_an_empty_partition_is_its_first_record(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    assert decode_reply(GetOffset, (await talk.ask(encode_request(Subscribe("orders", "g", 0, "latest")))).payload) == 0


@pytest.mark.parametrize(
    ("topic", "partition", "mode", "text"),
    [
        ("orders", 0, "foo", "unknown subscribe mode: foo"),
        ("nope", 0, "earliest", "topic not found: nope"),
        ("orders", 4, "earliest", "partition 4 not found"),
        ("orders", -1, "latest", "partition -1 not found"),
    ],
)
async def test_subscribing_in_vain_makes_no_member(
    talk: Conversation, topic: str, partition: int, mode: str, text: str
) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    assert (await talk.ask(encode_request(Subscribe(topic, "g", partition, mode)))).error.startswith(text)
    assert decode_reply(ListGroups, (await talk.ask(encode_request(ListGroups()))).payload) == []


async def test_a_member_is_counted_until_it_leaves(flymq: FlyMQ, talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    other = Conversation(flymq, "192.0.2.2:50001")
    for each in (talk, other):
        await each.ask(encode_request(Subscribe("orders", "g", 0, "latest")))
    describe = encode_request(DescribeGroup("orders", "g"))
    assert decode_reply(DescribeGroup, (await talk.ask(describe)).payload) == GroupState("orders", "g", 2, {})
    other.session.closed()
    assert decode_reply(DescribeGroup, (await talk.ask(describe)).payload) == GroupState("orders", "g", 1, {})


@pytest.mark.parametrize("native", [True, False], ids=["deployed", "contract"])
async def test_a_group_that_only_subscribed_is_listed_during_and_after_its_connection(
    flymq: FlyMQ, talk: Conversation, native: bool
) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    subscriber = Conversation(flymq, "192.0.2.2:50001")
    await subscriber.ask(encode_request(Subscribe("orders", "g", 0, "latest", native=native)))
    names = bytes.fromhex("00000001 0006 6f7264657273 0001 67")
    assert await talk.ask(encode_request(ListGroups())) == (0x62, names + bytes.fromhex("00000001 00000000"))
    subscriber.session.closed()
    assert await talk.ask(encode_request(ListGroups())) == (0x62, names + bytes.fromhex("00000000 00000000"))
    assert await talk.ask(encode_request(GetOffset("orders", "g", 0))) == (0x60, bytes(8))
    assert await talk.ask(encode_request(DeleteGroup("orders", "g"))) == done(0x65)
    assert await talk.ask(encode_request(ListGroups())) == (0x62, bytes(4))


async def test_commit_is_what_get_offset_gives(talk: Conversation) -> None:
    assert await talk.ask(encode_request(Commit("orders", "g", 0, 43))) == done(0x06)
    assert await talk.ask(encode_request(GetOffset("orders", "g", 0))) == (0x60, (43).to_bytes(8))
    assert await talk.ask(encode_request(GetOffset("orders", "g", 1))) == (0x60, bytes(8))


async def test_commit_of_a_place_that_cannot_be_is_refused(talk: Conversation) -> None:
    assert (await talk.ask(encode_request(Commit("orders", "g", 0, OFFSET_MAX)))).error.startswith("invalid request: ")
    assert (await talk.ask(encode_request(Commit("orders", "g", -1, 0)))).error.startswith("partition -1 not found")
    assert (await talk.ask(encode_request(Commit("orders", "", 0, 0)))).error.startswith("invalid request: group name")


@pytest.mark.parametrize(
    "request_frame",
    [
        encode_request(GetOffset("orders", "g", 0)),
        encode_request(GetLag("orders", "g", 0)),
        encode_request(DescribeGroup("orders", "g")),
        encode_request(DeleteGroup("orders", "g")),
    ],
)
async def test_a_group_that_is_not_there_is_refused(talk: Conversation, request_frame: bytes) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    assert (await talk.ask(request_frame)).error.startswith("consumer group not found: orders:g")


@pytest.mark.dense
async def test_reset_moves_a_group(talk: Conversation) -> None:
    await fill(talk, "orders", b"1", b"2", b"3")

    async def place_after(*reset: str | int) -> int:
        assert await talk.ask(encode_request(ResetOffset("orders", "g", 0, *reset))) == done(0x61)  # type: ignore[arg-type]
        return decode_reply(GetOffset, (await talk.ask(encode_request(GetOffset("orders", "g", 0)))).payload)

    assert await place_after("latest") == 3
    assert await place_after("earliest") == 0
    assert await place_after("offset", 2) == 2
    assert await place_after("latest", 0) == 3


@pytest.mark.parametrize(
    ("topic", "partition", "mode", "text"),
    [
        ("orders", 0, "foo", "unknown reset mode: foo"),
        ("orders", 9, "latest", "partition 9 not found"),
        ("nope", 0, "latest", "topic not found: nope"),
    ],
)
async def test_a_reset_that_makes_no_sense_is_refused(
    talk: Conversation, topic: str, partition: int, mode: str, text: str
) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    assert (await talk.ask(encode_request(ResetOffset(topic, "g", partition, mode)))).error.startswith(text)


async def test_groups_are_listed_with_their_places(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 3)))
    for partition, offset in ((2, 20), (0, 10)):
        await talk.ask(encode_request(Commit("orders", "g", partition, offset)))
    await talk.ask(encode_request(Commit("other", "h", 0, 1)))
    assert decode_reply(ListGroups, (await talk.ask(encode_request(ListGroups()))).payload) == [
        GroupState("orders", "g", 0, {0: 10, 2: 20}),
        GroupState("other", "h", 0, {0: 1}),
    ]


async def test_a_group_is_described_without_its_topic(talk: Conversation) -> None:
    await talk.ask(encode_request(Commit("orders", "g", 0, 10)))
    reply = await talk.ask(encode_request(DescribeGroup("", "g")))
    assert decode_reply(DescribeGroup, reply.payload) == GroupState("orders", "g", 0, {0: 10})
    assert (await talk.ask(encode_request(DescribeGroup("", "h")))).error.startswith("consumer group not found: h")


async def test_a_request_that_names_only_a_group_gets_the_group_wide_layout(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    await talk.ask(encode_request(Subscribe("orders", "g", 0, "latest")))
    await talk.ask(encode_request(Commit("other", "g", 0, 1)))
    reply = await talk.ask(frame(DescribeGroup.opcode, b"\0\x01g"))
    member = b"\0\x15flymq/192.0.2.1:50000"
    assert reply == (
        0x63,
        b"\0\x01g\0\x06Stable\0\0\0\x01" + member + b"\0\0\0\x02\0\x06orders\0\x05other\0\x0e192.0.2.9:9092",
    )


@pytest.mark.parametrize("payload", [b"\0\x06orders\0\x01g", b"\0\0\0\x01g", b"\0\x01g"])
async def test_a_group_is_deleted_with_or_without_its_topic(talk: Conversation, payload: bytes) -> None:
    await talk.ask(encode_request(Commit("orders", "g", 0, 10)))
    assert await talk.ask(frame(DeleteGroup.opcode, payload)) == done(0x65)
    assert decode_reply(ListGroups, (await talk.ask(encode_request(ListGroups()))).payload) == []


@pytest.mark.dense
async def test_lag_counts_what_is_not_read(talk: Conversation) -> None:
    await fill(talk, "orders", b"1", b"2", b"3")
    await talk.ask(encode_request(Commit("orders", "g", 0, 2)))
    reply = await talk.ask(encode_request(GetLag("orders", "g", 0)))
    assert reply.opcode == 0x64
    assert decode_reply(GetLag, reply.payload) == GroupLag(current=2, committed=2, latest=3, lag=1)


async def test_lag_of_an_empty_partition_is_none(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    await talk.ask(encode_request(Subscribe("orders", "g", 0, "latest")))
    assert decode_reply(GetLag, (await talk.ask(encode_request(GetLag("orders", "g", 0)))).payload) == GroupLag(
        0, 0, 0, 0
    )


@pytest.mark.dense
async def test_seek_finds_the_first_record_at_or_after_a_time(talk: Conversation, clock: ManualClock) -> None:
    for value in (b"1", b"2", b"3"):
        await fill(talk, "orders", value)
        clock.advance(10)

    async def seek(group: str, timestamp_ms: int) -> int:
        reply = await talk.ask(encode_request(SeekToTimestamp("orders", group, 0, timestamp_ms)))
        assert reply.opcode == 0x66
        return decode_reply(GetOffset, reply.payload)

    assert await seek("", START_MS + 5_000) == 1
    assert (await talk.ask(encode_request(GetOffset("orders", "g", 0)))).error.startswith("consumer group not found")
    assert await seek("g", START_MS + 10_000) == 1
    assert decode_reply(GetOffset, (await talk.ask(encode_request(GetOffset("orders", "g", 0)))).payload) == 1
    assert await seek("g", -1) == 0
    assert await seek("g", START_MS + 999_999) == 3


# --- who is asking ---


async def test_credentials_are_welcome_where_none_are_needed(talk: Conversation) -> None:
    assert await talk.ask(encode_request(Auth("admin", "secret"))) == (0x71, b"\x01\0\0\0\0\0\0\0\0")
    await talk.ask(encode_request(ClusterMetadata()))
    assert await talk.ask(encode_request(Auth("admin", "secret"))) == (0x71, b"\x01\0\x05admin\0\0\0\0\0\0")


SPEC_YES = b"\x01\0\0\0\x05admin\0\0\0\0"


@pytest.mark.parametrize(
    "shown",
    [encode_request(Fetch("t", 0, 0, 1)), encode_request(Subscribe("t", "g", 0, "latest"))],
    ids=["fetch without filter", "wide mode"],
)
async def test_who_has_shown_the_contracts_dialect_is_answered_in_it(talk: Conversation, shown: bytes) -> None:
    await talk.ask(shown)
    assert await talk.ask(encode_request(Auth("admin", "secret"))) == (0x71, SPEC_YES)
    await talk.ask(encode_request(ClusterMetadata()))
    assert (await talk.ask(encode_request(Auth("admin", "secret")))).payload != SPEC_YES


async def test_a_listener_set_to_the_contract_answers_in_it(broker: Broker, clock: ManualClock, node: Node) -> None:
    talk = Conversation(FlyMQ(broker, clock=clock, node=node, dialect=Dialect.SPEC))
    assert await talk.ask(encode_request(Auth("admin", "secret"))) == (0x71, SPEC_YES)


async def test_no_one_is_no_one(talk: Conversation) -> None:
    assert await talk.ask(encode_request(Whoami())) == (0x72, bytes(11))

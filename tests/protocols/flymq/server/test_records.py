"""Whole records, delayed records, records with a time to live and dead letters, asked for over a session with a real broker."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.deliveries.deadletter_entries import FailedRecord
from penstock.protocols.flymq.client.exchanges import metadata_of
from penstock.protocols.flymq.client.records import DeadLetterInfo, dead_letter_info
from penstock.protocols.flymq.codec.record_layouts import decode_fetched, encode_produce
from penstock.protocols.flymq.operations.operation import decode_reply, encode_request
from penstock.protocols.flymq.operations.records import (
    CancelDelayed,
    Consume,
    Fetch,
    FetchDlq,
    ProduceDelayed,
    ProducedRecords,
    ProduceRecords,
    ProduceWithTtl,
    PurgeDlq,
    ReplayDlq,
    Replayed,
    ReplayFilter,
    ScheduledRecord,
)
from penstock.protocols.flymq.operations.schemas import RegisterSchema
from penstock.protocols.flymq.operations.topics import CreateTopic
from penstock.protocols.flymq.wire import HEADER, MAGIC, VERSION
from penstock.testing.clock import START_MS, ManualClock
from tests.broker.producing import dead_letter
from tests.protocols.flymq.conversation import Conversation, Frame

DAY_MS = 24 * 3600 * 1000


def scheduled(payload: bytes) -> ScheduledRecord:
    return decode_reply(ProduceDelayed, payload)


def replayed(payload: bytes) -> int | None:
    reply = decode_reply(ReplayDlq, payload)
    assert isinstance(reply, Replayed)
    return reply.count


async def arrived(broker: Broker, topic: str, count: int) -> None:
    """Wait until the topic holds this many records."""
    handle, changed = broker.records.partition(ANONYMOUS, topic, 0), asyncio.Event()
    stop = handle.watch(changed.set)
    broker.schedule.look()
    while handle.committed_end < count:
        await changed.wait()
        changed.clear()
    stop()


async def values_of(talk: Conversation, topic: str = "test", partition: int = 0) -> list[bytes]:
    reply = await talk.ask(encode_request(Fetch(topic, partition, 0, 1000, "")))
    return decode_fetched(reply.payload, native=True).values


async def fail(broker: Broker, *values: bytes, reason: str = "boom") -> None:
    await dead_letter(
        broker,
        [
            FailedRecord("test", 0, offset, value, b"key", None, reason, 2, START_MS - 5, START_MS)
            for offset, value in enumerate(values)
        ],
    )


# --- whole records ---


@pytest.mark.parametrize("padding", [0, 300_000], ids=["checked at once", "checked later"])
async def test_a_record_that_its_schema_refuses_leaves_those_beside_it_stored(talk: Conversation, padding: int) -> None:
    await talk.ask(encode_request(RegisterSchema("user", "json", b'{"type": "object", "required": ["name"]}')))
    good, bad = b'{"name": "%s"}' % bytes(padding).replace(b"\0", b"x"), b"{}"
    reply = await talk.ask(encode_request(ProduceRecords("test", [good, bad, good], schema="user")))
    produced = decode_reply(ProduceRecords, reply.payload)
    assert (produced.partitions, list(produced.offsets)) == ([0, -1, 0], [0, 0, 1])
    assert [(failure.row, failure.error.split(":")[0]) for failure in produced.failures] == [
        (1, "schema validation failed")
    ]
    assert await values_of(talk) == [good, good]


@pytest.mark.dense
async def test_records_in_a_large_request_are_stored_in_order(talk: Conversation) -> None:
    values = [b"%d" % number * 100 for number in range(1000)]
    reply = await talk.ask(encode_request(ProduceRecords("test", values)))
    assert decode_reply(ProduceRecords, reply.payload) == ProducedRecords(
        [0] * 1000, list(range(1000)), [START_MS] * 1000, [], []
    )
    assert await values_of(talk) == values


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ProduceRecords("test", []), "no records to write"),
        (ProduceRecords("test", [], delay_ms=5), "no records to write"),
        (ProduceRecords("test", [b"v"] * 2, [b"k"]), "2 values came with 1 keys: send as many, or none"),
        (ProduceRecords("test", [b"v"], headers=[b""] * 2), "1 values came with 2 headers"),
        (ProduceRecords("test", [b"v"], delay_ms=5, schema="s"), "a delay and a schema do not go together"),
        (ProduceRecords("../x", [b"v"] * 2), "invalid topic name"),
    ],
)
async def test_requests_that_cannot_be_carried_out_store_nothing(
    talk: Conversation, request_: ProduceRecords, error: str
) -> None:
    await talk.ask(encode_request(CreateTopic("test", 1)))
    assert error in (await talk.ask(encode_request(request_))).error
    assert await values_of(talk) == []


async def test_records_for_a_partition_that_does_not_exist_fail_each(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("test", 1)))
    reply = await talk.ask(encode_request(ProduceRecords("test", [b"v"] * 2, partition=7)))
    failures = decode_reply(ProduceRecords, reply.payload).failures
    assert [failure.row for failure in failures] == [0, 1]
    assert all("partition 7 not found" in failure.error for failure in failures)
    assert await values_of(talk) == []


# --- delay ---


@pytest.mark.dense
async def test_a_delayed_record_as_deployed_clients_send_it(
    talk: Conversation, broker: Broker, clock: ManualClock
) -> None:
    reply = await talk.ask(
        bytes.fromhex("af 01 30 01 00 00 00 14 00 04 74 65 73 74 00 00 00 02 68 69 00 00 00 00 00 00 13 88")
    )
    due_ms = START_MS + 5000
    metadata = "0004 74657374 00000000 0000000000000000" + f"{due_ms:016x}" + "ffffffff 00000002"
    entry_id = f"{due_ms}-0".encode()
    assert reply == (0x30, bytes.fromhex(metadata) + len(entry_id).to_bytes(2, "big") + entry_id)
    assert await values_of(talk) == []
    clock.advance(5)
    await arrived(broker, "test", 1)
    assert await values_of(talk) == [b"hi"]


@pytest.mark.dense
async def test_a_record_without_a_delay_is_stored_at_once(talk: Conversation) -> None:
    for number, delay_ms in enumerate((0, -1)):
        reply = await talk.ask(encode_request(ProduceDelayed("test", b"hi", delay_ms)))
        assert metadata_of(decode_reply(ProduceWithTtl, reply.payload)).offset == number
        assert (scheduled(reply.payload).timestamp_ms, scheduled(reply.payload).id) == (START_MS, "")
    assert await values_of(talk) == [b"hi", b"hi"]


async def test_a_delay_beyond_the_bound_is_refused_in_the_words_clients_know(talk: Conversation) -> None:
    reply = await talk.ask(encode_request(ProduceDelayed("test", b"hi", DAY_MS + 1)))
    assert reply.error == "delay 24h0m0.001s exceeds maximum allowed delay 24h0m0s"


async def test_our_own_tail_has_key_partition_and_time_to_live(
    talk: Conversation, broker: Broker, clock: ManualClock
) -> None:
    await talk.ask(encode_request(CreateTopic("test", 3)))
    reply = await talk.ask(encode_request(ProduceDelayed("test", b"hi", 1000, b"k", 0, ttl_ms=500)))
    assert scheduled(reply.payload).partition == 0
    clock.advance(1)
    await arrived(broker, "test", 1)
    assert await values_of(talk) == [b"hi"]
    clock.advance(0.5)
    assert await values_of(talk) == []


async def test_delayed_records_are_pipelined_and_answered_in_order(talk: Conversation, broker: Broker) -> None:
    talk.say(*(encode_request(ProduceDelayed("test", b"%d" % number, 1000 + number)) for number in range(300)))
    replies = [scheduled(reply.payload) for reply in await talk.replies(300)]
    assert [reply.timestamp_ms for reply in replies] == [START_MS + 1000 + number for number in range(300)]
    assert len({reply.id for reply in replies}) == 300
    assert broker.schedule.pending == 300
    assert talk.connection.held_bytes == 0


async def test_what_is_behind_a_write_sees_it(talk: Conversation) -> None:
    talk.say(encode_request(ProduceWithTtl("test", b"1", 5000)), encode_request(Fetch("test", 0, 0, 10, "")))
    _, fetched = await talk.replies(2)
    assert decode_fetched(fetched.payload, native=True).values == [b"1"]


async def test_a_delayed_record_is_cancelled_by_the_id_in_the_reply(talk: Conversation, broker: Broker) -> None:
    entry_id = scheduled((await talk.ask(encode_request(ProduceDelayed("test", b"hi", 5000)))).payload).id
    assert await talk.ask(encode_request(CancelDelayed("test", entry_id))) == (0x31, b"\x01\x00\x02OK")
    assert broker.schedule.pending == 0
    again = await talk.ask(encode_request(CancelDelayed("test", entry_id)))
    assert again.error.startswith("delayed message not found: ")


async def test_a_compressed_write_is_one_too(talk: Conversation, broker: Broker) -> None:
    plain = encode_request(ProduceDelayed("test", b"hi" * 100, 5000))
    packed = gzip.compress(plain[8:])
    reply = await talk.ask(HEADER.pack(MAGIC, VERSION, ProduceDelayed.opcode, 0x03, len(packed)) + packed)
    assert reply.opcode == ProduceDelayed.opcode
    assert broker.schedule.pending == 1


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (encode_request(ProduceDelayed("../evil", b"v", 5)), "invalid topic name: "),
        (encode_request(ProduceDelayed("__schedule", b"v", 5)), "access denied: "),
        (encode_request(ProduceDelayed("test", b"v", 5, partition=7)), "partition 7 not found"),
        (encode_request(ProduceWithTtl("test", b"v", 5, partition=7)), "partition 7 not found"),
        (encode_request(ProduceWithTtl("test", b"v", (1 << 64) - 1)), "invalid request: a time to live of"),
        (encode_request(CancelDelayed("test", "nonsense")), "delayed message not found: "),
        (encode_request(CancelDelayed("__schedule", "1-0")), "access denied: "),
        (encode_request(FetchDlq("__groups", 5)), "access denied: "),
        (encode_request(ReplayDlq("test", "0-0")), "topic not found: test.dlq"),
        (encode_request(ReplayDlq("test", 0)), "topic not found: test.dlq"),
        (
            encode_request(ReplayDlq("test", ReplayFilter("x" * 2000, dry_run=False))),
            "invalid request: filter is too long",
        ),
        (bytes.fromhex("af01300100000006 0004 74657374"), "buffer too small: "),
        (bytes.fromhex("af01210100000009 0004 74657374 000000"), "buffer too small: "),
    ],
)
async def test_what_makes_no_sense_is_refused_and_the_conversation_continues(
    talk: Conversation, request_: bytes, text: str
) -> None:
    await talk.ask(encode_request(CreateTopic("test", 1)))
    assert (await talk.ask(request_)).error.startswith(text)
    assert await values_of(talk) == []


# --- time to live ---


@pytest.mark.dense
async def test_a_record_with_a_time_to_live_is_hidden_from_then_on(talk: Conversation, clock: ManualClock) -> None:
    reply = await talk.ask(
        bytes.fromhex("af 01 35 01 00 00 00 14 00 04 74 65 73 74 00 00 00 02 68 69 00 00 00 00 00 00 ea 60")
    )
    assert reply == (
        0x35,
        bytes.fromhex("0004 74657374 00000000 0000000000000000" + f"{START_MS:016x}" + "ffffffff 00000002"),
    )
    await talk.ask(encode_produce("test", b"stays"))
    clock.advance(59.999)
    assert await values_of(talk) == [b"hi", b"stays"]
    clock.advance(0.001)
    assert await values_of(talk) == [b"stays"]
    assert (await talk.ask(encode_request(Consume("test", 0, 0)))).error.startswith("EOF")
    assert (await talk.ask(encode_request(Consume("test", 0, 1)))).opcode == Consume.opcode


async def test_a_time_to_live_below_a_second_is_one_and_none_is_none(talk: Conversation, clock: ManualClock) -> None:
    await talk.ask(encode_request(ProduceWithTtl("test", b"10 ms", 10)))
    await talk.ask(encode_request(ProduceWithTtl("test", b"for ever", 0, b"k")))
    clock.advance(3600)
    assert await values_of(talk) == [b"for ever"]


@pytest.mark.dense
async def test_the_next_offset_moves_past_what_has_expired(talk: Conversation, clock: ManualClock) -> None:
    for number in range(5):
        await talk.ask(encode_request(ProduceWithTtl("test", b"%d" % number, 1000)))
    clock.advance(1)
    for request in (encode_request(Fetch("test", 0, 1, 3, "")), encode_request(Fetch("test", 0, 1, 3, "1"))):
        fetched = decode_fetched((await talk.ask(request)).payload, native=True)
        assert fetched.values == []
        assert fetched.next_offset == 5


@pytest.mark.dense
async def test_one_fetch_passes_over_so_many_expired_records_and_no_more(
    talk: Conversation, clock: ManualClock
) -> None:
    talk.say(*(encode_request(ProduceWithTtl("test", b"v", 1000)) for _ in range(30)))
    await talk.replies(30)
    talk.say(*(encode_produce("test", b"w") for _ in range(3)))
    await talk.replies(3)
    clock.advance(1)
    offset, values, fetches = 0, [], 0
    while offset < 33:
        reply = await talk.ask(encode_request(Fetch("test", 0, offset, 2, "")))
        fetched = decode_fetched(reply.payload, native=True)
        assert fetched.next_offset > offset
        offset, fetches = fetched.next_offset, fetches + 1
        values += fetched.values
    assert values == [b"w"] * 3
    assert fetches < 5


# --- dead letters ---


@pytest.mark.dense
async def test_dead_letters_are_listed_in_the_layout_of_deployed_clients(talk: Conversation, broker: Broker) -> None:
    await fail(broker, b"hi")
    reply = await talk.ask(bytes.fromhex("af 01 20 01 00 00 00 0a 00 04 74 65 73 74 00 00 00 0a"))
    known = bytes.fromhex("00000001 0003") + b"0-0" + bytes.fromhex("00000002") + b"hi"
    known += bytes.fromhex("0004") + b"boom" + bytes.fromhex("00000002")
    assert reply.opcode == 0x20
    assert reply.payload.startswith(known)
    assert [dead_letter_info(*each) for each in decode_reply(FetchDlq, reply.payload)] == [
        DeadLetterInfo("0-0", b"hi", "boom", 2, b"key", 0, 0, START_MS - 5, START_MS)
    ]
    assert [dead_letter_info(*each) for each in decode_reply(FetchDlq, known)] == [
        DeadLetterInfo("0-0", b"hi", "boom", 2)
    ], "as a deployed broker would answer"


async def test_a_topic_without_dead_letters_has_an_empty_list(talk: Conversation) -> None:
    assert await talk.ask(encode_request(FetchDlq("test", 10))) == (0x20, bytes(4))
    assert await talk.ask(encode_request(PurgeDlq("test"))) == (0x22, b"\x01\x00\x02OK")
    assert replayed((await talk.ask(encode_request(ReplayDlq("test", ReplayFilter("", dry_run=False))))).payload) == 0


async def test_a_list_of_no_length_is_the_usual_one(talk: Conversation, broker: Broker) -> None:
    await fail(broker, *[b"v"] * 15)
    assert (
        len(
            [
                dead_letter_info(*each)
                for each in decode_reply(FetchDlq, (await talk.ask(encode_request(FetchDlq("test", 0)))).payload)
            ]
        )
        == 10
    )
    assert (
        len(
            [
                dead_letter_info(*each)
                for each in decode_reply(FetchDlq, (await talk.ask(encode_request(FetchDlq("test", 12)))).payload)
            ]
        )
        == 12
    )


async def test_what_a_client_wrote_into_the_dead_letter_topic_is_replayed_by_its_own_id(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("test", 1)))
    entry = b'{"id":"m-1","original_topic":"test","payload":"aGk=","error_message":"boom","retry_count":2}'
    await talk.ask(encode_produce("test.dlq", entry))
    listed = await talk.ask(encode_request(FetchDlq("test", 10)))
    assert listed.payload.startswith(
        bytes.fromhex("00000001 0003 6d2d31 00000002 6869 0004 626f6f6d 00000002".replace(" ", ""))
    )
    replayed = await talk.ask(bytes.fromhex("af 01 21 01 00 00 00 0b 00 04 74 65 73 74 00 03 6d 2d 31"))
    assert replayed == (0x21, bytes.fromhex("0100024f4b"))
    assert await values_of(talk) == [b"hi"]
    again = await talk.ask(encode_request(ReplayDlq("test", "m-1")))
    assert again.error.startswith("message not found")


async def test_a_letter_is_replayed_by_its_offset_too(talk: Conversation, broker: Broker) -> None:
    await talk.ask(encode_request(CreateTopic("test", 1)))
    await fail(broker, *(b"%d" % number for number in range(5)))
    reply = await talk.ask(bytes.fromhex("af 01 21 01 00 00 00 0e 00 04 74 65 73 74 00 00 00 00 00 00 00 03"))
    assert reply == (0x21, b"\x01\x00\x00\x00\x02OK")
    assert await values_of(talk) == [b"3"]
    assert (await talk.ask(encode_request(ReplayDlq("test", 3)))).error.startswith("message not found")
    assert (await talk.ask(encode_request(ReplayDlq("test", 1 << 60)))).error.startswith("message not found")


async def test_all_letters_that_match_are_replayed_or_counted(talk: Conversation, broker: Broker) -> None:
    await talk.ask(encode_request(CreateTopic("test", 1)))
    await fail(broker, b"red", b"green", b"blue")
    await fail(broker, b"grey", reason="Timeout at REDIS")

    async def replay(wanted: str, *, dry_run: bool) -> int | None:
        reply = await talk.ask(encode_request(ReplayDlq("test", ReplayFilter(wanted, dry_run=dry_run))))
        return replayed(reply.payload)

    assert await replay("red", dry_run=True) == 2
    assert await values_of(talk) == []
    assert await replay("red", dry_run=False) == 2
    assert sorted(await values_of(talk)) == [b"grey", b"red"]
    assert await replay("", dry_run=False) == 2
    assert await replay("", dry_run=False) == 0


@pytest.mark.parametrize("letter_id", ["", "x", "0-0", "a" * 6])
async def test_ids_of_any_length_are_told_from_offsets(talk: Conversation, broker: Broker, letter_id: str) -> None:
    await talk.ask(encode_request(CreateTopic("test", 1)))
    await fail(broker, b"v")
    reply = await talk.ask(encode_request(ReplayDlq("test", letter_id)))
    assert reply == (0x21, b"\x01\x00\x02OK") if letter_id == "0-0" else reply.error.startswith("message not found")


async def test_a_purge_empties_the_list(talk: Conversation, broker: Broker) -> None:
    await fail(broker, b"v")
    assert await talk.ask(encode_request(PurgeDlq("test"))) == Frame(0x22, b"\x01\x00\x02OK")
    assert await talk.ask(encode_request(FetchDlq("test", 10))) == (0x20, bytes(4))


@pytest.mark.parametrize(
    "forged",
    [
        b'{"id": "m", "payload": "aGk=", "original_offset": %d}' % (1 << 70),
        b'{"id": "m", "payload": "aGk=", "first_failed_at": %d}' % (1 << 70),
        b'{"id": "m", "payload": "aGk=", "error_message": "%s"}' % (b"x" * 70_000),
        b'{"id": "%s", "payload": "aGk="}' % (b"i" * 70_000),
    ],
    ids=["offset", "time", "error", "id"],
)
async def test_a_letter_that_a_client_forged_keeps_no_other_from_being_listed(
    talk: Conversation, broker: Broker, forged: bytes
) -> None:
    await fail(broker, b"sound")
    await talk.ask(encode_produce("test.dlq", forged))
    listed = [
        dead_letter_info(*each)
        for each in decode_reply(FetchDlq, (await talk.ask(encode_request(FetchDlq("test", 10)))).payload)
    ]
    assert [letter.value for letter in listed] == [b"sound", b"hi"]

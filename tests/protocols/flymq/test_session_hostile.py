"""What peers do that mean harm or know no better: large frames before the login, gzip of many members, costly filters, huge replies."""

from __future__ import annotations

import asyncio
import gzip
import threading
from functools import partial

import pytest

from penstock.broker.access.checks import ANONYMOUS, UNAUTHENTICATED, Principal
from penstock.broker.access.users import Standing
from penstock.broker.broker import Broker
from penstock.broker.records.filters import RecordFilter
from penstock.errors import LimitExceeded, ProtocolViolation
from penstock.log.api import TopicConfig
from penstock.protocols.flymq import session
from penstock.protocols.flymq.codec.frames import Request
from penstock.protocols.flymq.codec.record_layouts import Rows, decode_fetched, encode_fetched, encode_produce
from penstock.protocols.flymq.operations import operation
from penstock.protocols.flymq.operations.access import AclSet, Auth, Whoami
from penstock.protocols.flymq.operations.blocks import ReadPlan, TopicSpans, encode_blocks
from penstock.protocols.flymq.operations.limits import GZIP_MEMBERS_MAX, LOGIN_PAYLOAD_BYTES_MAX
from penstock.protocols.flymq.operations.operation import encode_request
from penstock.protocols.flymq.operations.records import Fetch, Produce
from penstock.protocols.flymq.operations.topics import CreateTopic, ListGroups, ListTopics, Subscribe
from penstock.protocols.flymq.server import fetching
from penstock.protocols.flymq.server.dispatch import Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.flymq.wire import AUTH_RESPONSE, HEADER, MAGIC, PAYLOAD_BYTES_MAX, VERSION, frame
from penstock.testing.clock import ManualClock
from tests.protocols.endless import Endless
from tests.protocols.flymq.conversation import Conversation

EMPTY_MEMBER = gzip.compress(b"", mtime=0)


def packed(opcode: int, payload: bytes) -> bytes:
    return HEADER.pack(MAGIC, VERSION, opcode, 0x03, len(payload)) + payload


# --- before the login ---


@pytest.fixture
async def stranger(broker: Broker, clock: ManualClock, node: Node) -> Conversation:
    """Speaks to a listener that requires a login, and has not logged in."""
    return Conversation(FlyMQ(broker, clock=clock, node=node, principal=UNAUTHENTICATED, login_required=True))


def header_of(payload_bytes: int) -> bytes:
    return HEADER.pack(MAGIC, VERSION, AclSet.opcode, 1, payload_bytes)


async def test_a_large_request_before_the_login_is_refused_at_its_header(stranger: Conversation) -> None:
    with pytest.raises(ProtocolViolation, match=f"at most {LOGIN_PAYLOAD_BYTES_MAX} are allowed"):
        stranger.say(header_of(LOGIN_PAYLOAD_BYTES_MAX + 1))
    [reply] = await stranger.replies(1)
    assert reply.error.startswith("authentication required: a request before the login has at most 65536 bytes")
    assert stranger.connection.held_bytes == 0


async def test_a_request_that_no_login_would_allow_is_not_answered(stranger: Conversation) -> None:
    with pytest.raises(ProtocolViolation):
        stranger.say(header_of(PAYLOAD_BYTES_MAX + 1))
    assert not stranger.connection.sends


async def test_a_payload_that_inflates_to_more_before_the_login_is_refused(stranger: Conversation) -> None:
    bomb = packed(ListTopics.opcode, gzip.compress(bytes(LOGIN_PAYLOAD_BYTES_MAX + 1)))
    reply = await stranger.ask(bomb)
    assert reply.error == f"gzip: the payload inflates to more than {LOGIN_PAYLOAD_BYTES_MAX} bytes"


async def test_a_login_allows_large_requests(
    stranger: Conversation, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def authenticate(name: str, password: str, address: str) -> Principal:
        return Principal(name, frozenset({"admin"}), address=address)

    monkeypatch.setattr(broker.users, "authenticate", authenticate)
    monkeypatch.setattr(broker.users, "standing", lambda principal: Standing(principal.name, (), ()))
    large = encode_produce("orders", bytes(1 << 20))
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig())
    stranger.say(encode_request(Auth("ann", "secret")), packed(Produce.opcode, gzip.compress(large[8:])))
    assert [reply.opcode for reply in await stranger.replies(2)] == [AUTH_RESPONSE, Produce.opcode]
    assert (await stranger.ask(large)).opcode == Produce.opcode


async def test_nothing_is_smaller_where_no_login_is_required(talk: Conversation) -> None:
    reply = await talk.ask(encode_produce("orders", bytes(LOGIN_PAYLOAD_BYTES_MAX + 1)))
    assert reply.opcode == Produce.opcode


# --- gzip ---


async def test_a_payload_of_some_members_is_inflated(talk: Conversation) -> None:
    payload = encode_produce("orders", b"hello")[8:]
    members = [gzip.compress(payload[:9]), *[EMPTY_MEMBER] * (GZIP_MEMBERS_MAX - 2), gzip.compress(payload[9:])]
    assert (await talk.ask(packed(Produce.opcode, b"".join(members)))).opcode == Produce.opcode


async def test_a_payload_of_too_many_members_is_refused_however_large_it_is(talk: Conversation) -> None:
    for members in (GZIP_MEMBERS_MAX + 1, (16 << 20) // len(EMPTY_MEMBER)):
        reply = await talk.ask(packed(ListTopics.opcode, EMPTY_MEMBER * members))
        assert reply.error == f"gzip: more than {GZIP_MEMBERS_MAX} members: compress the payload as one"


async def test_inflating_ends_with_its_connection(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless()
    monkeypatch.setattr(session, "decode_undecoded", lambda call, limits, check: endless.run(check))
    talk.say(packed(ListTopics.opcode, EMPTY_MEMBER))
    await endless.started()
    talk.session.closed()
    assert await endless.ends()
    while talk.connection.held_bytes:
        await asyncio.sleep(0)


async def test_requests_decoded_elsewhere_keep_their_place_among_the_others(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    sent = []
    for number in range(5):
        produce = encode_produce("orders", b"%d" % number)
        sent += [produce, packed(Produce.opcode, gzip.compress(produce[8:])), encode_request(Whoami())]
    long_plan = encode_request(ReadPlan([TopicSpans(f"topic-{number:060}", []) for number in range(2_000)]))
    talk.say(*sent, long_plan, encode_request(Fetch("orders", 0, 0, 100)))
    *replies, fetched = await talk.replies(len(sent) + 2)
    assert [reply.opcode for reply in replies] == [0x01, 0x01, Whoami.opcode] * 5 + [ReadPlan.opcode]
    assert decode_fetched(fetched.payload, native=False).values == [b"%d" % (n // 2) for n in range(10)]
    assert talk.connection.held_bytes == 0


async def test_an_exception_out_of_decoding_is_answered_and_the_conversation_continues(
    talk: Conversation, flymq: FlyMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Request:
        raise MemoryError

    monkeypatch.setattr(session, "decode_undecoded", broken)
    talk.say(packed(ListTopics.opcode, EMPTY_MEMBER), encode_request(Whoami()))
    first, second = await talk.replies(2)
    assert first.error.startswith("internal error")
    assert second.opcode == Whoami.opcode
    assert flymq.stats.internal_errors == 1
    assert talk.connection.held_bytes == 0


async def test_an_exception_out_of_background_work_is_answered_and_the_conversation_continues(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(session.FlyMQSession, "_create_topic_and", broken)
    produce = encode_produce("new", b"x")
    talk.say(produce, produce, encode_request(Whoami()))
    first, second, third = await talk.replies(3)
    assert first.error.startswith("internal error")
    assert second.error.startswith("internal error")
    assert third.opcode == Whoami.opcode
    assert talk.connection.held_bytes == 0


# --- filters ---


async def test_a_filter_is_compiled_beside_the_event_loop(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def compile_here(text: str) -> RecordFilter:
        threads.append(threading.current_thread())
        return RecordFilter(text)

    monkeypatch.setattr(fetching, "RecordFilter", compile_here)
    await talk.ask(encode_produce("orders", b"needle"))
    reply = await talk.ask(encode_request(Fetch("orders", 0, 0, 100, "need.e")))
    assert decode_fetched(reply.payload, native=True).values == [b"needle"]
    assert len(threads) == 1
    assert threading.main_thread() not in threads


async def test_an_expression_that_takes_too_much_memory_is_refused(talk: Conversation) -> None:
    await talk.ask(encode_produce("orders", b"needle"))
    for text in (r"(\pL{1000})", r"\pL{1000}" * 100):
        reply = await talk.ask(encode_request(Fetch("orders", 0, 0, 100, text)))
        assert "filter is too complex" in reply.error


# --- replies ---


async def test_a_reply_that_fits_no_frame_is_an_error_that_says_what_to_do(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    for number in range(50):
        await talk.ask(encode_request(Subscribe("orders", f"group-{number}", 0, "earliest")))
    monkeypatch.setattr(operation, "PAYLOAD_BYTES_MAX", 500)
    reply = await talk.ask(encode_request(ListGroups()))
    assert "LIST_GROUPS takes a frame of" in reply.error
    assert "at most 500 are allowed: describe one group at a time" in reply.error


def test_no_frame_is_made_that_is_larger_than_the_contract_allows() -> None:
    assert len(frame(ListTopics.opcode, bytes(PAYLOAD_BYTES_MAX))) == 8 + PAYLOAD_BYTES_MAX
    many = Rows([0, 1], None, [bytes(PAYLOAD_BYTES_MAX // 2)] * 2)
    for make in (
        partial(frame, ListTopics.opcode, bytes(PAYLOAD_BYTES_MAX + 1)),
        partial(encode_fetched, Fetch.opcode, [many], 2, native=False),
        partial(encode_blocks, 0, 1, 0, [bytes(PAYLOAD_BYTES_MAX)]),
    ):
        with pytest.raises(LimitExceeded, match="ask for less at a time"):
            make()

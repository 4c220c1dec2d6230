"""Which layout a connection is answered in where the contract and deployed clients differ, byte by byte."""

from __future__ import annotations

import gzip
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from penstock.broker.access.checks import SYSTEM, UNAUTHENTICATED
from penstock.broker.broker import Broker
from penstock.log.api import Engine, TopicConfig
from penstock.protocols.flymq.codec.record_layouts import encode_produce
from penstock.protocols.flymq.errors import decode_error, encode_error
from penstock.protocols.flymq.operations.access import (
    Auth,
    LoginState,
    Whoami,
    decode_refusal,
    encode_authenticated,
    encode_not_authenticated,
)
from penstock.protocols.flymq.operations.operation import decode_reply, encode_reply, encode_request
from penstock.protocols.flymq.operations.records import Consume, Fetch
from penstock.protocols.flymq.operations.topics import ClusterMetadata, ListGroups, ListTopics, Subscribe
from penstock.protocols.flymq.operations.transactions import TxnBegin, TxnCommit, TxnProduce, encode_txn_produces
from penstock.protocols.flymq.server.dispatch import Dialect, Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.flymq.wire import ERROR, HEADER, MAGIC, VERSION, frame
from penstock.testing import RunningBroker
from penstock.testing.clock import ManualClock
from tests.broker.accounts import broker_with_users, user
from tests.protocols.flymq import deployed
from tests.protocols.flymq.conversation import Conversation

FETCH = encode_request(Fetch("orders", 0, 0, 1))
FETCH_FILTERED = encode_request(Fetch("orders", 0, 0, 1, ""))
SUBSCRIBE = encode_request(Subscribe("orders", "g", 0, "latest"))
SUBSCRIBE_NARROW = encode_request(Subscribe("orders", "g", 0, "latest", native=True))
CLUSTER_METADATA = encode_request(ClusterMetadata())
GZIPPED = gzip.compress(encode_request(ListGroups())[8:], mtime=0)
COMPRESSED = HEADER.pack(MAGIC, VERSION, ListTopics.opcode, 0x03, len(GZIPPED)) + GZIPPED
CONSUME_NOTHING = encode_request(Consume("nope", 0, 0))

NOT_FOUND = "746f706963206e6f7420666f756e643a206e6f7065"
CONTRACT_ERROR = f"af01ff010000001b 00 0018 453a20 {NOT_FOUND}"
DEPLOYED_ERROR = f"af01ff010000001b 00000001 0015 {NOT_FOUND}"


def hexed(data: str) -> str:
    return bytes.fromhex(data).hex(" ")


async def sent(talk: Conversation, request: bytes) -> str:
    """The whole reply to a request, header and all."""
    reply = await talk.ask(request)
    return frame(reply.opcode, reply.payload).hex(" ")


def speaking(broker: Broker, clock: ManualClock, node: Node, dialect: Dialect) -> Conversation:
    return Conversation(FlyMQ(broker, clock=clock, node=node, dialect=dialect))


# --- errors ---


@pytest.mark.parametrize(
    ("dialect", "before", "expected"),
    [
        (Dialect.AUTO, [], CONTRACT_ERROR),
        (Dialect.AUTO, [FETCH], CONTRACT_ERROR),
        (Dialect.AUTO, [SUBSCRIBE], CONTRACT_ERROR),
        (Dialect.AUTO, [encode_request(ListTopics())], CONTRACT_ERROR),
        (Dialect.AUTO, [FETCH_FILTERED], DEPLOYED_ERROR),
        (Dialect.AUTO, [SUBSCRIBE_NARROW], DEPLOYED_ERROR),
        (Dialect.AUTO, [CLUSTER_METADATA], DEPLOYED_ERROR),
        (Dialect.AUTO, [COMPRESSED], DEPLOYED_ERROR),
        (Dialect.AUTO, [FETCH_FILTERED, FETCH], CONTRACT_ERROR),
        (Dialect.AUTO, [FETCH, FETCH_FILTERED], DEPLOYED_ERROR),
        (Dialect.SPEC, [FETCH_FILTERED], CONTRACT_ERROR),
        (Dialect.NATIVE, [], DEPLOYED_ERROR),
        (Dialect.NATIVE, [FETCH], DEPLOYED_ERROR),
    ],
)
async def test_an_error_has_the_form_of_the_dialect_that_the_connection_speaks(
    broker: Broker, clock: ManualClock, node: Node, dialect: Dialect, before: list[bytes], expected: str
) -> None:
    await broker.topics.ensure(SYSTEM, "orders")
    talk = speaking(broker, clock, node, dialect)
    for request in before:
        assert (await talk.ask(request)).opcode != ERROR
    assert await sent(talk, CONSUME_NOTHING) == hexed(expected)


@pytest.mark.parametrize("request_bytes", [encode_request(Fetch("nope", 0, 0, 1, "")), CONSUME_NOTHING])
async def test_the_request_that_shows_the_dialect_is_refused_in_it(talk: Conversation, request_bytes: bytes) -> None:
    shows = request_bytes != CONSUME_NOTHING
    assert await sent(talk, request_bytes) == hexed(DEPLOYED_ERROR if shows else CONTRACT_ERROR)


async def test_every_kind_of_error_has_the_deployed_form(broker: Broker, clock: ManualClock, node: Node) -> None:
    await broker.topics.create(SYSTEM, "orders", TopicConfig(partitions=1))
    talk = speaking(broker, clock, node, Dialect.NATIVE)
    refused = {
        "a request that does not decode": frame(Consume.opcode, b"\0"),
        "an unknown opcode": frame(0x99),
        "a produce": encode_produce("orders", b"x", partition=7),
        "an unknown transaction": encode_txn_produces("nobody", "orders", [b"x"]),
        "bad gzip": HEADER.pack(MAGIC, VERSION, ListTopics.opcode, 0x03, 1) + b"x",
    }
    for name, request in refused.items():
        reply = await talk.ask(request)
        assert reply.opcode == ERROR, name
        assert reply.payload[:4] == b"\0\0\0\x01", name
        assert deployed.go_error(reply.payload) == deployed.python_error(reply.payload) == reply.error, name


async def test_records_of_a_transaction_are_refused_one_by_one_in_the_deployed_form(
    broker: Broker, clock: ManualClock, node: Node
) -> None:
    await broker.topics.create(SYSTEM, "orders", TopicConfig(partitions=1))
    talk = speaking(broker, clock, node, Dialect.NATIVE)
    transaction = decode_reply(TxnCommit, (await talk.ask(encode_request(TxnBegin()))).payload)[0]
    add_to = encode_txn_produces
    talk.say(add_to(transaction, "orders", [b"a"]), add_to(transaction, "orders", [b"b"], partition=7))
    added, refused = await talk.replies(2)
    assert added.opcode == TxnProduce.opcode
    assert deployed.go_error(refused.payload) == deployed.python_error(refused.payload) == refused.error
    assert refused.error.startswith("partition 7 not found")


async def test_pipelined_requests_are_refused_in_the_dialect_shown_before_each(talk: Conversation) -> None:
    talk.say(CONSUME_NOTHING, encode_request(Fetch("nope", 0, 0, 1, "")), CONSUME_NOTHING)
    payloads = [reply.payload for reply in await talk.replies(3)]
    assert [payload[:4] == b"\0\0\0\x01" for payload in payloads] == [False, True, True]
    assert [decode_error(payload) for payload in payloads] == ["topic not found: nope"] * 3


async def test_a_frame_in_pieces_shows_its_dialect_when_it_is_whole(talk: Conversation) -> None:
    request = encode_request(Fetch("nope", 0, 0, 1, "")) + CONSUME_NOTHING
    for at in range(len(request)):
        talk.say(request[at : at + 1])
    assert [reply.payload[:4] for reply in await talk.replies(2)] == [b"\0\0\0\x01"] * 2


@pytest.mark.parametrize("message", ["topic not found: nope", "E: twice", "", "é" * 3000])
def test_our_client_reads_both_forms_of_an_error_exactly(message: str) -> None:
    for native in (True, False):
        assert decode_error(encode_error(message, native=native)[8:]) == message


@pytest.mark.parametrize("message", ["topic not found: nope", "EOF", "x", "é" * 3000])
def test_deployed_clients_read_the_deployed_form_exactly(message: str) -> None:
    payload = encode_error(message, native=True)[8:]
    assert deployed.go_error(payload) == deployed.python_error(payload) == message
    assert deployed.contract_error(encode_error(message)[8:]) == "E: " + message


# --- logging in ---

BOB = "626f62"
ROLES_WIDE = f"00000002 0008 {b'consumer'.hex()} 0008 {b'producer'.hex()}"
ROLES_NARROW = f"00000002 08 {b'consumer'.hex()} 08 {b'producer'.hex()}"
REASON = b"invalid username or password".hex()

CONTRACT_YES = f"af01710100000020 01 0000 0003 {BOB} {ROLES_WIDE}"
CONTRACT_NO = f"af01710100000025 00 001c {REASON} 0000 00000000"
DEPLOYED_YES = f"af0171010000001e 01 0003 {BOB} {ROLES_NARROW} 0000"
DEPLOYED_NO = f"af01710100000025 00 0000 00000000 001c {REASON}"
EITHER_YES = f"af0171010000001d 01 0000 0000 {ROLES_WIDE}"
EITHER_NO = f"af01710100002081 00 001c {REASON} 00000000 001e 2020 {REASON} " + "00" * (0x2020 - 28 + 29 * 2)


@pytest.fixture
async def guarded(engine: Engine, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = broker_with_users(engine, clock)
    await broker.start()
    await user(broker, "bob", "consumer", "producer")
    await broker.topics.create(SYSTEM, "orders", TopicConfig())
    yield broker
    await broker.close()


@pytest.mark.parametrize(
    ("dialect", "before", "accepted", "refused"),
    [
        (Dialect.AUTO, [], EITHER_YES, EITHER_NO),
        (Dialect.AUTO, [encode_request(ListTopics()), encode_request(Whoami())], EITHER_YES, EITHER_NO),
        (Dialect.AUTO, [FETCH], CONTRACT_YES, CONTRACT_NO),
        (Dialect.AUTO, [SUBSCRIBE], CONTRACT_YES, CONTRACT_NO),
        (Dialect.AUTO, [FETCH_FILTERED], DEPLOYED_YES, DEPLOYED_NO),
        (Dialect.AUTO, [SUBSCRIBE_NARROW], DEPLOYED_YES, DEPLOYED_NO),
        (Dialect.AUTO, [CLUSTER_METADATA], DEPLOYED_YES, DEPLOYED_NO),
        (Dialect.AUTO, [COMPRESSED], DEPLOYED_YES, DEPLOYED_NO),
        (Dialect.AUTO, [FETCH, FETCH_FILTERED], DEPLOYED_YES, DEPLOYED_NO),
        (Dialect.AUTO, [FETCH_FILTERED, FETCH], CONTRACT_YES, CONTRACT_NO),
        (Dialect.SPEC, [], CONTRACT_YES, CONTRACT_NO),
        (Dialect.SPEC, [FETCH_FILTERED], CONTRACT_YES, CONTRACT_NO),
        (Dialect.NATIVE, [], DEPLOYED_YES, DEPLOYED_NO),
        (Dialect.NATIVE, [FETCH], DEPLOYED_YES, DEPLOYED_NO),
    ],
)
async def test_a_login_is_answered_in_the_layout_of_the_dialect(
    guarded: Broker,
    clock: ManualClock,
    node: Node,
    dialect: Dialect,
    before: list[bytes],
    accepted: str,
    refused: str,
) -> None:
    flymq = FlyMQ(guarded, clock=clock, node=node, principal=UNAUTHENTICATED, dialect=dialect)
    talk = Conversation(flymq)
    for request in before:
        await talk.ask(request)
    assert await sent(talk, encode_request(Auth("bob", "guess"))) == hexed(refused)
    assert await sent(talk, encode_request(Auth("bob", "bob"))) == hexed(accepted)


async def test_logins_and_errors_in_one_read_follow_what_was_shown_before_each(
    guarded: Broker, clock: ManualClock, node: Node
) -> None:
    talk = Conversation(FlyMQ(guarded, clock=clock, node=node, principal=UNAUTHENTICATED))
    login, no_topic = encode_request(Auth("bob", "bob")), encode_request(Fetch("nope", 0, 0, 1, ""))
    talk.say(login, CONSUME_NOTHING, no_topic, login, CONSUME_NOTHING, FETCH, login, CONSUME_NOTHING)
    sent_frames = [frame(*reply).hex(" ") for reply in await talk.replies(8)]
    expected = (EITHER_YES, CONTRACT_ERROR, DEPLOYED_ERROR, DEPLOYED_YES, DEPLOYED_ERROR, CONTRACT_YES, CONTRACT_ERROR)
    assert [*sent_frames[:5], *sent_frames[6:]] == [hexed(each) for each in expected]


def test_readers_of_both_layouts_understand_a_login_before_the_dialect_is_known() -> None:
    accepted = bytes.fromhex(EITHER_YES)[8:]
    assert deployed.contract_login(accepted) == (True, "", ["consumer", "producer"], "")
    assert deployed.narrow_login(accepted)[:3] == (True, "", [])
    refused = bytes.fromhex(EITHER_NO)[8:]
    reason = "invalid username or password"
    success, name, roles, error = deployed.contract_login(refused)
    assert (success, name, error) == (False, "", reason)
    assert roles[1:] == [""] * (len(reason) + 1)
    assert deployed.narrow_login(refused) == (False, reason, [], "  " + reason)
    assert decode_refusal(refused) == reason


@pytest.mark.parametrize("roles", [[], ["a"], ["é", "ü", "ö"], ["admin", "größe", "x"], ["r" * 64] * 64, ["é"] * 64])
def test_any_roles_are_no_obstacle_to_a_login(roles: list[str]) -> None:
    payload = encode_authenticated("bob", roles, native=None)[8:]
    assert deployed.narrow_login(payload)[:3] == (True, "", [])
    assert deployed.contract_login(payload) == (True, "", [role for role in roles if role.isascii()], "")


@pytest.mark.parametrize("reason", ["x", "é" * 100, "too many failed attempts: wait 30 s"])
def test_any_reason_is_found_by_readers_of_both_layouts(reason: str) -> None:
    payload = encode_not_authenticated(reason, native=None)[8:]
    assert deployed.contract_login(payload).error == reason
    assert deployed.narrow_login(payload).error.strip() == reason
    assert decode_refusal(payload) == reason


# --- who am I ---


@pytest.mark.parametrize(
    "roles", [[], ["admin"], ["consumer", "größe", "r" * 64], [f"role-{row}" for row in range(64)]]
)
def test_all_deployed_clients_find_the_roles_of_the_user(roles: list[str]) -> None:
    payload = encode_reply(Whoami, LoginState.of("bob", roles, ["read", "write"]))[8:]
    success, name, narrow_roles, error = deployed.narrow_login(payload)
    assert (success, name, error) == (True, "bob", "")
    assert list(filter(None, narrow_roles)) == roles
    blanks = [""] * len(roles)
    assert deployed.wide_identity(payload) == (True, "bob", roles + blanks, ["read", "write"])
    assert decode_reply(Whoami, payload) == LoginState(True, "bob", roles + blanks, ["read", "write"])


def test_no_one_has_no_roles_to_any_client() -> None:
    payload = encode_reply(Whoami, LoginState.of("", [], []))[8:]
    assert deployed.narrow_login(payload) == (False, "", [], "")
    assert deployed.wide_identity(payload) == (False, "", [], [])


async def test_a_deployed_command_line_that_logs_in_shows_roles(
    guarded: Broker, clock: ManualClock, node: Node
) -> None:
    talk = Conversation(FlyMQ(guarded, clock=clock, node=node, principal=UNAUTHENTICATED))
    for _ in range(2):  # once with the connection, once more as a command
        assert deployed.narrow_login((await talk.ask(encode_request(Auth("bob", "bob")))).payload).success
    who = deployed.narrow_login((await talk.ask(encode_request(Whoami()))).payload)
    assert (who.user, list(filter(None, who.roles))) == ("bob", ["consumer", "producer"])


# --- over a socket ---


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_deployed_go_client_is_served_byte_by_byte(tls: bool, tmp_path: Path) -> None:
    authority = trustme.CA()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    listener: dict[str, object] = {"auth": "required"} | ({"tls": {"cert": cert, "key": key}} if tls else {})
    with RunningBroker(dev=True, listeners={"flymq": listener}) as broker:
        host, _, port = broker.address.rpartition(":")
        with ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            if tls:
                context = ssl.create_default_context()
                authority.configure_trust(context)
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
            replies_in = stack.enter_context(connection.makefile("rb"))

            def ask(request: bytes) -> str:
                # Go clients write header and payload one after the other.
                connection.sendall(request[:8])
                connection.sendall(request[8:])
                header = replies_in.read(8)
                return (header + replies_in.read(int.from_bytes(header[4:]))).hex(" ")

            admin = b"admin".hex()
            assert ask(encode_request(Auth("admin", "guess"))) == hexed(EITHER_NO)
            assert ask(encode_request(Auth("admin", "admin"))) == hexed(
                f"af01710100000010 01 0000 0000 00000001 0005 {admin}"
            )
            permissions = f"00000003 0004 {b'read'.hex()} 0005 {b'write'.hex()} 0005 {admin}"
            assert ask(encode_request(Whoami())) == hexed(
                f"af0172010000002d 01 0005 {admin} 00000002 0005 {admin} 0000 {permissions}"
            )
            assert ask(CONSUME_NOTHING) == hexed(CONTRACT_ERROR)
            assert ask(encode_request(Fetch("nope", 0, 0, 1, ""))) == hexed(DEPLOYED_ERROR)
            assert ask(CONSUME_NOTHING) == hexed(DEPLOYED_ERROR)
            assert ask(encode_request(Auth("admin", "admin"))) == hexed(
                f"af01710100000014 01 0005 {admin} 00000001 05 {admin} 0000"
            )

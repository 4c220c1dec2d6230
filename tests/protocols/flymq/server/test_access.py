"""Logging in and administering over FlyMQ, against a real broker that asks who is there."""

from __future__ import annotations

import csv
import io
import json

import pytest

from penstock.broker.access.checks import SYSTEM, UNAUTHENTICATED, Principal
from penstock.broker.broker import Broker
from penstock.log.api import TopicConfig
from penstock.protocols.flymq.codec.record_layouts import encode_produce
from penstock.protocols.flymq.operations.access import (
    AclDelete,
    AclDescription,
    AclEntry,
    AclGet,
    AclList,
    Acls,
    AclSet,
    AuditExport,
    AuditQuery,
    Auth,
    LoginState,
    PasswordChange,
    RoleDelete,
    RoleList,
    RoleSet,
    UserCreate,
    UserDelete,
    UserDescription,
    UserGet,
    UserList,
    UserUpdate,
    Whoami,
    decode_authenticated,
    decode_refusal,
    encode_authenticated,
)
from penstock.protocols.flymq.operations.operation import decode_reply, encode_reply, encode_request
from penstock.protocols.flymq.operations.records import (
    Fetch,
)
from penstock.protocols.flymq.operations.topics import (
    ClusterJoin,
    ClusterLeave,
    ClusterMetadata,
    ClusterState,
    ClusterStatus,
    ListTopics,
)
from penstock.protocols.flymq.server.dispatch import Dialect, Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.flymq.wire import frame
from penstock.testing.clock import START_MS, ManualClock
from tests.broker.accounts import user
from tests.broker.producing import produce
from tests.protocols.flymq.conversation import Conversation
from tests.protocols.flymq.server.access_fixtures import broker, flymq, logged_in, root

__all__ = ["broker", "flymq", "root"]

START_S = START_MS // 1000


# --- logging in ---


async def test_a_connection_is_who_last_logged_in_on_it(flymq: FlyMQ) -> None:
    talk = Conversation(flymq)
    fetch, produced = encode_request(Fetch("orders", 0, 0, 1)), encode_produce("orders", b"x")
    assert (await talk.ask(fetch)).error == "authentication required: log in to read topic orders"
    assert (await talk.ask(encode_request(Whoami()))) == (0x72, bytes(11))
    await talk.ask(encode_request(Auth("bob", "bob")))
    assert (await talk.ask(fetch)).opcode == 0x07
    assert (await talk.ask(produced)).error == "unauthorized: bob may not write topic orders"
    who = await talk.ask(encode_request(Whoami()))
    assert decode_reply(Whoami, who.payload) == LoginState.of("bob", ["consumer"], ["read"])
    await talk.ask(encode_request(Auth("root", "wrong")))
    assert (await talk.ask(produced)).error.startswith("unauthorized"), "a failed login changes nothing"
    await talk.ask(encode_request(Auth("root", "root")))
    assert (await talk.ask(produced)).opcode == 0x01
    assert (await Conversation(flymq).ask(fetch)).error.startswith("authentication required")


async def test_requests_behind_a_login_in_one_read_are_its_users(flymq: FlyMQ) -> None:
    talk = Conversation(flymq)
    talk.say(
        encode_produce("orders", b"early"),
        encode_request(Auth("root", "root")),
        encode_produce("orders", b"x"),
        encode_request(Fetch("orders", 0, 0, 9)),
    )
    early, login, produced, fetched = await talk.replies(4)
    assert early.error.startswith("authentication required")
    assert (login.opcode, produced.opcode, fetched.opcode) == (0x71, 0x01, 0x07)
    assert b"early" not in fetched.payload


async def test_credentials_that_do_not_decode_say_so(flymq: FlyMQ) -> None:
    error = (await Conversation(flymq).ask(frame(Auth.opcode, b"\0\x05a"))).error
    assert error.startswith("invalid auth request: buffer too small")


async def test_without_authentication_every_login_succeeds_and_changes_nothing(
    broker: Broker, clock: ManualClock, node: Node
) -> None:
    talk = Conversation(FlyMQ(broker, clock=clock, node=node))
    reply = await talk.ask(encode_request(Auth("whoever", "whatever")))
    assert reply == (0x71, encode_authenticated("whoever", [], native=None)[8:])
    assert (await talk.ask(encode_request(Whoami()))) == (0x72, bytes(11))
    assert (await talk.ask(encode_produce("orders", b"x"))).opcode == 0x01


async def test_a_certificate_says_who_is_asking_and_the_user_of_that_name_what_it_may(
    broker: Broker, flymq: FlyMQ
) -> None:
    talk = Conversation(flymq)
    talk.connection.principal_hint = "CN=billing"
    talk.session = flymq(talk.connection)
    fetch = encode_request(Fetch("orders", 0, 0, 1))
    assert (await talk.ask(fetch)).error.startswith("authentication required: there is no user CN=billing")
    await user(broker, "CN=billing", "consumer")
    assert (await talk.ask(fetch)).opcode == 0x07
    assert (await talk.ask(encode_produce("orders", b"x"))).error.startswith("unauthorized")


@pytest.mark.parametrize("roles", [[], ["admin"], ["guest", "consumer"], ["z" * 64] * 3, ["ab" * 20, "c"]])
def test_an_identity_is_long_enough_for_clients_that_misread_role_names(roles: list[str]) -> None:
    payload = encode_reply(Whoami, LoginState.of("ann", roles, ["read"]))[8:]
    assert decode_reply(Whoami, payload) == LoginState.of("ann", roles, ["read"])
    # As a deployed Go client reads it: role names behind one byte, then an error text behind two.
    position = 1 + 2 + len("ann")
    count = int.from_bytes(payload[position : position + 4])
    position += 4
    for _ in range(count):
        position += 1 + payload[position]
    error_bytes = int.from_bytes(payload[position : position + 2])
    assert position + 2 + error_bytes <= len(payload)


# --- users and roles ---


async def test_users_are_administered_as_deployed_clients_do(root: Conversation, clock: ManualClock) -> None:
    created = await root.ask(encode_request(UserCreate("eve", "secret", roles=["producer"])))
    assert decode_reply(UserGet, created.payload) == UserDescription("eve", ["producer"], [], True, 0, 0)
    clock.advance(5)
    updated = await root.ask(encode_request(UserUpdate("eve", roles=[], enabled=False)))
    assert updated == (0x75, b"\x01\0\x03eve")
    got = await root.ask(encode_request(UserGet("eve")))
    assert decode_reply(UserGet, got.payload) == UserDescription(
        "eve", ["producer"], ["write"], False, START_S, START_S + 5
    )
    await root.ask(encode_request(UserUpdate("eve", roles=["consumer"])))
    listed = decode_reply(UserList, (await root.ask(frame(UserList.opcode))).payload)
    assert [(each.user, each.roles, each.permissions, each.enabled) for each in listed] == [
        ("bob", ["consumer"], [], True),
        ("eve", ["consumer"], [], False),
        ("root", ["admin"], [], True),
    ]
    assert await root.ask(encode_request(UserDelete("eve"))) == (0x74, b"\x01\0\x03eve")


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (encode_request(UserCreate("", "x")), "username and password are required"),
        (encode_request(UserCreate("eve", "")), "username and password are required"),
        (encode_request(UserCreate("bob", "x")), 'user "bob" already exists'),
        (encode_request(UserUpdate("x", roles=["admin"])), 'user "x" not found'),
        (encode_request(UserUpdate("bob", "new")), "USER_UPDATE changes roles"),
        (encode_request(PasswordChange("x", "new")), 'user "x" not found'),
        (encode_request(PasswordChange("root", "new", "bad")), "invalid current password"),
        (encode_request(UserGet("x")), 'user "x" not found'),
        (encode_request(UserDelete("eve")), 'user "eve" not found'),
        (encode_request(UserDelete("root")), "cannot delete your own account"),
        (
            encode_request(AclSet("orders", True, [], [])),
            "cannot make topic public because anonymous access is disabled in server configuration",
        ),
        (encode_request(RoleSet("admin", [], "")), "role admin is built in"),
        (encode_request(AuditExport(AuditQuery(), "xml", own_client=True)), "events are exported as json or csv"),
    ],
)
async def test_what_cannot_be_done_is_said_in_the_words_deployed_clients_know(
    root: Conversation, request_: bytes, error: str
) -> None:
    assert (await root.ask(request_)).error.removeprefix("invalid request: ").startswith(error)


async def test_passwords_are_changed_by_their_owner_and_by_administrators(flymq: FlyMQ, root: Conversation) -> None:
    bob = await logged_in(flymq, "bob")
    for name in ("bob", ""):
        changed = await bob.ask(encode_request(PasswordChange(name, "bob", "bob")))
        assert changed.opcode == 0x7C
    refused = await bob.ask(encode_request(PasswordChange("root", "stolen")))
    assert refused.error == "unauthorized: bob may not admin this broker"
    assert (await root.ask(encode_request(PasswordChange("bob", "new")))) == (
        0x7C,
        b"\x01\0\x03bob",
    )
    assert not decode_authenticated((await bob.ask(encode_request(Auth("bob", "bob")))).payload)
    assert decode_authenticated((await bob.ask(encode_request(Auth("bob", "new")))).payload)


async def test_a_user_that_is_disabled_or_deleted_is_shut_out_at_once(flymq: FlyMQ, root: Conversation) -> None:
    bob = await logged_in(flymq, "bob")
    await root.ask(encode_request(UserUpdate("bob", enabled=False)))
    assert (await bob.ask(encode_request(ListTopics()))).error == "user account is disabled"
    refused = await bob.ask(encode_request(Auth("bob", "bob")))
    assert decode_refusal(refused.payload) == "user account is disabled"
    await root.ask(encode_request(UserDelete("bob")))
    assert (await bob.ask(encode_request(ListTopics()))).error.startswith(
        "authentication required: there is no user bob"
    )


async def test_roles_are_listed_made_and_deleted(root: Conversation) -> None:
    assert (await root.ask(encode_request(RoleSet("ops", ["read", "create"], "they")))) == (0xC1, b"\x01\0\x03ops")
    listed = decode_reply(RoleList, (await root.ask(frame(RoleList.opcode))).payload)
    assert [(each.role, each.permissions) for each in listed] == [
        ("admin", ["read", "write", "admin"]),
        ("producer", ["write"]),
        ("consumer", ["read"]),
        ("guest", []),
        ("ops", ["read", "create"]),
    ]
    assert (await root.ask(encode_request(RoleDelete("ops")))) == (0xC2, b"\x01\0\x03ops")


# --- ACLs ---


async def test_acls_are_set_shown_and_deleted(root: Conversation, flymq: FlyMQ) -> None:
    bob = await logged_in(flymq, "bob")
    produced = encode_produce("orders", b"x")
    assert (await bob.ask(produced)).error.startswith("unauthorized")
    assert await root.ask(encode_request(AclSet("ord*", False, ["bob"], ["guest"]))) == (0x78, b"\x01\0\x04ord*")
    assert (await bob.ask(produced)).opcode == 0x01
    got = decode_reply(AclGet, (await root.ask(encode_request(AclGet("ord*")))).payload)
    assert got == AclDescription("ord*", True, False, False, ["bob"], ["guest"])
    none = decode_reply(AclGet, (await root.ask(encode_request(AclGet("orders")))).payload)
    assert none == AclDescription("orders", False, False, False, [], [])
    listed = await root.ask(frame(AclList.opcode))
    assert decode_reply(AclList, listed.payload) == Acls([AclEntry("ord*", True, False, ["bob"], ["guest"])], False)
    assert listed.payload[-1] == 0
    assert await root.ask(encode_request(AclDelete("ord*"))) == (0x7A, b"\x01\0\x04ord*")
    assert (await root.ask(encode_request(AclDelete("ord*")))).opcode == 0x7A
    assert (await bob.ask(produced)).error.startswith("unauthorized")


# --- the audit trail ---


async def test_the_trail_is_queried_page_by_page(root: Conversation, broker: Broker, clock: ManualClock) -> None:
    clock.advance(100)
    for number in range(5):
        await broker.topics.create(Principal("ann", frozenset({"admin"})), f"t{number}", TopicConfig())
    await broker.audit.written()
    query = AuditQuery(start_s=START_S + 100, types=["topic.create"], limit=2)
    first = decode_reply(AuditQuery, (await root.ask(encode_request(query))).payload)
    assert ([event.resource for event in first.events], first.total, first.more) == (["t4", "t3"], 5, True)
    assert first.events[0].details == {"partitions": "1"}
    query.offset = 4
    last = decode_reply(AuditQuery, (await root.ask(encode_request(query))).payload)
    assert ([event.resource for event in last.events], last.total, last.more) == (["t0"], 5, False)
    query.end_s = START_S
    query.start_s = 1
    assert decode_reply(AuditQuery, (await root.ask(encode_request(query))).payload).total == 1, "orders"


async def test_the_trail_is_exported_as_json_and_as_csv(root: Conversation, broker: Broker) -> None:
    broker.audit.note(Principal("=cmd()"), "topic.create", "a,b", details={"why": 'x"y'})
    await broker.audit.written()
    query = AuditQuery(types=["topic.create"], resource="a,b")
    data = decode_reply(
        AuditExport, (await root.ask(encode_request(AuditExport(query, "json", own_client=True)))).payload
    ).data
    [event] = json.loads(data)
    assert (event["user"], event["resource"], event["details"]) == ("=cmd()", "a,b", {"why": 'x"y'})
    data = decode_reply(
        AuditExport, (await root.ask(encode_request(AuditExport(query, "csv", own_client=True)))).payload
    ).data
    [row] = csv.DictReader(io.StringIO(data.decode()))
    assert (row["user"], row["resource"], row["details"]) == ("'=cmd()", "a,b", '{"why":"x\\"y"}')


EXPORTED_JSON = b"""[
  {
    "id": "3",
    "timestamp": "2023-11-14T22:13:27.120000Z",
    "type": "topic.create",
    "user": "=cmd()",
    "client_ip": "192.0.2.7",
    "resource": "a,b",
    "action": "create",
    "result": "success",
    "details": {
      "why": "x\\"y"
    },
    "node_id": "node-1"
  }
]"""
EXPORTED_CSV = b"""ID,Timestamp,Type,User,ClientIP,Resource,Action,Result,NodeID,Details
3,2023-11-14T22:13:27Z,topic.create,'=cmd(),192.0.2.7,"a,b",create,success,node-1,"{""why"":""x\\""y""}"
"""


@pytest.mark.dense
@pytest.mark.parametrize(
    ("dialect", "shown_by", "own_client", "native"),
    [
        (Dialect.AUTO, None, False, True),
        (Dialect.AUTO, None, True, False),
        (Dialect.AUTO, encode_request(Fetch("orders", 0, 0, 1, "")), True, True),
        (Dialect.AUTO, encode_request(Fetch("orders", 0, 0, 1)), False, False),
        (Dialect.NATIVE, None, True, True),
        (Dialect.SPEC, None, False, False),
        (Dialect.SPEC, encode_request(Fetch("orders", 0, 0, 1, "")), False, False),
    ],
)
async def test_deployed_clients_export_the_trail_in_the_format_of_their_own_broker(
    broker: Broker,
    clock: ManualClock,
    node: Node,
    dialect: Dialect,
    shown_by: bytes | None,
    own_client: bool,
    native: bool,
) -> None:
    clock.advance(7.12)
    broker.audit.note(Principal("=cmd()", address="192.0.2.7:5000"), "topic.create", "a,b", details={"why": 'x"y'})
    await broker.audit.written()
    talk = await logged_in(FlyMQ(broker, clock=clock, node=node, principal=UNAUTHENTICATED, dialect=dialect), "root")
    if shown_by is not None:
        await talk.ask(shown_by)

    async def export(form: str) -> bytes:
        request = encode_request(AuditExport(AuditQuery(types=["topic.create"], resource="a,b"), form, own_client=True))
        asked = request if own_client else frame(AuditExport.opcode, request[8:-1])
        return decode_reply(AuditExport, (await talk.ask(asked)).payload).data

    if native:
        assert await export("json") == EXPORTED_JSON
        assert await export("csv") == EXPORTED_CSV
    else:
        [event] = json.loads(await export("json"))
        assert (event["ts_ms"], event["node"]) == (clock.now_ms(), "node-1")
        assert (await export("csv")).startswith(b"id,ts_ms,type,user,client_ip,resource,action,result,node,details\n")


async def test_an_export_of_nothing_is_an_empty_list(root: Conversation) -> None:
    await root.ask(encode_request(ClusterMetadata()))
    request = encode_request(AuditExport(AuditQuery(resource="nothing"), "json", own_client=True))
    assert decode_reply(AuditExport, (await root.ask(request)).payload).data == b"[]"


async def test_a_page_of_events_fits_into_one_frame(root: Conversation, broker: Broker) -> None:
    for number in range(9_000):
        broker.audit.note(Principal("u"), f"type.{number}", details=dict.fromkeys("abcd", "d" * 1_000))
    await broker.audit.written()
    query = AuditQuery(user="u", limit=10_000)
    reply = await root.ask(encode_request(query))
    page = decode_reply(AuditQuery, reply.payload)
    assert len(reply.payload) < 32 << 20
    assert (page.total, page.more) == (9_000, True)
    for request in (encode_request(ListTopics()), encode_request(ClusterMetadata())):
        await root.ask(request)
        exported = await root.ask(encode_request(AuditExport(query, "json", own_client=True)))
        assert len(exported.payload) < 32 << 20


# --- the cluster ---


@pytest.mark.embedded
async def test_a_cluster_of_one_node_tells_what_it_is(root: Conversation, broker: Broker) -> None:
    status = decode_reply(ClusterStatus, (await root.ask(frame(ClusterStatus.opcode))).payload)
    assert status == ClusterState(
        "standalone", "node-1", [("node-1", "192.0.2.9:9092", "online")], topics=1, partitions=1, partitions_failed=0
    )
    await produce(broker, "orders", [b"x"], principal=SYSTEM)
    [orders] = decode_reply(ClusterMetadata, (await root.ask(encode_request(ClusterMetadata()))).payload).topics
    assert (orders.topic, [each.index for each in orders.partitions]) == ("orders", [0])


@pytest.mark.embedded
@pytest.mark.parametrize("request_", [encode_request(ClusterJoin("peer:9093")), frame(ClusterLeave.opcode)])
async def test_one_node_neither_joins_nor_leaves_and_says_what_would(root: Conversation, request_: bytes) -> None:
    error = (await root.ask(request_)).error
    assert error.startswith("not supported: this broker cannot")
    assert "the way to more nodes is the Kafka engine" in error

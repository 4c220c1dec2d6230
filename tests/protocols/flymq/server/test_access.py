"""Logging in and administering over FlyMQ, against a real broker that asks who is there."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from penstock.broker.access.audit import AuditQuery as BrokerQuery
from penstock.broker.access.checks import SYSTEM, UNAUTHENTICATED, Principal
from penstock.broker.broker import Broker
from penstock.log.api import TopicConfig
from penstock.log.embedded import EmbeddedEngine
from penstock.protocols.flymq.operations import groups
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
    KeyCreate,
    KeyList,
    KeyRevoke,
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
from penstock.protocols.flymq.operations.blocks import FetchBlocks, ReadPlan, TopicSpans
from penstock.protocols.flymq.operations.operation import OPERATIONS, decode_reply, encode_reply, encode_request
from penstock.protocols.flymq.operations.records import (
    CancelDelayed,
    Consume,
    ConsumeZeroCopy,
    Fetch,
    FetchBinary,
    FetchDlq,
    FetchRecords,
    Produce,
    ProduceDelayed,
    ProduceRecords,
    ProduceWithTtl,
    PurgeDlq,
    ReplayDlq,
)
from penstock.protocols.flymq.operations.schemas import (
    BindSchema,
    DeleteSchema,
    GetSchema,
    ListSchemas,
    ProduceWithSchema,
    RegisterSchema,
    SchemaReading,
    ValidateSchema,
)
from penstock.protocols.flymq.operations.spark import (
    BeginRun,
    PipelineList,
    PipelineReport,
    PipelineStop,
    Stage,
    StageAbort,
    StageCommit,
)
from penstock.protocols.flymq.operations.topics import (
    AddPartitions,
    AlterTopic,
    ClusterJoin,
    ClusterLeave,
    ClusterMetadata,
    ClusterState,
    ClusterStatus,
    Commit,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DescribeGroup,
    GetLag,
    GetOffset,
    ListGroups,
    ListTopics,
    Metadata,
    ResetOffset,
    SeekToTimestamp,
    SnapshotCreate,
    SnapshotRelease,
    Subscribe,
    TruncateTopic,
)
from penstock.protocols.flymq.operations.transactions import (
    TxnBegin,
    TxnCommit,
    TxnProduce,
    TxnRollback,
    encode_txn_produces,
)
from penstock.protocols.flymq.record_layouts import encode_produce
from penstock.protocols.flymq.server.dispatch import Dialect, Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.flymq.wire import ERROR, frame
from penstock.testing.clock import START_MS, ManualClock
from tests.broker.accounts import broker_with_users, user
from tests.broker.producing import produce
from tests.protocols.flymq.conversation import Conversation, Frame

START_S = START_MS // 1000


@pytest.fixture
async def broker(engine: EmbeddedEngine, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = broker_with_users(engine, clock)
    await broker.start()
    await user(broker, "root", "admin")
    await user(broker, "bob", "consumer")
    await broker.create_topic(SYSTEM, "orders", TopicConfig())
    yield broker
    await broker.close()


@pytest.fixture
async def flymq(broker: Broker, clock: ManualClock, node: Node) -> FlyMQ:
    return FlyMQ(broker, clock=clock, node=node, principal=UNAUTHENTICATED)


@pytest.fixture
async def root(flymq: FlyMQ) -> Conversation:
    return await logged_in(flymq, "root")


async def logged_in(flymq: FlyMQ, name: str) -> Conversation:
    talk = Conversation(flymq)
    reply = await talk.ask(encode_request(Auth(name, name)))
    assert decode_authenticated(reply.payload)
    return talk


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
        await broker.create_topic(Principal("ann", frozenset({"admin"})), f"t{number}", TopicConfig())
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


async def test_a_cluster_of_one_node_tells_what_it_is(root: Conversation, broker: Broker) -> None:
    status = decode_reply(ClusterStatus, (await root.ask(frame(ClusterStatus.opcode))).payload)
    assert status == ClusterState(
        "standalone", "node-1", [("node-1", "192.0.2.9:9092", "online")], topics=1, partitions=1, partitions_failed=0
    )
    await produce(broker, "orders", [b"x"], principal=SYSTEM)
    [orders] = decode_reply(ClusterMetadata, (await root.ask(encode_request(ClusterMetadata()))).payload).topics
    assert (orders.topic, [each.index for each in orders.partitions]) == ("orders", [0])


@pytest.mark.parametrize("request_", [encode_request(ClusterJoin("peer:9093")), frame(ClusterLeave.opcode)])
async def test_one_node_neither_joins_nor_leaves_and_says_what_would(root: Conversation, request_: bytes) -> None:
    error = (await root.ask(request_)).error
    assert error.startswith("not supported: this broker cannot")
    assert "the way to more nodes is the Kafka engine" in error


# --- every opcode, both ways ---


@dataclass(frozen=True)
class Attempt:
    """A request, and who of those who log in may make it."""

    request: bytes
    allowed: frozenset[str]


EVERYONE = frozenset({"root", "bob", "gus", "pam"})
READERS = frozenset({"root", "bob"})
WRITERS = frozenset({"root", "pam"})
KNOWING = frozenset({"root", "bob", "pam"})
ROOT = frozenset({"root"})
ATTEMPTS: dict[int, Attempt] = {
    Produce.opcode: Attempt(encode_produce("orders", b"x"), WRITERS),
    Consume.opcode: Attempt(encode_request(Consume("orders", 0, 0)), READERS),
    ConsumeZeroCopy.opcode: Attempt(
        frame(ConsumeZeroCopy.opcode, encode_request(Consume("orders", 0, 0))[8:]), READERS
    ),
    CreateTopic.opcode: Attempt(encode_request(CreateTopic("new", 1)), ROOT),
    Metadata.opcode: Attempt(encode_request(Metadata("orders")), KNOWING),
    Subscribe.opcode: Attempt(encode_request(Subscribe("orders", "g", 0, "latest")), READERS),
    Commit.opcode: Attempt(encode_request(Commit("orders", "g", 0, 1)), READERS),
    Fetch.opcode: Attempt(encode_request(Fetch("orders", 0, 0, 1)), READERS),
    FetchRecords.opcode: Attempt(encode_request(FetchRecords("orders", 0, 0, 1)), READERS),
    ProduceRecords.opcode: Attempt(encode_request(ProduceRecords("orders", [b"x"])), WRITERS),
    FetchBinary.opcode: Attempt(encode_request(FetchBinary("orders", 0, 0, 1)), READERS),
    ListTopics.opcode: Attempt(encode_request(ListTopics()), EVERYONE),
    DeleteTopic.opcode: Attempt(encode_request(DeleteTopic("orders")), ROOT),
    AlterTopic.opcode: Attempt(encode_request(AlterTopic("orders", [("retention_ms", "7d")])), ROOT),
    AddPartitions.opcode: Attempt(encode_request(AddPartitions("orders", 2)), ROOT),
    TruncateTopic.opcode: Attempt(encode_request(TruncateTopic("orders", -1, "end", 0)), ROOT),
    RegisterSchema.opcode: Attempt(encode_request(RegisterSchema("s", "json", b"{}")), ROOT),
    GetSchema.opcode: Attempt(encode_request(GetSchema("s", 0)), EVERYONE),
    ListSchemas.opcode: Attempt(encode_request(ListSchemas()), EVERYONE),
    ValidateSchema.opcode: Attempt(encode_request(ValidateSchema("s", b"{}")), EVERYONE),
    ProduceWithSchema.opcode: Attempt(
        encode_request(ProduceWithSchema("orders", [SchemaReading("s", b"{}")])), WRITERS
    ),
    DeleteSchema.opcode: Attempt(encode_request(DeleteSchema("s", 0)), ROOT),
    BindSchema.opcode: Attempt(encode_request(BindSchema("orders", "")), ROOT),
    FetchBlocks.opcode: Attempt(encode_request(FetchBlocks("orders", "", 0, 0, 1)), READERS),
    ReadPlan.opcode: Attempt(encode_request(ReadPlan([TopicSpans("orders", [])])), READERS),
    FetchDlq.opcode: Attempt(encode_request(FetchDlq("orders", 1)), READERS),
    ReplayDlq.opcode: Attempt(encode_request(ReplayDlq("orders", "gone")), WRITERS),
    PurgeDlq.opcode: Attempt(encode_request(PurgeDlq("orders")), ROOT),
    ProduceDelayed.opcode: Attempt(encode_request(ProduceDelayed("orders", b"x", 1000)), WRITERS),
    CancelDelayed.opcode: Attempt(encode_request(CancelDelayed("orders", "gone")), WRITERS),
    ProduceWithTtl.opcode: Attempt(encode_request(ProduceWithTtl("orders", b"x", 1000)), WRITERS),
    TxnBegin.opcode: Attempt(encode_request(TxnBegin()), WRITERS),
    TxnCommit.opcode: Attempt(encode_request(TxnCommit("gone")), WRITERS),
    TxnRollback.opcode: Attempt(encode_request(TxnRollback("gone")), WRITERS),
    TxnProduce.opcode: Attempt(encode_txn_produces("gone", "orders", [b"x"]), WRITERS),
    Stage.opcode: Attempt(encode_request(Stage("app", 1, 0, "a", 0, "orders", [])), WRITERS),
    StageCommit.opcode: Attempt(encode_request(StageCommit("app", 1, 0, [])), WRITERS),
    StageAbort.opcode: Attempt(encode_request(StageAbort("app", 1, 0)), WRITERS),
    BeginRun.opcode: Attempt(encode_request(BeginRun("app", "run", lasting=True)), WRITERS),
    ClusterJoin.opcode: Attempt(encode_request(ClusterJoin("peer")), ROOT),
    ClusterLeave.opcode: Attempt(frame(ClusterLeave.opcode), ROOT),
    ClusterStatus.opcode: Attempt(frame(ClusterStatus.opcode), EVERYONE),
    ClusterMetadata.opcode: Attempt(encode_request(ClusterMetadata("orders")), KNOWING),
    GetOffset.opcode: Attempt(encode_request(GetOffset("orders", "g", 0)), READERS),
    ResetOffset.opcode: Attempt(encode_request(ResetOffset("orders", "g", 0, "earliest")), READERS),
    ListGroups.opcode: Attempt(encode_request(ListGroups()), ROOT),
    DescribeGroup.opcode: Attempt(encode_request(DescribeGroup("orders", "g")), ROOT),
    GetLag.opcode: Attempt(encode_request(GetLag("orders", "g", 0)), READERS),
    DeleteGroup.opcode: Attempt(encode_request(DeleteGroup("orders", "g")), ROOT),
    0xDB: Attempt(encode_request(groups.GroupHeartbeat("g", "m", ["orders"], 1, "earliest", "", 1000, [])), READERS),
    0xDC: Attempt(encode_request(groups.GroupLeave("g", "m", ["orders"])), READERS),
    0xDD: Attempt(encode_request(groups.GroupCommit("g", "m", [groups.OwnedOffset("orders", 0, 1, 1)])), READERS),
    0xD6: Attempt(encode_request(groups.GroupList("", "")), ROOT),
    0xD7: Attempt(encode_request(groups.SubscriptionList("", "")), ROOT),
    SeekToTimestamp.opcode: Attempt(encode_request(SeekToTimestamp("orders", "", 0, 0)), READERS),
    UserCreate.opcode: Attempt(encode_request(UserCreate("new", "x")), ROOT),
    UserDelete.opcode: Attempt(encode_request(UserDelete("bob")), ROOT),
    UserUpdate.opcode: Attempt(encode_request(UserUpdate("bob", roles=["admin"])), ROOT),
    UserList.opcode: Attempt(frame(UserList.opcode), ROOT),
    UserGet.opcode: Attempt(encode_request(UserGet("bob")), ROOT),
    AclSet.opcode: Attempt(encode_request(AclSet("orders", False, ["gus"], [])), ROOT),
    AclGet.opcode: Attempt(encode_request(AclGet("orders")), ROOT),
    AclDelete.opcode: Attempt(encode_request(AclDelete("orders")), ROOT),
    AclList.opcode: Attempt(frame(AclList.opcode), ROOT),
    PasswordChange.opcode: Attempt(encode_request(PasswordChange("stranger", "x")), ROOT),
    RoleList.opcode: Attempt(frame(RoleList.opcode), EVERYONE),
    RoleSet.opcode: Attempt(encode_request(RoleSet("new", [], "")), ROOT),
    RoleDelete.opcode: Attempt(encode_request(RoleDelete("gone")), ROOT),
    AuditQuery.opcode: Attempt(encode_request(AuditQuery()), ROOT),
    KeyCreate.opcode: Attempt(encode_request(KeyCreate("new", [])), ROOT),
    KeyList.opcode: Attempt(frame(KeyList.opcode), ROOT),
    KeyRevoke.opcode: Attempt(encode_request(KeyRevoke("gone")), ROOT),
    PipelineReport.opcode: Attempt(encode_request(PipelineReport("p", "run", 1, "running", "", [])), READERS),
    PipelineList.opcode: Attempt(frame(PipelineList.opcode), EVERYONE),
    PipelineStop.opcode: Attempt(encode_request(PipelineStop("gone")), READERS),
    SnapshotCreate.opcode: Attempt(frame(SnapshotCreate.opcode), ROOT),
    SnapshotRelease.opcode: Attempt(encode_request(SnapshotRelease("0" * 32)), ROOT),
    AuditExport.opcode: Attempt(encode_request(AuditExport(AuditQuery(), "csv", own_client=True)), ROOT),
}
# Saying who one is comes before every check.
UNCHECKED = {Auth.opcode, Whoami.opcode}


def test_the_attempts_below_name_every_opcode() -> None:
    assert set(OPERATIONS) == set(ATTEMPTS) | UNCHECKED


def refused(reply: Frame) -> bool:
    return reply.opcode == ERROR and reply.error.startswith(("authentication required", "unauthorized"))


@pytest.mark.parametrize("opcode", ATTEMPTS, ids=lambda opcode: OPERATIONS[opcode].opcode_name)
async def test_every_opcode_is_open_to_who_may_and_to_nobody_else(opcode: int, broker: Broker, flymq: FlyMQ) -> None:
    attempt = ATTEMPTS[opcode]
    await user(broker, "gus", "guest")
    await user(broker, "pam", "producer")
    await user(broker, "stranger")
    await broker.commit_offset(SYSTEM, "orders", "g", 0, 0)
    assert refused(await Conversation(flymq).ask(attempt.request)), "nobody has logged in"
    for name in sorted(EVERYONE, key=lambda name: name in attempt.allowed):
        reply = await (await logged_in(flymq, name)).ask(attempt.request)
        assert refused(reply) is (name not in attempt.allowed), name
    await broker.audit.written()
    denied = await broker.audit.query(SYSTEM, BrokerQuery(types=["access.denied"]))
    assert denied.total == 1 + len(EVERYONE - attempt.allowed), "each of them is in the audit trail"

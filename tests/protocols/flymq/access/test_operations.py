"""Logging in and administering over FlyMQ, against a real broker that asks who is there."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from penstock.broker.access import SYSTEM, UNAUTHENTICATED, Principal
from penstock.broker.audit import AuditQuery
from penstock.broker.broker import Broker
from penstock.log.api import TopicConfig
from penstock.log.embedded import EmbeddedEngine
from penstock.protocols.flymq import request_encoding as encode
from penstock.protocols.flymq.access import replies
from penstock.protocols.flymq.access import requests as access
from penstock.protocols.flymq.access.messages import (
    AclDescription,
    AuditQueryRequest,
    ClusterState,
    Identity,
    UserDescription,
)
from penstock.protocols.flymq.blocks import layouts as blocks
from penstock.protocols.flymq.blocks.messages import TopicSpans
from penstock.protocols.flymq.keys.layouts import encode_key_create, encode_key_revoke
from penstock.protocols.flymq.lifetime import requests as lifetimes
from penstock.protocols.flymq.operations import Dialect, Node
from penstock.protocols.flymq.pipelines.layouts import encode_pipeline_report, encode_pipeline_stop
from penstock.protocols.flymq.pipelines.messages import PipelineReport
from penstock.protocols.flymq.reply_decoding import decode_cluster_metadata_reply
from penstock.protocols.flymq.schemas import requests as schemas
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.flymq.snapshots import layouts as snapshots
from penstock.protocols.flymq.staging import layouts as staging
from penstock.protocols.flymq.transactions import requests as transactions
from penstock.protocols.flymq.wire import Opcode, frame
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
    reply = await talk.ask(encode.encode_auth(name, name))
    assert replies.decode_authenticated(reply.payload)
    return talk


# --- logging in ---


async def test_a_connection_is_who_last_logged_in_on_it(flymq: FlyMQ) -> None:
    talk = Conversation(flymq)
    fetch, produced = encode.encode_fetch("orders", 0, 0, 1), encode.encode_produce("orders", b"x")
    assert (await talk.ask(fetch)).error == "authentication required: log in to read topic orders"
    assert (await talk.ask(encode.encode_whoami())) == (0x72, bytes(11))
    await talk.ask(encode.encode_auth("bob", "bob"))
    assert (await talk.ask(fetch)).opcode == 0x07
    assert (await talk.ask(produced)).error == "unauthorized: bob may not write topic orders"
    who = await talk.ask(encode.encode_whoami())
    assert replies.decode_identity(who.payload) == Identity("bob", ["consumer"], ["read"])
    await talk.ask(encode.encode_auth("root", "wrong"))
    assert (await talk.ask(produced)).error.startswith("unauthorized"), "a failed login changes nothing"
    await talk.ask(encode.encode_auth("root", "root"))
    assert (await talk.ask(produced)).opcode == 0x01
    assert (await Conversation(flymq).ask(fetch)).error.startswith("authentication required")


async def test_requests_behind_a_login_in_one_read_are_its_users(flymq: FlyMQ) -> None:
    talk = Conversation(flymq)
    talk.say(
        encode.encode_produce("orders", b"early"),
        encode.encode_auth("root", "root"),
        encode.encode_produce("orders", b"x"),
        encode.encode_fetch("orders", 0, 0, 9),
    )
    early, login, produced, fetched = await talk.replies(4)
    assert early.error.startswith("authentication required")
    assert (login.opcode, produced.opcode, fetched.opcode) == (0x71, 0x01, 0x07)
    assert b"early" not in fetched.payload


async def test_credentials_that_do_not_decode_say_so(flymq: FlyMQ) -> None:
    error = (await Conversation(flymq).ask(frame(Opcode.AUTH, b"\0\x05a"))).error
    assert error.startswith("invalid auth request: buffer too small")


async def test_without_authentication_every_login_succeeds_and_changes_nothing(
    broker: Broker, clock: ManualClock, node: Node
) -> None:
    talk = Conversation(FlyMQ(broker, clock=clock, node=node))
    reply = await talk.ask(encode.encode_auth("whoever", "whatever"))
    assert reply == (0x71, replies.encode_authenticated("whoever", [], native=None)[8:])
    assert (await talk.ask(encode.encode_whoami())) == (0x72, bytes(11))
    assert (await talk.ask(encode.encode_produce("orders", b"x"))).opcode == 0x01


async def test_a_certificate_says_who_is_asking_and_the_user_of_that_name_what_it_may(
    broker: Broker, flymq: FlyMQ
) -> None:
    talk = Conversation(flymq)
    talk.connection.principal_hint = "CN=billing"
    talk.session = flymq(talk.connection)
    fetch = encode.encode_fetch("orders", 0, 0, 1)
    assert (await talk.ask(fetch)).error.startswith("authentication required: there is no user CN=billing")
    await user(broker, "CN=billing", "consumer")
    assert (await talk.ask(fetch)).opcode == 0x07
    assert (await talk.ask(encode.encode_produce("orders", b"x"))).error.startswith("unauthorized")


@pytest.mark.parametrize("roles", [[], ["admin"], ["guest", "consumer"], ["z" * 64] * 3, ["ab" * 20, "c"]])
def test_an_identity_is_long_enough_for_clients_that_misread_role_names(roles: list[str]) -> None:
    payload = replies.encode_identity("ann", roles, ["read"])[8:]
    assert replies.decode_identity(payload) == Identity("ann", roles, ["read"])
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
    created = await root.ask(access.encode_user_request(Opcode.USER_CREATE, "eve", "secret", roles=["producer"]))
    assert replies.decode_user(created.payload) == UserDescription("eve", ["producer"], [], True, 0, 0)
    clock.advance(5)
    updated = await root.ask(access.encode_user_request(Opcode.USER_UPDATE, "eve", roles=[], enabled=False))
    assert updated == (0x75, b"\x01\0\x03eve")
    got = await root.ask(access.encode_named(Opcode.USER_GET, "eve"))
    assert replies.decode_user(got.payload) == UserDescription(
        "eve", ["producer"], ["write"], False, START_S, START_S + 5
    )
    await root.ask(access.encode_user_request(Opcode.USER_UPDATE, "eve", roles=["consumer"]))
    listed = replies.decode_users((await root.ask(frame(Opcode.USER_LIST))).payload)
    assert [(each.user, each.roles, each.permissions, each.enabled) for each in listed] == [
        ("bob", ["consumer"], [], True),
        ("eve", ["consumer"], [], False),
        ("root", ["admin"], [], True),
    ]
    assert await root.ask(access.encode_named(Opcode.USER_DELETE, "eve")) == (0x74, b"\x01\0\x03eve")


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (access.encode_user_request(Opcode.USER_CREATE, "", "x"), "username and password are required"),
        (access.encode_user_request(Opcode.USER_CREATE, "eve", ""), "username and password are required"),
        (access.encode_user_request(Opcode.USER_CREATE, "bob", "x"), 'user "bob" already exists'),
        (access.encode_user_request(Opcode.USER_UPDATE, "x", roles=["admin"]), 'user "x" not found'),
        (access.encode_user_request(Opcode.USER_UPDATE, "bob", "new"), "USER_UPDATE changes roles"),
        (access.encode_user_request(Opcode.PASSWORD_CHANGE, "x", "new"), 'user "x" not found'),
        (access.encode_user_request(Opcode.PASSWORD_CHANGE, "root", "new", "bad"), "invalid current password"),
        (access.encode_named(Opcode.USER_GET, "x"), 'user "x" not found'),
        (access.encode_named(Opcode.USER_DELETE, "eve"), 'user "eve" not found'),
        (access.encode_named(Opcode.USER_DELETE, "root"), "cannot delete your own account"),
        (
            access.encode_acl_set("orders", True, [], []),
            "cannot make topic public because anonymous access is disabled in server configuration",
        ),
        (access.encode_role_set("admin", [], ""), "role admin is built in"),
        (access.encode_audit_export(AuditQueryRequest(), "xml"), "events are exported as json or csv"),
    ],
)
async def test_what_cannot_be_done_is_said_in_the_words_deployed_clients_know(
    root: Conversation, request_: bytes, error: str
) -> None:
    assert (await root.ask(request_)).error.removeprefix("invalid request: ").startswith(error)


async def test_passwords_are_changed_by_their_owner_and_by_administrators(flymq: FlyMQ, root: Conversation) -> None:
    bob = await logged_in(flymq, "bob")
    for name in ("bob", ""):
        changed = await bob.ask(access.encode_user_request(Opcode.PASSWORD_CHANGE, name, "bob", "bob"))
        assert changed.opcode == 0x7C
    refused = await bob.ask(access.encode_user_request(Opcode.PASSWORD_CHANGE, "root", "stolen"))
    assert refused.error == "unauthorized: bob may not admin this broker"
    assert (await root.ask(access.encode_user_request(Opcode.PASSWORD_CHANGE, "bob", "new"))) == (
        0x7C,
        b"\x01\0\x03bob",
    )
    assert not replies.decode_authenticated((await bob.ask(encode.encode_auth("bob", "bob"))).payload)
    assert replies.decode_authenticated((await bob.ask(encode.encode_auth("bob", "new"))).payload)


async def test_a_user_that_is_disabled_or_deleted_is_shut_out_at_once(flymq: FlyMQ, root: Conversation) -> None:
    bob = await logged_in(flymq, "bob")
    await root.ask(access.encode_user_request(Opcode.USER_UPDATE, "bob", enabled=False))
    assert (await bob.ask(encode.encode_list_topics())).error == "user account is disabled"
    refused = await bob.ask(encode.encode_auth("bob", "bob"))
    assert replies.decode_refusal(refused.payload) == "user account is disabled"
    await root.ask(access.encode_named(Opcode.USER_DELETE, "bob"))
    assert (await bob.ask(encode.encode_list_topics())).error.startswith(
        "authentication required: there is no user bob"
    )


async def test_roles_are_listed_made_and_deleted(root: Conversation) -> None:
    assert (await root.ask(access.encode_role_set("ops", ["read", "create"], "they"))) == (0x7E, b"\x01\0\x03ops")
    listed = replies.decode_roles((await root.ask(frame(Opcode.ROLE_LIST))).payload)
    assert [(each.role, each.permissions) for each in listed] == [
        ("admin", ["read", "write", "admin"]),
        ("producer", ["write"]),
        ("consumer", ["read"]),
        ("guest", []),
        ("ops", ["read", "create"]),
    ]
    assert (await root.ask(access.encode_named(Opcode.ROLE_DELETE, "ops"))) == (0x7F, b"\x01\0\x03ops")


# --- ACLs ---


async def test_acls_are_set_shown_and_deleted(root: Conversation, flymq: FlyMQ) -> None:
    bob = await logged_in(flymq, "bob")
    produced = encode.encode_produce("orders", b"x")
    assert (await bob.ask(produced)).error.startswith("unauthorized")
    assert await root.ask(access.encode_acl_set("ord*", False, ["bob"], ["guest"])) == (0x78, b"\x01\0\x04ord*")
    assert (await bob.ask(produced)).opcode == 0x01
    got = replies.decode_acl((await root.ask(access.encode_named(Opcode.ACL_GET, "ord*"))).payload)
    assert got == AclDescription("ord*", True, False, ["bob"], ["guest"])
    none = replies.decode_acl((await root.ask(access.encode_named(Opcode.ACL_GET, "orders"))).payload)
    assert none == AclDescription("orders", False, False, [], [], default_public=False)
    listed = await root.ask(frame(Opcode.ACL_LIST))
    assert replies.decode_acls(listed.payload) == [got]
    assert listed.payload[-1] == 0
    assert await root.ask(access.encode_named(Opcode.ACL_DELETE, "ord*")) == (0x7A, b"\x01\0\x04ord*")
    assert (await root.ask(access.encode_named(Opcode.ACL_DELETE, "ord*"))).opcode == 0x7A
    assert (await bob.ask(produced)).error.startswith("unauthorized")


# --- the audit trail ---


async def test_the_trail_is_queried_page_by_page(root: Conversation, broker: Broker, clock: ManualClock) -> None:
    clock.advance(100)
    for number in range(5):
        await broker.create_topic(Principal("ann", frozenset({"admin"})), f"t{number}", TopicConfig())
    await broker.audit.written()
    query = AuditQueryRequest(start_s=START_S + 100, types=["topic.create"], limit=2)
    first = replies.decode_audit((await root.ask(access.encode_audit_query(query))).payload)
    assert ([event.resource for event in first.events], first.total, first.more) == (["t4", "t3"], 5, True)
    assert first.events[0].details == {"partitions": "1"}
    query.offset = 4
    last = replies.decode_audit((await root.ask(access.encode_audit_query(query))).payload)
    assert ([event.resource for event in last.events], last.total, last.more) == (["t0"], 5, False)
    query.end_s = START_S
    query.start_s = 1
    assert replies.decode_audit((await root.ask(access.encode_audit_query(query))).payload).total == 1, "orders"


async def test_the_trail_is_exported_as_json_and_as_csv(root: Conversation, broker: Broker) -> None:
    broker.audit.note(Principal("=cmd()"), "topic.create", "a,b", details={"why": 'x"y'})
    await broker.audit.written()
    query = AuditQueryRequest(types=["topic.create"], resource="a,b")
    data = replies.decode_audit_exported((await root.ask(access.encode_audit_export(query, "json"))).payload)
    [event] = json.loads(data)
    assert (event["user"], event["resource"], event["details"]) == ("=cmd()", "a,b", {"why": 'x"y'})
    data = replies.decode_audit_exported((await root.ask(access.encode_audit_export(query, "csv"))).payload)
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
        (Dialect.AUTO, encode.encode_fetch("orders", 0, 0, 1, ""), True, True),
        (Dialect.AUTO, encode.encode_fetch("orders", 0, 0, 1), False, False),
        (Dialect.NATIVE, None, True, True),
        (Dialect.SPEC, None, False, False),
        (Dialect.SPEC, encode.encode_fetch("orders", 0, 0, 1, ""), False, False),
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
        request = access.encode_audit_export(AuditQueryRequest(types=["topic.create"], resource="a,b"), form)
        asked = request if own_client else frame(Opcode.AUDIT_EXPORT, request[8:-1])
        return replies.decode_audit_exported((await talk.ask(asked)).payload)

    if native:
        assert await export("json") == EXPORTED_JSON
        assert await export("csv") == EXPORTED_CSV
    else:
        [event] = json.loads(await export("json"))
        assert (event["ts_ms"], event["node"]) == (clock.now_ms(), "node-1")
        assert (await export("csv")).startswith(b"id,ts_ms,type,user,client_ip,resource,action,result,node,details\n")


async def test_an_export_of_nothing_is_an_empty_list(root: Conversation) -> None:
    await root.ask(encode.encode_cluster_metadata())
    request = access.encode_audit_export(AuditQueryRequest(resource="nothing"), "json")
    assert replies.decode_audit_exported((await root.ask(request)).payload) == b"[]"


async def test_a_page_of_events_fits_into_one_frame(root: Conversation, broker: Broker) -> None:
    for number in range(9_000):
        broker.audit.note(Principal("u" * 1_000), f"type.{number}", "r" * 1_000, details={"a": "d" * 1_000})
    await broker.audit.written()
    query = AuditQueryRequest(user="u" * 1_000, limit=10_000)
    reply = await root.ask(access.encode_audit_query(query))
    page = replies.decode_audit(reply.payload)
    assert len(reply.payload) < 32 << 20
    assert (page.total, page.more) == (9_000, True)
    for request in (encode.encode_list_topics(), encode.encode_cluster_metadata()):
        await root.ask(request)
        exported = await root.ask(access.encode_audit_export(query, "json"))
        assert len(exported.payload) < 32 << 20


# --- the cluster ---


async def test_a_cluster_of_one_node_tells_what_it_is(root: Conversation, broker: Broker) -> None:
    status = replies.decode_cluster_status((await root.ask(frame(Opcode.CLUSTER_STATUS))).payload)
    assert status == ClusterState(
        "standalone", "node-1", [("node-1", "192.0.2.9:9092", "online")], topics=1, partitions=1, partitions_failed=0
    )
    await produce(broker, "orders", [b"x"], principal=SYSTEM)
    _, topics = decode_cluster_metadata_reply((await root.ask(encode.encode_cluster_metadata())).payload)
    assert {name: [each.index for each in partitions] for name, partitions in topics.items()} == {"orders": [0]}


@pytest.mark.parametrize(
    "request_", [access.encode_named(Opcode.CLUSTER_JOIN, "peer:9093"), frame(Opcode.CLUSTER_LEAVE)]
)
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
ATTEMPTS: dict[Opcode, Attempt] = {
    Opcode.PRODUCE: Attempt(encode.encode_produce("orders", b"x"), WRITERS),
    Opcode.CONSUME: Attempt(encode.encode_consume("orders", 0, 0), READERS),
    Opcode.CONSUME_ZERO_COPY: Attempt(
        frame(Opcode.CONSUME_ZERO_COPY, encode.encode_consume("orders", 0, 0)[8:]), READERS
    ),
    Opcode.CREATE_TOPIC: Attempt(encode.encode_create_topic("new", 1), ROOT),
    Opcode.METADATA: Attempt(encode.encode_metadata("orders"), KNOWING),
    Opcode.SUBSCRIBE: Attempt(encode.encode_subscribe("orders", "g", 0, "latest"), READERS),
    Opcode.COMMIT: Attempt(encode.encode_commit("orders", "g", 0, 1), READERS),
    Opcode.FETCH: Attempt(encode.encode_fetch("orders", 0, 0, 1), READERS),
    Opcode.FETCH_BINARY: Attempt(encode.encode_fetch("orders", 0, 0, 1, opcode=Opcode.FETCH_BINARY), READERS),
    Opcode.LIST_TOPICS: Attempt(encode.encode_list_topics(), EVERYONE),
    Opcode.DELETE_TOPIC: Attempt(encode.encode_delete_topic("orders"), ROOT),
    Opcode.REGISTER_SCHEMA: Attempt(schemas.encode_register_schema("s", "json", "{}"), ROOT),
    Opcode.GET_SCHEMA: Attempt(schemas.encode_get_schema("s", 0), EVERYONE),
    Opcode.LIST_SCHEMAS: Attempt(schemas.encode_list_schemas(), EVERYONE),
    Opcode.VALIDATE_SCHEMA: Attempt(schemas.encode_validate_schema("s", b"{}"), EVERYONE),
    Opcode.PRODUCE_WITH_SCHEMA: Attempt(schemas.encode_produce_with_schema("orders", "s", b"{}"), WRITERS),
    Opcode.DELETE_SCHEMA: Attempt(schemas.encode_delete_schema("s", 0), ROOT),
    Opcode.BIND_SCHEMA: Attempt(schemas.encode_bind_schema("orders", ""), ROOT),
    Opcode.FETCH_BLOCKS: Attempt(blocks.encode_fetch_blocks("orders", "", 0, 0, 1), READERS),
    Opcode.READ_PLAN: Attempt(blocks.encode_read_plan([TopicSpans("orders", [])]), READERS),
    Opcode.FETCH_DLQ: Attempt(lifetimes.encode_fetch_dlq("orders", 1), READERS),
    Opcode.REPLAY_DLQ: Attempt(lifetimes.encode_replay_dlq("orders", "gone"), WRITERS),
    Opcode.PURGE_DLQ: Attempt(lifetimes.encode_purge_dlq("orders"), ROOT),
    Opcode.PRODUCE_DELAYED: Attempt(lifetimes.encode_produce_delayed("orders", b"x", 1000), WRITERS),
    Opcode.CANCEL_DELAYED: Attempt(lifetimes.encode_cancel_delayed("orders", "gone"), WRITERS),
    Opcode.PRODUCE_WITH_TTL: Attempt(lifetimes.encode_produce_with_ttl("orders", b"x", 1000), WRITERS),
    Opcode.TXN_BEGIN: Attempt(transactions.encode_begin(), WRITERS),
    Opcode.TXN_COMMIT: Attempt(transactions.encode_commit("gone"), WRITERS),
    Opcode.TXN_ROLLBACK: Attempt(transactions.encode_rollback("gone"), WRITERS),
    Opcode.TXN_PRODUCE: Attempt(transactions.encode_produce_many("gone", "orders", [b"x"]), WRITERS),
    Opcode.STAGE: Attempt(staging.encode_stage("app", 1, 0, "a", 0, "orders", []), WRITERS),
    Opcode.STAGE_COMMIT: Attempt(staging.encode_commit("app", 1, 0, []), WRITERS),
    Opcode.STAGE_ABORT: Attempt(staging.encode_abort("app", 1, 0), WRITERS),
    Opcode.BEGIN_RUN: Attempt(staging.encode_begin_run("app", "run", lasting=True), WRITERS),
    Opcode.CLUSTER_JOIN: Attempt(access.encode_named(Opcode.CLUSTER_JOIN, "peer"), ROOT),
    Opcode.CLUSTER_LEAVE: Attempt(frame(Opcode.CLUSTER_LEAVE), ROOT),
    Opcode.CLUSTER_STATUS: Attempt(frame(Opcode.CLUSTER_STATUS), EVERYONE),
    Opcode.CLUSTER_METADATA: Attempt(encode.encode_cluster_metadata("orders"), KNOWING),
    Opcode.GET_OFFSET: Attempt(encode.encode_get_offset("orders", "g", 0), READERS),
    Opcode.RESET_OFFSET: Attempt(encode.encode_reset_offset("orders", "g", 0, "earliest"), READERS),
    Opcode.LIST_GROUPS: Attempt(encode.encode_list_groups(), ROOT),
    Opcode.DESCRIBE_GROUP: Attempt(encode.encode_describe_group("orders", "g"), ROOT),
    Opcode.GET_LAG: Attempt(encode.encode_get_lag("orders", "g", 0), READERS),
    Opcode.DELETE_GROUP: Attempt(encode.encode_delete_group("orders", "g"), ROOT),
    Opcode.SEEK_TO_TIMESTAMP: Attempt(encode.encode_seek_to_timestamp("orders", "", 0, 0), READERS),
    Opcode.USER_CREATE: Attempt(access.encode_user_request(Opcode.USER_CREATE, "new", "x"), ROOT),
    Opcode.USER_DELETE: Attempt(access.encode_named(Opcode.USER_DELETE, "bob"), ROOT),
    Opcode.USER_UPDATE: Attempt(access.encode_user_request(Opcode.USER_UPDATE, "bob", roles=["admin"]), ROOT),
    Opcode.USER_LIST: Attempt(frame(Opcode.USER_LIST), ROOT),
    Opcode.USER_GET: Attempt(access.encode_named(Opcode.USER_GET, "bob"), ROOT),
    Opcode.ACL_SET: Attempt(access.encode_acl_set("orders", False, ["gus"], []), ROOT),
    Opcode.ACL_GET: Attempt(access.encode_named(Opcode.ACL_GET, "orders"), ROOT),
    Opcode.ACL_DELETE: Attempt(access.encode_named(Opcode.ACL_DELETE, "orders"), ROOT),
    Opcode.ACL_LIST: Attempt(frame(Opcode.ACL_LIST), ROOT),
    Opcode.PASSWORD_CHANGE: Attempt(access.encode_user_request(Opcode.PASSWORD_CHANGE, "stranger", "x"), ROOT),
    Opcode.ROLE_LIST: Attempt(frame(Opcode.ROLE_LIST), EVERYONE),
    Opcode.ROLE_SET: Attempt(access.encode_role_set("new", [], ""), ROOT),
    Opcode.ROLE_DELETE: Attempt(access.encode_named(Opcode.ROLE_DELETE, "gone"), ROOT),
    Opcode.AUDIT_QUERY: Attempt(access.encode_audit_query(AuditQueryRequest()), ROOT),
    Opcode.KEY_CREATE: Attempt(encode_key_create("new", []), ROOT),
    Opcode.KEY_LIST: Attempt(frame(Opcode.KEY_LIST), ROOT),
    Opcode.KEY_REVOKE: Attempt(encode_key_revoke("gone"), ROOT),
    Opcode.PIPELINE_REPORT: Attempt(encode_pipeline_report(PipelineReport("p", "run", 1, "running", "", [])), READERS),
    Opcode.PIPELINE_LIST: Attempt(frame(Opcode.PIPELINE_LIST), EVERYONE),
    Opcode.PIPELINE_STOP: Attempt(encode_pipeline_stop("gone"), READERS),
    Opcode.SNAPSHOT_CREATE: Attempt(frame(Opcode.SNAPSHOT_CREATE), ROOT),
    Opcode.SNAPSHOT_RELEASE: Attempt(snapshots.encode_release("0" * 32), ROOT),
    Opcode.AUDIT_EXPORT: Attempt(access.encode_audit_export(AuditQueryRequest(), "csv"), ROOT),
}
# Saying who one is comes before every check; AUTH_RESPONSE and ERROR are no requests.
UNCHECKED = {Opcode.AUTH, Opcode.WHOAMI, Opcode.AUTH_RESPONSE, Opcode.ERROR}


def test_the_attempts_below_name_every_opcode() -> None:
    assert set(Opcode) == set(ATTEMPTS) | UNCHECKED


def refused(reply: Frame) -> bool:
    return reply.opcode == Opcode.ERROR and reply.error.startswith(("authentication required", "unauthorized"))


@pytest.mark.parametrize("opcode", ATTEMPTS, ids=lambda opcode: opcode.name)
async def test_every_opcode_is_open_to_who_may_and_to_nobody_else(opcode: Opcode, broker: Broker, flymq: FlyMQ) -> None:
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
    denied = await broker.audit.query(SYSTEM, AuditQuery(types=["access.denied"]))
    assert denied.total == 1 + len(EVERYONE - attempt.allowed), "each of them is in the audit trail"

"""Every opcode is open to who may use it, and to nobody else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.broker.access.audit import AuditQuery as BrokerQuery
from penstock.broker.access.checks import SYSTEM
from penstock.broker.broker import Broker
from penstock.protocols.flymq.codec.record_layouts import encode_produce
from penstock.protocols.flymq.operations import groups
from penstock.protocols.flymq.operations.access import (
    AclDelete,
    AclGet,
    AclList,
    AclSet,
    AuditExport,
    AuditQuery,
    Auth,
    KeyCreate,
    KeyList,
    KeyRevoke,
    PasswordChange,
    RoleDelete,
    RoleList,
    RoleSet,
    UserCreate,
    UserDelete,
    UserGet,
    UserList,
    UserUpdate,
    Whoami,
)
from penstock.protocols.flymq.operations.blocks import FetchBlocks, ReadPlan, TopicSpans
from penstock.protocols.flymq.operations.monitoring import DelayedList, TxnList
from penstock.protocols.flymq.operations.operation import OPERATIONS, encode_request
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
    ProduceOnce,
    ProduceRecords,
    ProduceWithTtl,
    PurgeDlq,
    RegisterProducer,
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
    TopicList,
    TruncateTopic,
)
from penstock.protocols.flymq.operations.transactions import (
    TxnBegin,
    TxnCommit,
    TxnProduce,
    TxnRollback,
    encode_txn_produces,
)
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.flymq.wire import ERROR, frame
from tests.broker.accounts import user
from tests.protocols.flymq.conversation import Conversation, Frame
from tests.protocols.flymq.server.access_fixtures import broker, flymq, logged_in

__all__ = ["broker", "flymq"]


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
    ProduceOnce.opcode: Attempt(encode_request(ProduceOnce(bytes(16), 0, 0, False, "orders", [b"x"])), WRITERS),
    RegisterProducer.opcode: Attempt(encode_request(RegisterProducer()), WRITERS),
    FetchBinary.opcode: Attempt(encode_request(FetchBinary("orders", 0, 0, 1)), READERS),
    ListTopics.opcode: Attempt(encode_request(ListTopics()), EVERYONE),
    TopicList.opcode: Attempt(encode_request(TopicList()), EVERYONE),
    DelayedList.opcode: Attempt(encode_request(DelayedList("")), ROOT),
    TxnList.opcode: Attempt(encode_request(TxnList()), ROOT),
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
    0xE0: Attempt(encode_request(groups.GroupReset("orders", "g", "earliest")), READERS),
    0xE1: Attempt(encode_request(groups.SubscriptionReset("orders", "g", "earliest")), READERS),
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
    await broker.groups.commit(SYSTEM, "orders", "g", 0, 0)
    assert refused(await Conversation(flymq).ask(attempt.request)), "nobody has logged in"
    for name in sorted(EVERYONE, key=lambda name: name in attempt.allowed):
        reply = await (await logged_in(flymq, name)).ask(attempt.request)
        assert refused(reply) is (name not in attempt.allowed), name
    await broker.audit.written()
    denied = await broker.audit.query(SYSTEM, BrokerQuery(types=["access.denied"]))
    assert denied.total == 1 + len(EVERYONE - attempt.allowed), "each of them is in the audit trail"

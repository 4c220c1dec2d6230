"""The access check: every operation of the broker passes it, both ways, and internal topics stay closed."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from penstock.broker.access.acls import Acls
from penstock.broker.access.api_keys import ApiKeys
from penstock.broker.access.audit import ACCESS_AUDIT_TOPIC, AUDIT_TOPIC, Audit, AuditQuery
from penstock.broker.access.checks import (
    ANONYMOUS,
    SYSTEM,
    Declaration,
    Operation,
    Principal,
    Resource,
    ResourceKind,
    authorize,
)
from penstock.broker.access.explaining import Explaining
from penstock.broker.access.users import Users
from penstock.broker.broker import Broker
from penstock.broker.cache.cache import Cache
from penstock.broker.cluster import Cluster
from penstock.broker.deliveries.admin import SubscriptionAdmin
from penstock.broker.deliveries.deadletters import DeadLetters
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.stored import StoredSubscription
from penstock.broker.deliveries.subscription import Subscription
from penstock.broker.deliveries.subscriptions import Subscriptions
from penstock.broker.groups.coordinator import Coordinator
from penstock.broker.groups.membership import Heartbeat, MemberOffset, Session
from penstock.broker.groups.monitoring import Filter
from penstock.broker.groups.operations import Groups
from penstock.broker.groups.resets import ResetTarget
from penstock.broker.idempotence.producers import IdempotentProducers
from penstock.broker.limits import BrokerLimits
from penstock.broker.pipelines import Pipelines, Report
from penstock.broker.records.operations import Records
from penstock.broker.schedule.schedule import Schedule
from penstock.broker.schemas.operations import Schemas
from penstock.broker.snapshots import Snapshots
from penstock.broker.topics.operations import Topics
from penstock.broker.transactions.entries import Place
from penstock.broker.transactions.staging import Staging
from penstock.broker.transactions.transactions import Transactions
from penstock.errors import (
    AccessDenied,
    ConsumerFenced,
    EntryNotFound,
    GroupNotFound,
    InvalidRequest,
    NotSupported,
    PenstockError,
    SchemaNotFound,
    TopicNotFound,
    TransactionNotFound,
    UnknownProducer,
    UserNotFound,
)
from penstock.log.api import Batch, Engine, TopicConfig
from penstock.testing.clock import ManualClock
from tests.broker.access.unchecked import NOT_OPERATIONS
from tests.broker.accounts import of_files
from tests.broker.idempotence.sending import Numbers
from tests.open_access import OpenAccess

# Parts of the broker with operations of their own, by the attribute they are found under.
PARTS: dict[str, type] = {
    "acls": Acls,
    "audit": Audit,
    "cluster": Cluster,
    "users": Users,
    "dead_letters": DeadLetters,
    "schedule": Schedule,
    "schemas": Schemas,
    "staging": Staging,
    "transactions": Transactions,
    "subscriptions": Subscriptions,
    "api_keys": ApiKeys,
    "pipelines": Pipelines,
    "cache": Cache,
    "topics": Topics,
    "records": Records,
    "coordinator": Coordinator,
    "groups": Groups,
    "subscription_admin": SubscriptionAdmin,
    "snapshots": Snapshots,
    "explaining": Explaining,
    "producers": IdempotentProducers,
}
READER = Principal("reader")
TOPIC = Resource(ResourceKind.TOPIC, "orders")
GROUP = Resource(ResourceKind.GROUP, "g")
GROUP_IN_TOPIC = Resource(ResourceKind.GROUP, "g", "orders")
SCHEMA = Resource(ResourceKind.SCHEMA, "s")
WHOLE = Resource(ResourceKind.BROKER)
OF_STEPS = {"topics.follow": [(Operation.DESCRIBE, TOPIC)]}
"""What operations ask for beside what they declare: one that does the work of another needs the right to that, too."""

Call = Callable[[Broker, Principal, str], Any]


async def let_in(outcome: type[PenstockError], operation: Callable[[], Any]) -> None:
    """The operation got past the access check, as far as an outcome that has nothing to do with access."""
    with pytest.raises(outcome):
        await finished(operation)


found_missing = partial(let_in, TransactionNotFound)
schema_missing = partial(let_in, SchemaNotFound)
no_user = partial(let_in, UserNotFound)
no_topic = partial(let_in, TopicNotFound)


async def finished(operation: Callable[[], Any]) -> None:
    result = operation()
    if isinstance(result, Awaitable):
        await result


def a_subscription(topic: str, name: str = "g") -> Subscription:
    return Subscription(1, StoredSubscription(topic, "", 1, (), name), [], DeliveryPolicy())


# Every operation, what it must ask for, and how to call it with a topic's name.
OPERATIONS: dict[str, tuple[Operation, Resource, Call]] = {
    "topics.names": (Operation.DESCRIBE, WHOLE, lambda b, who, t: b.topics.names(who)),
    "snapshots.create": (Operation.ADMIN, WHOLE, lambda b, who, t: of_files(b.snapshots.create, who)),
    "snapshots.release": (Operation.ADMIN, WHOLE, lambda b, who, t: of_files(b.snapshots.release, who, "0" * 32)),
    "topics.describe": (Operation.DESCRIBE, TOPIC, lambda b, who, t: b.topics.describe(who, t)),
    "topics.find": (Operation.DESCRIBE, TOPIC, lambda b, who, t: b.topics.find(who, t)),
    "topics.follow": (Operation.DESCRIBE, TOPIC, lambda b, who, t: b.topics.follow(who, t)),
    "topics.create": (Operation.CREATE, TOPIC, lambda b, who, t: b.topics.create(who, t, TopicConfig())),
    "topics.ensure": (Operation.WRITE, TOPIC, lambda b, who, t: b.topics.ensure(who, t)),
    "topics.delete": (Operation.DELETE, TOPIC, lambda b, who, t: b.topics.delete(who, t)),
    "topics.alter": (Operation.CREATE, TOPIC, lambda b, who, t: b.topics.alter(who, t, [("compression", "zstd")])),
    "topics.add_partitions": (Operation.CREATE, TOPIC, lambda b, who, t: b.topics.add_partitions(who, t, 2)),
    "topics.configure": (Operation.CREATE, TOPIC, lambda b, who, t: b.topics.configure(who, t, TopicConfig())),
    "topics.truncate": (Operation.DELETE, TOPIC, lambda b, who, t: b.topics.truncate(who, t, "end")),
    "records.produce": (
        Operation.WRITE,
        TOPIC,
        lambda b, who, t: b.records.produce(who, t, 0, [b"v"], [b"k"], done=lambda placed: None),
    ),
    "records.produce_together": (
        Operation.WRITE,
        TOPIC,
        lambda b, who, t: b.records.produce_together(who, t, [b"v"], done=lambda placed: None),
    ),
    "records.partition": (Operation.READ, TOPIC, lambda b, who, t: b.records.partition(who, t, 0)),
    "records.readable_topic": (Operation.READ, TOPIC, lambda b, who, t: b.records.readable_topic(who, t)),
    "groups.commit": (Operation.COMMIT, GROUP_IN_TOPIC, lambda b, who, t: b.groups.commit(who, t, "g", 0, 1)),
    "groups.committed": (Operation.READ, TOPIC, lambda b, who, t: b.groups.committed(who, t, "g", 0)),
    "groups.start_position": (
        Operation.READ,
        TOPIC,
        lambda b, who, t: b.groups.start_position(who, t, "g", 0, "earliest"),
    ),
    "groups.subscribe": (Operation.READ, TOPIC, lambda b, who, t: b.groups.subscribe(who, t, "g", "session")),
    "groups.seek_to_time": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: b.groups.seek_to_time(who, t, "g", 0, 0),
    ),
    "groups.lag": (Operation.READ, TOPIC, lambda b, who, t: b.groups.lag(who, t, "g", 0)),
    "groups.reset_offset": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: b.groups.reset_offset(who, t, "g", 0, "earliest"),
    ),
    "groups.reset": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: b.groups.reset(who, t, "g", ResetTarget("earliest")),
    ),
    "subscription_admin.reset": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: let_in(
            GroupNotFound, lambda: b.subscription_admin.reset(who, t, "g", ResetTarget("earliest"))
        ),
    ),
    "groups.all": (Operation.ADMIN, WHOLE, lambda b, who, t: b.groups.all(who)),
    "groups.describe": (Operation.ADMIN, GROUP, lambda b, who, t: b.groups.describe(who, "g")),
    "groups.delete": (Operation.ADMIN, GROUP, lambda b, who, t: b.groups.delete(who, "g")),
    "groups.lags": (Operation.ADMIN, WHOLE, lambda b, who, t: b.groups.lags(who)),
    "acls.set_acl": (Operation.ADMIN, WHOLE, lambda b, who, t: b.acls.set_acl(who, t, users=["ann"])),
    "acls.get_acl": (Operation.ADMIN, WHOLE, lambda b, who, t: b.acls.get_acl(who, t)),
    "acls.delete_acl": (Operation.ADMIN, WHOLE, lambda b, who, t: b.acls.delete_acl(who, t)),
    "acls.list_acls": (Operation.ADMIN, WHOLE, lambda b, who, t: b.acls.list_acls(who)),
    "explaining.rights": (Operation.ADMIN, WHOLE, lambda b, who, t: no_user(lambda: b.explaining.rights(who, "gone"))),
    "audit.query": (Operation.ADMIN, WHOLE, lambda b, who, t: b.audit.query(who, AuditQuery())),
    "dead_letters.letters": (Operation.READ, TOPIC, lambda b, who, t: b.dead_letters.letters(who, t, 10)),
    "dead_letters.letter": (
        Operation.READ,
        TOPIC,
        lambda b, who, t: no_topic(lambda: b.dead_letters.letter(who, t, "x")),
    ),
    "dead_letters.replay": (
        Operation.WRITE,
        TOPIC,
        lambda b, who, t: let_in(TopicNotFound, lambda: b.dead_letters.replay(who, t, "gone")),
    ),
    "dead_letters.replay_at": (
        Operation.WRITE,
        TOPIC,
        lambda b, who, t: let_in(TopicNotFound, lambda: b.dead_letters.replay_at(who, t, 0)),
    ),
    "dead_letters.replay_all": (Operation.WRITE, TOPIC, lambda b, who, t: b.dead_letters.replay_all(who, t)),
    "dead_letters.purge": (Operation.DELETE, TOPIC, lambda b, who, t: b.dead_letters.purge(who, t)),
    "schedule.add": (
        Operation.WRITE,
        TOPIC,
        lambda b, who, t: b.schedule.add(who, t, 0, b"v", delay_ms=1000, done=lambda scheduled: None),
    ),
    "schedule.cancel": (
        Operation.WRITE,
        TOPIC,
        lambda b, who, t: let_in(EntryNotFound, lambda: b.schedule.cancel(who, t, "gone")),
    ),
    "schedule.list_pending": (Operation.ADMIN, WHOLE, lambda b, who, t: b.schedule.list_pending(who)),
    "cluster.status": (Operation.DESCRIBE, WHOLE, lambda b, who, t: b.cluster.status(who)),
    "cluster.join": (
        Operation.ADMIN,
        WHOLE,
        lambda b, who, t: let_in(NotSupported, lambda: b.cluster.join(who, "peer")),
    ),
    "cluster.leave": (Operation.ADMIN, WHOLE, lambda b, who, t: let_in(NotSupported, lambda: b.cluster.leave(who))),
    "users.create_user": (Operation.ADMIN, WHOLE, lambda b, who, t: b.users.create_user(who, "new", "secret", [])),
    "users.delete_user": (Operation.ADMIN, WHOLE, lambda b, who, t: no_user(lambda: b.users.delete_user(who, "gone"))),
    "users.update_user": (Operation.ADMIN, WHOLE, lambda b, who, t: no_user(lambda: b.users.update_user(who, "gone"))),
    "users.list_users": (Operation.ADMIN, WHOLE, lambda b, who, t: b.users.list_users(who)),
    "users.get_user": (Operation.ADMIN, WHOLE, lambda b, who, t: no_user(lambda: b.users.get_user(who, "gone"))),
    "users.set_password": (
        Operation.ADMIN,
        WHOLE,
        lambda b, who, t: no_user(lambda: b.users.set_password(who, "gone", "secret")),
    ),
    "users.change_own_password": (
        Operation.DESCRIBE,
        WHOLE,
        lambda b, who, t: let_in(UserNotFound, lambda: b.users.change_own_password(who, "guess", "secret")),
    ),
    "users.list_roles": (Operation.DESCRIBE, WHOLE, lambda b, who, t: b.users.list_roles(who)),
    "users.set_role": (Operation.ADMIN, WHOLE, lambda b, who, t: b.users.set_role(who, "new", [])),
    "users.delete_role": (Operation.ADMIN, WHOLE, lambda b, who, t: b.users.delete_role(who, "gone")),
    "schemas.register": (Operation.CREATE, SCHEMA, lambda b, who, t: b.schemas.register(who, "s", "json", "{}")),
    "schemas.get": (Operation.DESCRIBE, SCHEMA, lambda b, who, t: schema_missing(lambda: b.schemas.get(who, "s"))),
    "schemas.versions": (Operation.DESCRIBE, WHOLE, lambda b, who, t: b.schemas.versions(who)),
    "schemas.delete": (Operation.DELETE, SCHEMA, lambda b, who, t: schema_missing(lambda: b.schemas.delete(who, "s"))),
    "schemas.validate": (
        Operation.DESCRIBE,
        SCHEMA,
        lambda b, who, t: schema_missing(lambda: b.schemas.validate(who, "s", b"{}")),
    ),
    "schemas.find": (
        Operation.DESCRIBE,
        SCHEMA,
        lambda b, who, t: schema_missing(lambda: b.schemas.find(who, "s", "json", "{}")),
    ),
    "schemas.with_id": (Operation.DESCRIBE, WHOLE, lambda b, who, t: schema_missing(lambda: b.schemas.with_id(who, 7))),
    "schemas.referrers": (Operation.DESCRIBE, SCHEMA, lambda b, who, t: b.schemas.referrers(who, "s", 1)),
    "schemas.form": (Operation.DESCRIBE, SCHEMA, lambda b, who, t: schema_missing(lambda: b.schemas.form(who, "s", 1))),
    "schemas.compatibility": (Operation.DESCRIBE, SCHEMA, lambda b, who, t: b.schemas.compatibility(who, "s")),
    "schemas.set_compatibility": (
        Operation.CREATE,
        SCHEMA,
        lambda b, who, t: b.schemas.set_compatibility(who, "s", "full"),
    ),
    "schemas.check": (Operation.DESCRIBE, SCHEMA, lambda b, who, t: b.schemas.check(who, "s", "json", "{}")),
    "schemas.decode": (Operation.READ, TOPIC, lambda b, who, t: b.schemas.decode(who, t, [b"v"])),
    "schemas.bind": (Operation.CREATE, TOPIC, lambda b, who, t: b.schemas.bind(who, t, None)),
    "schemas.bound_to": (Operation.DESCRIBE, TOPIC, lambda b, who, t: b.schemas.bound_to(who, t)),
    "transactions.begin": (Operation.WRITE, WHOLE, lambda b, who, t: b.transactions.begin(who)),
    "transactions.produce": (
        Operation.WRITE,
        TOPIC,
        lambda b, who, t: found_missing(
            lambda: b.transactions.produce(who, t, "txn", 0, [b"v"], done=lambda added: None)
        ),
    ),
    "transactions.commit_offset": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: found_missing(lambda: b.transactions.commit_offset(who, t, "txn", "g", 0, 1)),
    ),
    "transactions.commit": (
        Operation.WRITE,
        WHOLE,
        lambda b, who, t: b.transactions.commit(who, b.transactions.begin(who)),
    ),
    "transactions.rollback": (Operation.WRITE, WHOLE, lambda b, who, t: b.transactions.rollback(who, "txn")),
    "transactions.list_open": (Operation.ADMIN, WHOLE, lambda b, who, t: b.transactions.list_open(who)),
    "producers.register": (Operation.WRITE, WHOLE, lambda b, who, t: b.producers.register(who)),
    "producers.produce": (
        Operation.WRITE,
        TOPIC,
        lambda b, who, t: let_in(
            UnknownProducer,
            lambda: b.producers.produce(
                who, t, Numbers(bytes(16), 0, 0, resent=False), 0, Batch([b"v"]), done=lambda written: None
            ),
        ),
    ),
    "staging.begin_run": (Operation.WRITE, WHOLE, lambda b, who, t: b.staging.begin_run(who, "app", "run")),
    "staging.stage": (
        Operation.WRITE,
        TOPIC,
        lambda b, who, t: let_in(
            InvalidRequest, lambda: b.staging.stage(who, t, Place("app", 1, 0, "a", 0), [], done=lambda error: None)
        ),
    ),
    "staging.commit": (Operation.WRITE, WHOLE, lambda b, who, t: b.staging.commit(who, "app", 0, 0, [])),
    "staging.abort": (Operation.WRITE, WHOLE, lambda b, who, t: b.staging.abort(who, "app", 0, 0)),
    "subscriptions.subscribe": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: b.subscriptions.subscribe(who, t, 1, name="g"),
    ),
    "subscriptions.load": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: b.subscriptions.load(who, t, a_subscription(t)),
    ),
    "subscriptions.acknowledge": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: b.subscriptions.acknowledge(who, t, a_subscription(t), 1),
    ),
    "subscriptions.take_many": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: b.subscriptions.take_many(who, t, a_subscription(t), 1, 1),
    ),
    "subscriptions.acknowledge_many": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: b.subscriptions.acknowledge_many(who, t, a_subscription(t), [1]),
    ),
    "subscriptions.refuse": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: b.subscriptions.refuse(who, t, a_subscription(t), 1),
    ),
    "subscriptions.dead_letter": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: b.subscriptions.dead_letter(who, t, a_subscription(t), 1, "why"),
    ),
    "api_keys.create": (Operation.ADMIN, WHOLE, lambda b, who, t: b.api_keys.create(who, "worker")),
    "api_keys.names": (Operation.ADMIN, WHOLE, lambda b, who, t: b.api_keys.names(who)),
    "api_keys.revoke": (
        Operation.ADMIN,
        WHOLE,
        lambda b, who, t: let_in(EntryNotFound, lambda: b.api_keys.revoke(who, "worker")),
    ),
    "pipelines.report": (
        Operation.READ,
        WHOLE,
        lambda b, who, t: b.pipelines.report(who, "p", Report("run", 1, "running", "", [])),
    ),
    "pipelines.reported": (Operation.DESCRIBE, WHOLE, lambda b, who, t: b.pipelines.reported(who)),
    "pipelines.note_end": (
        Operation.ADMIN,
        WHOLE,
        lambda b, who, t: b.pipelines.note_end(who, "gone", "run", "failed", ""),
    ),
    "pipelines.stop": (
        Operation.READ,
        WHOLE,
        lambda b, who, t: let_in(EntryNotFound, lambda: b.pipelines.stop(who, "gone")),
    ),
    "cache.put": (Operation.WRITE, TOPIC, lambda b, who, t: b.cache.put(who, t, "key", b"value")),
    "cache.delete": (Operation.WRITE, TOPIC, lambda b, who, t: b.cache.delete(who, t, "key")),
    "coordinator.heartbeat": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: b.coordinator.heartbeat(who, "g", [t], Heartbeat("m", 0, Session(), {})),
    ),
    "coordinator.leave": (Operation.COMMIT, GROUP_IN_TOPIC, lambda b, who, t: b.coordinator.leave(who, "g", [t], "m")),
    "coordinator.commit": (
        Operation.COMMIT,
        GROUP_IN_TOPIC,
        lambda b, who, t: let_in(
            ConsumerFenced, lambda: b.coordinator.commit(who, "g", [MemberOffset(t, 0, 1, 1)], "m")
        ),
    ),
    "groups.statuses": (Operation.ADMIN, WHOLE, lambda b, who, t: b.groups.statuses(who, Filter())),
    "subscription_admin.statuses": (
        Operation.ADMIN,
        WHOLE,
        lambda b, who, t: b.subscription_admin.statuses(who, Filter()),
    ),
    "subscription_admin.first_statuses": (
        Operation.ADMIN,
        WHOLE,
        lambda b, who, t: b.subscription_admin.first_statuses(who, 10),
    ),
    "cache.get": (Operation.READ, TOPIC, lambda b, who, t: b.cache.get(who, t, "key")),
}
ON_TOPICS = [name for name, (_, resource, _) in OPERATIONS.items() if resource in (TOPIC, GROUP_IN_TOPIC)]
# Operations on a group that may be left out; then they only read the topic.
WITHOUT_GROUP: dict[str, Call] = {
    "seek_to_time": lambda b, who, t: b.groups.seek_to_time(who, t, "", 0, 0),
    "seek_to_time by name": lambda b, who, t: b.groups.seek_to_time(who, t, group="", partition=0, timestamp_ms=0),
    "subscribe": lambda b, who, t: b.subscriptions.subscribe(who, t, 1),
    "take_many": lambda b, who, t: b.subscriptions.take_many(who, t, a_subscription(t, ""), 1, 1),
    "load": lambda b, who, t: b.subscriptions.load(who, t, a_subscription(t, "")),
    "acknowledge": lambda b, who, t: b.subscriptions.acknowledge(who, t, a_subscription(t, ""), 1),
    "acknowledge_many": lambda b, who, t: b.subscriptions.acknowledge_many(who, t, a_subscription(t, ""), [1]),
    "refuse": lambda b, who, t: b.subscriptions.refuse(who, t, a_subscription(t, ""), 1),
    "dead_letter": lambda b, who, t: b.subscriptions.dead_letter(who, t, a_subscription(t, ""), 1, "why"),
}


class RecordingPolicy:
    """Grants exactly what it was told to, and remembers what it was asked."""

    def __init__(self, *allowed: tuple[Principal, Operation, Resource]) -> None:
        self.allowed = allowed
        self.asked: list[tuple[Principal, Operation, Resource]] = []

    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        self.asked.append((principal, operation, resource))
        if (principal, operation, resource) not in self.allowed:
            raise AccessDenied(f"{principal.name} may not {operation.value} {resource.kind.value} {resource.name}")


def public_methods() -> dict[str, Any]:
    return {
        prefix + name: method
        for prefix, owner in (("", Broker), *((f"{attribute}.", part) for attribute, part in PARTS.items()))
        for name, method in inspect.getmembers(owner, callable)
        if not name.startswith("_")
    }


def broker_with(policy: RecordingPolicy, engine: Engine, clock: ManualClock) -> Broker:
    return Broker(engine, clock=clock, limits=BrokerLimits(), access=policy)


async def call(name: str, broker: Broker, principal: Principal, topic: str = "orders") -> None:
    result = OPERATIONS[name][2](broker, principal, topic)
    if isinstance(result, Awaitable):
        await result


async def state_of(engine: Engine) -> dict[str, tuple[str, list[int]]]:
    """What is stored; only the audit trail grows with what is refused."""
    return {
        name: (info.id, [engine.partition(name, index).committed_end for index in range(info.config.partitions)])
        for name, info in engine.topics().items()
        if name not in (AUDIT_TOPIC, ACCESS_AUDIT_TOPIC)
    }


def test_the_broker_itself_has_no_operations() -> None:
    assert {name for name in public_methods() if "." not in name} == {"start", "close"}


def test_every_public_method_of_the_broker_is_a_declared_operation() -> None:
    undeclared = {name for name, method in public_methods().items() if not hasattr(method, "declaration")}
    assert undeclared == NOT_OPERATIONS


async def test_every_part_of_the_broker_that_has_operations_is_checked(broker: Broker) -> None:
    parts = {name: type(part) for name, part in vars(broker).items() if name[0] != "_" and hasattr(part, "access")}
    assert parts == PARTS


def test_the_matrix_below_names_every_operation_and_what_it_asks_for() -> None:
    declared = {name: method.declaration for name, method in public_methods().items() if hasattr(method, "declaration")}
    assert declared == {name: Declaration(op, resource.kind) for name, (op, resource, _) in OPERATIONS.items()}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_principal_without_the_right_is_refused_and_changes_nothing(
    name: str, engine: Engine, clock: ManualClock, broker: Broker
) -> None:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig())
    operation, resource, _ = OPERATIONS[name]
    others = [(READER, other, resource) for other in Operation if other is not operation]
    policy = RecordingPolicy(*others, (ANONYMOUS, operation, resource))
    guarded = broker_with(policy, engine, clock)
    await guarded.start()
    before = await state_of(engine)
    with pytest.raises(AccessDenied, match="reader may not"):
        await call(name, guarded, READER)
    assert policy.asked == [(READER, operation, resource)]
    await guarded.close()
    assert await state_of(engine) == before


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_principal_with_just_that_right_gets_through(
    name: str, engine: Engine, clock: ManualClock, broker: Broker
) -> None:
    if name not in {"topics.create", "topics.ensure"}:
        await broker.topics.create(ANONYMOUS, "orders", TopicConfig())
        await broker.groups.commit(ANONYMOUS, "orders", "g", 0, 0)
    operation, resource, _ = OPERATIONS[name]
    rights = [(READER, operation, resource), *((READER, *right) for right in OF_STEPS.get(name, ()))]
    policy = RecordingPolicy(*rights)
    guarded = broker_with(policy, engine, clock)
    await guarded.start()
    await call(name, guarded, READER)
    assert set(rights) <= set(policy.asked)
    await guarded.close()


@pytest.mark.parametrize("name", WITHOUT_GROUP)
async def test_an_operation_without_a_group_asks_for_the_right_to_read_the_topic(
    name: str, engine: Engine, clock: ManualClock, broker: Broker
) -> None:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig())
    policy = RecordingPolicy((READER, Operation.READ, TOPIC))
    guarded = broker_with(policy, engine, clock)
    await guarded.start()
    await finished(lambda: WITHOUT_GROUP[name](guarded, READER, "orders"))
    assert policy.asked == [(READER, Operation.READ, TOPIC)]
    await guarded.close()


async def test_a_group_given_by_keyword_is_checked_too(engine: Engine, clock: ManualClock, broker: Broker) -> None:
    guarded = broker_with(RecordingPolicy(), engine, clock)
    await guarded.start()
    with pytest.raises(AccessDenied, match="reader may not commit group g"):
        await guarded.groups.commit(READER, "orders", partition=0, offset=1, group="g")
    await guarded.close()


@pytest.mark.parametrize("name", ON_TOPICS)
async def test_internal_topics_are_closed_to_everyone_without_asking_the_policy(
    name: str, engine: Engine, clock: ManualClock
) -> None:
    policy = RecordingPolicy()
    broker = broker_with(policy, engine, clock)
    await broker.start()
    topics = set(engine.topics())
    for principal in (ANONYMOUS, READER, Principal("system"), Principal("system", frozenset({"admin"}))):
        for topic in ("__groups", "__new"):
            with pytest.raises(AccessDenied, match="internal"):
                await call(name, broker, principal, topic)
    assert policy.asked == []
    assert set(engine.topics()) == topics
    await broker.close()


@pytest.mark.parametrize("operation", Operation)
def test_the_broker_itself_is_never_refused(operation: Operation) -> None:
    policy = RecordingPolicy()
    for resource in (TOPIC, GROUP, WHOLE, Resource(ResourceKind.TOPIC, "__groups")):
        authorize(policy, SYSTEM, operation, resource)
    assert policy.asked == []


@pytest.mark.parametrize("operation", Operation)
def test_open_access_grants_everything_but_internal_topics(operation: Operation) -> None:
    for resource in (TOPIC, GROUP, WHOLE):
        authorize(OpenAccess(), ANONYMOUS, operation, resource)
    with pytest.raises(AccessDenied, match="choose another name"):
        authorize(OpenAccess(), ANONYMOUS, operation, Resource(ResourceKind.TOPIC, "__groups"))


async def test_a_list_of_topics_holds_only_those_the_principal_may_describe(
    engine: Engine, clock: ManualClock, broker: Broker
) -> None:
    for name in ("orders", "secret"):
        await broker.topics.create(ANONYMOUS, name, TopicConfig())
    policy = RecordingPolicy((READER, Operation.DESCRIBE, WHOLE), (READER, Operation.DESCRIBE, TOPIC))
    assert broker_with(policy, engine, clock).topics.names(READER) == ["orders"]


async def test_a_refusal_is_raised_at_the_call_so_nothing_is_left_to_await(engine: Engine, clock: ManualClock) -> None:
    broker = broker_with(RecordingPolicy(), engine, clock)
    with pytest.raises(PenstockError):
        broker.topics.create(READER, "orders", TopicConfig())  # type: ignore[unused-coroutine]

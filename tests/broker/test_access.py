"""The access check: every operation of the broker passes it, both ways, and internal topics stay closed."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.access import (
    ANONYMOUS,
    SYSTEM,
    Declaration,
    OpenAccess,
    Operation,
    Principal,
    Resource,
    ResourceKind,
    authorize,
)
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import AccessDenied, PenstockError
from penstock.log.api import TopicConfig
from penstock.log.embedded import EmbeddedEngine
from penstock.testing.clock import ManualClock

# What acts for no client: the server's own calls, a question whose answer only steers what is asked (and checked) next, and a session
# taking back what it was granted.
NOT_OPERATIONS = {"start", "close", "has_topic", "unsubscribe"}

READER = Principal("reader")
TOPIC = Resource(ResourceKind.TOPIC, "orders")
GROUP = Resource(ResourceKind.GROUP, "g")
WHOLE = Resource(ResourceKind.BROKER)

Call = Callable[[Broker, Principal, str], Any]

# Every operation, what it must ask for, and how to call it with a topic's name.
OPERATIONS: dict[str, tuple[Operation, Resource, Call]] = {
    "topic_names": (Operation.DESCRIBE, WHOLE, lambda b, who, t: b.topic_names(who)),
    "describe_topic": (Operation.DESCRIBE, TOPIC, lambda b, who, t: b.describe_topic(who, t)),
    "create_topic": (Operation.CREATE, TOPIC, lambda b, who, t: b.create_topic(who, t, TopicConfig())),
    "ensure_topic": (Operation.WRITE, TOPIC, lambda b, who, t: b.ensure_topic(who, t)),
    "delete_topic": (Operation.DELETE, TOPIC, lambda b, who, t: b.delete_topic(who, t)),
    "produce": (
        Operation.WRITE,
        TOPIC,
        lambda b, who, t: b.produce(who, t, 0, [b"v"], [b"k"], done=lambda placed: None),
    ),
    "partition": (Operation.READ, TOPIC, lambda b, who, t: b.partition(who, t, 0)),
    "commit_offset": (Operation.READ, TOPIC, lambda b, who, t: b.commit_offset(who, t, "g", 0, 1)),
    "committed_offset": (Operation.READ, TOPIC, lambda b, who, t: b.committed_offset(who, t, "g", 0)),
    "start_position": (Operation.READ, TOPIC, lambda b, who, t: b.start_position(who, t, "g", 0, "earliest")),
    "subscribe": (Operation.READ, TOPIC, lambda b, who, t: b.subscribe(who, t, "g", "session")),
    "seek_to_time": (Operation.READ, TOPIC, lambda b, who, t: b.seek_to_time(who, t, "g", 0, 0)),
    "lag": (Operation.READ, TOPIC, lambda b, who, t: b.lag(who, t, "g", 0)),
    "reset_offset": (Operation.ADMIN, TOPIC, lambda b, who, t: b.reset_offset(who, t, "g", 0, "earliest")),
    "list_groups": (Operation.ADMIN, WHOLE, lambda b, who, t: b.list_groups(who)),
    "describe_group": (Operation.ADMIN, GROUP, lambda b, who, t: b.describe_group(who, "g")),
    "delete_group": (Operation.ADMIN, GROUP, lambda b, who, t: b.delete_group(who, "g")),
    "group_lags": (Operation.ADMIN, WHOLE, lambda b, who, t: b.group_lags(who)),
}
ON_TOPICS = [name for name, (_, resource, _) in OPERATIONS.items() if resource is TOPIC]


class RecordingPolicy:
    """Grants exactly what it was told to, and remembers what it was asked."""

    def __init__(self, *granted: tuple[Principal, Operation, Resource]) -> None:
        self.granted = granted
        self.asked: list[tuple[Principal, Operation, Resource]] = []

    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        self.asked.append((principal, operation, resource))
        if (principal, operation, resource) not in self.granted:
            raise AccessDenied(f"{principal.name} may not {operation.value} {resource.kind.value} {resource.name}")


def public_methods() -> dict[str, Any]:
    return {name: method for name, method in inspect.getmembers(Broker, callable) if not name.startswith("_")}


def broker_with(policy: RecordingPolicy, engine: EmbeddedEngine, clock: ManualClock) -> Broker:
    return Broker(engine, clock=clock, limits=BrokerLimits(), access=policy)


async def call(name: str, broker: Broker, principal: Principal, topic: str = "orders") -> None:
    result = OPERATIONS[name][2](broker, principal, topic)
    if isinstance(result, Awaitable):
        await result


async def state_of(engine: EmbeddedEngine) -> dict[str, tuple[str, list[int]]]:
    return {
        name: (info.id, [engine.partition(name, index).committed_end for index in range(info.config.partitions)])
        for name, info in engine.topics().items()
    }


def test_every_public_method_of_the_broker_is_a_declared_operation() -> None:
    undeclared = {name for name, method in public_methods().items() if not hasattr(method, "declaration")}
    assert undeclared == NOT_OPERATIONS


def test_the_matrix_below_names_every_operation_and_what_it_asks_for() -> None:
    declared = {name: method.declaration for name, method in public_methods().items() if hasattr(method, "declaration")}
    assert declared == {name: Declaration(op, resource.kind) for name, (op, resource, _) in OPERATIONS.items()}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_principal_without_the_right_is_refused_and_changes_nothing(
    name: str, engine: EmbeddedEngine, clock: ManualClock, broker: Broker
) -> None:
    await broker.create_topic(ANONYMOUS, "orders", TopicConfig())
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
    name: str, engine: EmbeddedEngine, clock: ManualClock, broker: Broker
) -> None:
    if name not in {"create_topic", "ensure_topic"}:
        await broker.create_topic(ANONYMOUS, "orders", TopicConfig())
        await broker.commit_offset(ANONYMOUS, "orders", "g", 0, 0)
    operation, resource, _ = OPERATIONS[name]
    policy = RecordingPolicy((READER, operation, resource))
    guarded = broker_with(policy, engine, clock)
    await guarded.start()
    await call(name, guarded, READER)
    assert (READER, operation, resource) in policy.asked
    await guarded.close()


@pytest.mark.parametrize("name", ON_TOPICS)
async def test_internal_topics_are_closed_to_everyone_without_asking_the_policy(
    name: str, engine: EmbeddedEngine, clock: ManualClock
) -> None:
    policy = RecordingPolicy()
    broker = broker_with(policy, engine, clock)
    await broker.start()
    for principal in (ANONYMOUS, READER, Principal("system"), Principal("system", frozenset({"admin"}))):
        for topic in ("__groups", "__new"):
            with pytest.raises(AccessDenied, match="internal"):
                await call(name, broker, principal, topic)
    assert policy.asked == []
    assert set(engine.topics()) == {"__groups"}
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
    engine: EmbeddedEngine, clock: ManualClock, broker: Broker
) -> None:
    for name in ("orders", "secret"):
        await broker.create_topic(ANONYMOUS, name, TopicConfig())
    policy = RecordingPolicy((READER, Operation.DESCRIBE, WHOLE), (READER, Operation.DESCRIBE, TOPIC))
    assert broker_with(policy, engine, clock).topic_names(READER) == ["orders"]


async def test_a_refusal_is_raised_at_the_call_so_nothing_is_left_to_await(
    engine: EmbeddedEngine, clock: ManualClock
) -> None:
    broker = broker_with(RecordingPolicy(), engine, clock)
    with pytest.raises(PenstockError):
        broker.create_topic(READER, "orders", TopicConfig())  # type: ignore[unused-coroutine]

"""A check that was passed is not made again, until a user, a role or an ACL changes: each kind of change is felt by the next request."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.broker.access import checks
from penstock.broker.access.checks import SYSTEM, Operation, Principal, Resource
from penstock.broker.access.policy import RolePolicy
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import AccessDenied, PenstockError
from penstock.log.api import Engine, TopicConfig
from penstock.testing.clock import ManualClock
from tests.broker.accounts import broker_with_users, user
from tests.broker.producing import produce
from tests.open_access import OpenAccess


@pytest.fixture
async def guarded(engine: Engine, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = broker_with_users(engine, clock)
    await broker.start()
    await broker.topics.create(SYSTEM, "orders", TopicConfig())
    await broker.users.set_role(SYSTEM, "writer", ["read", "write"])
    yield broker
    await broker.close()


async def test_a_check_is_made_once_for_each_principal_operation_and_topic(
    guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, Operation, Resource]] = []
    check = RolePolicy.check

    def recorded(self: RolePolicy, principal: Principal, operation: Operation, resource: Resource) -> None:
        made.append((principal.name, operation, resource))
        check(self, principal, operation, resource)

    ann, bob = await user(guarded, "ann", "writer"), await user(guarded, "bob", "writer")
    await guarded.topics.create(SYSTEM, "other", TopicConfig())
    monkeypatch.setattr(RolePolicy, "check", recorded)
    for _ in range(3):
        for principal in (ann, bob):
            for topic in ("orders", "other"):
                await produce(guarded, topic, [b"x"], principal=principal)
                guarded.records.partition(principal, topic, 0)
    assert len(made) == len(set(made)) == 8


async def change_roles(broker: Broker) -> None:
    await broker.users.update_user(SYSTEM, "ann", ["guest"])


async def disable_user(broker: Broker) -> None:
    await broker.users.update_user(SYSTEM, "ann", enabled=False)


async def delete_user(broker: Broker) -> None:
    await broker.users.delete_user(SYSTEM, "ann")


async def change_role(broker: Broker) -> None:
    await broker.users.set_role(SYSTEM, "writer", ["describe"])


CHANGES: list[Callable[[Broker], Awaitable[None]]] = [change_roles, disable_user, delete_user, change_role]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_who_loses_a_right_loses_it_at_once_however_often_it_was_used(
    guarded: Broker, change: Callable[[Broker], Awaitable[None]]
) -> None:
    ann = await user(guarded, "ann", "writer")
    subscription = await guarded.subscriptions.subscribe(ann, "orders", 1, name="jobs")
    for _ in range(3):
        await produce(guarded, "orders", [b"x"], principal=ann)
        guarded.subscriptions.take_many(ann, "orders", subscription, 1, 1)
    await change(guarded)
    with pytest.raises(PenstockError):
        await produce(guarded, "orders", [b"x"], principal=ann)
    with pytest.raises(PenstockError):
        guarded.subscriptions.take_many(ann, "orders", subscription, 1, 1)
    with pytest.raises(PenstockError):
        guarded.records.partition(ann, "orders", 0)


async def test_an_acl_that_is_withdrawn_or_closes_a_group_is_felt_at_once(guarded: Broker) -> None:
    eve = await user(guarded, "eve", "guest")
    await guarded.acls.set_acl(SYSTEM, "orders", users=["eve"])
    await produce(guarded, "orders", [b"x"], principal=eve)
    await guarded.groups.commit(eve, "orders", "jobs", 0, 1)
    await guarded.acls.set_acl(SYSTEM, "group://jobs", users=["ann"])
    with pytest.raises(AccessDenied):
        await guarded.groups.commit(eve, "orders", "jobs", 0, 1)
    await produce(guarded, "orders", [b"x"], principal=eve)
    await guarded.acls.delete_acl(SYSTEM, "orders")
    with pytest.raises(AccessDenied):
        await produce(guarded, "orders", [b"x"], principal=eve)


async def test_a_refusal_is_not_kept(guarded: Broker) -> None:
    eve = await user(guarded, "eve", "guest")
    for _ in range(2):
        with pytest.raises(AccessDenied):
            await produce(guarded, "orders", [b"x"], principal=eve)
    await guarded.users.update_user(SYSTEM, "eve", ["writer"])
    await produce(guarded, "orders", [b"x"], principal=eve)


async def test_a_grant_is_that_of_one_principal_though_another_is_equal(guarded: Broker) -> None:
    await user(guarded, "ann", "writer")
    for _ in range(100):  # objects that are made and gone have the ids of others
        guarded.records.partition(Principal("ann"), "orders", 0)
        with pytest.raises(PenstockError):
            guarded.records.partition(Principal("nobody"), "orders", 0)


async def test_grants_are_bounded(guarded: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "GRANTED_MAX", 10)
    ann = await user(guarded, "ann", "writer")
    for number in range(30):
        with pytest.raises(PenstockError):
            guarded.records.partition(ann, f"missing-{number}", 0)
        assert len(guarded.access.granted) <= 10


async def test_a_check_that_is_passed_again_and_again_takes_no_memory(guarded: Broker) -> None:
    ann = await user(guarded, "ann", "writer")
    tracemalloc.start()
    try:
        for _ in range(5_000):
            guarded.topics.names(ann)
        grown_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown_bytes < 20_000


async def test_grants_go_with_their_principal(guarded: Broker) -> None:
    """A principal is gone when its connection is: what many short connections leave would fill memory for hours."""
    await user(guarded, "ann", "writer")
    kept = len(guarded.access.granted)
    connected = [Principal("ann") for _ in range(3)]
    for principal in connected:
        guarded.records.partition(principal, "orders", 0)
        await produce(guarded, "orders", [b"x"], principal=principal)
    assert len(guarded.access.granted) == kept + 6
    del principal, connected[1:]
    assert len(guarded.access.granted) == kept + 2
    guarded.access.granted.clear()
    connected.clear()
    assert not guarded.access.granted


async def test_rules_of_others_are_asked_every_time(engine: Engine, clock: ManualClock) -> None:
    class Fickle(OpenAccess):
        closed = False

        def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
            if self.closed:
                raise AccessDenied("closed now")

    rules = Fickle()
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=rules)
    await broker.start()
    await broker.topics.create(SYSTEM, "orders", TopicConfig())
    await produce(broker, "orders", [b"x"])
    rules.closed = True
    with pytest.raises(AccessDenied):
        await produce(broker, "orders", [b"x"])
    await broker.close()

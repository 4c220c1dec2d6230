"""Who may do what: every operation of the broker against every kind of principal, both ways."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.access.audit import AuditQuery
from penstock.broker.access.checks import (
    ANONYMOUS,
    BROKER,
    SYSTEM,
    UNAUTHENTICATED,
    Operation,
    Principal,
    Resource,
    ResourceKind,
)
from penstock.broker.access.policy import SETUP_NAME
from penstock.broker.broker import Broker
from penstock.errors import AccessDenied, AuthenticationFailed, AuthenticationRequired, PenstockError
from penstock.log.api import Engine, TopicConfig
from penstock.testing.clock import ManualClock
from tests.broker.access.test_checks import OPERATIONS, call
from tests.broker.accounts import broker_with_users, user

READ, WRITE, COMMIT, DESCRIBE, CREATE, DELETE, ADMIN = Operation
EVERYTHING = frozenset(Operation)
ORDERS = Resource(ResourceKind.TOPIC, "orders")
OTHER = Resource(ResourceKind.TOPIC, "other")

# What each principal may do: to the topic `orders`, to topics that no ACL speaks of, and to what is no topic.
RIGHTS: dict[str, tuple[frozenset[Operation], frozenset[Operation], frozenset[Operation]]] = {
    "trusted": (EVERYTHING, EVERYTHING, EVERYTHING),
    "granted": (EVERYTHING, EVERYTHING, EVERYTHING),
    "admin": (EVERYTHING, EVERYTHING, EVERYTHING),
    "producer": (frozenset({WRITE, DESCRIBE}), frozenset({WRITE, DESCRIBE}), frozenset({WRITE, DESCRIBE})),
    "consumer": (frozenset({READ, DESCRIBE}), frozenset({READ, DESCRIBE}), frozenset({READ, DESCRIBE})),
    "seeker": (
        frozenset({READ, COMMIT, DESCRIBE}),
        frozenset({READ, COMMIT, DESCRIBE}),
        frozenset({READ, COMMIT, DESCRIBE}),
    ),
    "guest": (frozenset(), frozenset(), frozenset({DESCRIBE})),
    "operator": (frozenset({CREATE, DELETE}), frozenset({CREATE, DELETE}), frozenset({CREATE, DELETE, DESCRIBE})),
    "listed": (frozenset({READ, WRITE, DESCRIBE}), frozenset(), frozenset({READ, WRITE, DESCRIBE})),
    "reader": (frozenset({READ, DESCRIBE}), frozenset(), frozenset({READ, DESCRIBE})),
    "member": (frozenset({WRITE, DESCRIBE}), frozenset(), frozenset({WRITE, DESCRIBE})),
    "disabled": (frozenset(), frozenset(), frozenset()),
    "deleted": (frozenset(), frozenset(), frozenset()),
    "stranger": (frozenset(), frozenset(), frozenset()),
    "unauthenticated": (frozenset(), frozenset(), frozenset()),
}
# Who may commit: to a group without an ACL in `orders` and in `other`, and in `orders` to one whose ACL names `listed` and `team`.
COMMITS: dict[str, tuple[bool, bool, bool]] = {
    "trusted": (True, True, True),
    "granted": (True, True, True),
    "admin": (True, True, True),
    "producer": (False, False, False),
    "consumer": (True, True, False),
    "seeker": (True, True, True),
    "guest": (False, False, False),
    "operator": (False, False, False),
    "listed": (True, False, True),
    "reader": (True, False, False),
    # Its role is named, but it may not read the topic.
    "member": (False, False, False),
    "disabled": (False, False, False),
    "deleted": (False, False, False),
    "stranger": (False, False, False),
    "unauthenticated": (False, False, False),
}
NOT_LOGGED_IN = {"deleted", "stranger", "unauthenticated"}


@pytest.fixture
async def guarded(engine: Engine, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = broker_with_users(engine, clock)
    await broker.start()
    await broker.topics.create(SYSTEM, "orders", TopicConfig())
    await broker.topics.create(SYSTEM, "other", TopicConfig())
    await broker.groups.commit(SYSTEM, "orders", "g", 0, 0)
    await broker.users.set_role(SYSTEM, "operator", ["create", "delete"])
    await broker.users.set_role(SYSTEM, "seeker", ["read", "commit"])
    await broker.users.set_role(SYSTEM, "team", [])
    await broker.acls.set_acl(SYSTEM, "group://bill*", users=["listed"], roles=["team"])
    await broker.acls.set_acl(SYSTEM, "ord*", users=["listed", "reader:read", "deleted"], roles=["team:write"])
    yield broker
    await broker.close()


async def principal_of(broker: Broker, kind: str) -> Principal:
    match kind:
        case "trusted":
            return ANONYMOUS
        case "granted":
            return Principal("key:one", frozenset({"admin"}))
        case "unauthenticated":
            return UNAUTHENTICATED
        case "stranger":
            return Principal("CN=stranger")
        case "admin" | "producer" | "consumer" | "guest" | "operator" | "seeker":
            return await user(broker, kind, kind)
        case "member":
            return await user(broker, kind, "guest", "team")
        case "disabled":
            principal = await user(broker, kind, "admin")
            await user(broker, "other-admin", "admin")
            await broker.users.update_user(SYSTEM, kind, enabled=False)
            return principal
        case "deleted":
            principal = await user(broker, kind)
            await broker.users.delete_user(SYSTEM, kind)
            return principal
        case _:
            return await user(broker, kind)


def refusal_of(kind: str) -> type[PenstockError]:
    return (
        AuthenticationRequired
        if kind in NOT_LOGGED_IN
        else AuthenticationFailed
        if kind == "disabled"
        else AccessDenied
    )


@pytest.mark.parametrize("kind", RIGHTS)
async def test_every_kind_of_principal_has_exactly_its_rights(kind: str, guarded: Broker) -> None:
    principal = await principal_of(guarded, kind)
    group = Resource(ResourceKind.GROUP, "g")
    for allowed, resources in zip(RIGHTS[kind], ([ORDERS], [OTHER], [BROKER, group]), strict=True):
        for operation in Operation:
            for resource in resources:
                if resource is group and operation is COMMIT:
                    continue  # see the next test
                if operation in allowed:
                    guarded.access.check(principal, operation, resource)
                else:
                    with pytest.raises(refusal_of(kind)):
                        guarded.access.check(principal, operation, resource)


@pytest.mark.parametrize("kind", RIGHTS)
async def test_every_kind_of_principal_commits_to_the_groups_it_may(kind: str, guarded: Broker) -> None:
    principal = await principal_of(guarded, kind)
    groups = [("open", "orders"), ("open", "other"), ("billing", "orders")]
    for may, (group, topic) in zip(COMMITS[kind], groups, strict=True):
        resource = Resource(ResourceKind.GROUP, group, topic)
        if may:
            guarded.access.check(principal, COMMIT, resource)
        else:
            with pytest.raises(refusal_of(kind)):
                guarded.access.check(principal, COMMIT, resource)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_every_operation_is_open_to_who_may_and_to_nobody_else(name: str, guarded: Broker) -> None:
    operation, resource, _ = OPERATIONS[name]
    if name in ("topics.create", "topics.ensure"):
        await guarded.topics.delete(SYSTEM, "orders")
    # Who is refused first, because who is allowed may leave nothing to be refused.
    in_turn = sorted(RIGHTS, key=lambda kind: operation in _rights(kind, resource))
    for kind in in_turn:
        principal = await principal_of(guarded, kind)
        if operation in _rights(kind, resource):
            await call(name, guarded, principal)
            return
        with pytest.raises(refusal_of(kind)):
            await call(name, guarded, principal)
    pytest.fail("nobody may")


def _rights(kind: str, resource: Resource) -> frozenset[Operation]:
    if resource.kind is ResourceKind.GROUP and resource.topic:
        return frozenset({COMMIT}) if COMMITS[kind][0] else frozenset()
    return RIGHTS[kind][0 if resource.kind is ResourceKind.TOPIC else 2]


async def test_a_refusal_says_who_may_not_do_what(guarded: Broker) -> None:
    guest = await user(guarded, "gus", "guest")
    with pytest.raises(AccessDenied, match=r"^unauthorized: gus may not write topic orders$"):
        await guarded.topics.ensure(guest, "orders")
    with pytest.raises(AccessDenied, match=r"^unauthorized: gus may not admin this broker$"):
        guarded.groups.all(guest)
    with pytest.raises(AuthenticationRequired, match=r"^authentication required: log in to read topic orders$"):
        guarded.records.partition(UNAUTHENTICATED, "orders", 0)
    with pytest.raises(AuthenticationRequired, match="there is no user CN=x; an administrator can create it"):
        guarded.records.partition(Principal("CN=x"), "orders", 0)


async def test_a_group_with_an_acl_is_committed_to_by_those_it_names_only(guarded: Broker) -> None:
    ann, bob = await user(guarded, "ann", "consumer"), await user(guarded, "bob", "consumer")
    await guarded.groups.commit(bob, "orders", "reports", 0, 1)
    await guarded.acls.set_acl(SYSTEM, "group://reports", users=["ann"])
    await guarded.groups.commit(ann, "orders", "reports", 0, 7)
    refusal = r"^unauthorized: bob may not commit to group reports: no ACL of the group names them$"
    with pytest.raises(AccessDenied, match=refusal):
        await guarded.groups.commit(bob, "orders", "reports", 0, 999)
    with pytest.raises(AccessDenied, match=refusal):
        await guarded.groups.seek_to_time(bob, "orders", "reports", 0, 0)
    with pytest.raises(AccessDenied, match=refusal):
        await guarded.groups.reset_offset(bob, "orders", "reports", 0, "earliest")
    with pytest.raises(AccessDenied, match=refusal):
        await guarded.subscriptions.subscribe(bob, "orders", 1, name="reports")
    assert guarded.groups.committed(bob, "orders", "reports", 0) == 7
    assert await guarded.groups.seek_to_time(bob, "orders", "", 0, 0) == 0
    await guarded.acls.delete_acl(SYSTEM, "group://reports")
    await guarded.groups.commit(bob, "orders", "reports", 0, 8)


async def test_offsets_of_a_transaction_are_checked_when_they_are_added_and_when_it_is_committed(
    guarded: Broker,
) -> None:
    await guarded.users.set_role(SYSTEM, "both", ["read", "write"])
    bob = await user(guarded, "bob", "both")
    transaction = guarded.transactions.begin(bob)
    guarded.transactions.commit_offset(bob, "orders", transaction, "reports", 0, 5)
    await guarded.acls.set_acl(SYSTEM, "group://reports", users=["ann"])
    with pytest.raises(AccessDenied, match="may not commit to group reports"):
        guarded.transactions.commit_offset(bob, "orders", transaction, "reports", 0, 6)
    with pytest.raises(AccessDenied, match="may not commit to group reports"):
        await guarded.transactions.commit(bob, transaction)


async def test_one_acl_on_all_groups_closes_those_without_their_own(guarded: Broker) -> None:
    ann, bob = await user(guarded, "ann", "consumer"), await user(guarded, "bob", "consumer")
    await guarded.acls.set_acl(SYSTEM, "group://*")
    await guarded.acls.set_acl(SYSTEM, "group://reports", roles=["consumer"])
    await guarded.groups.commit(ann, "orders", "reports", 0, 1)
    with pytest.raises(AccessDenied):
        await guarded.groups.commit(bob, "orders", "anything", 0, 1)


async def test_a_reader_that_joined_a_group_loses_it_at_once_too(guarded: Broker) -> None:
    bob = await user(guarded, "bob", "consumer")
    subscription = await guarded.subscriptions.subscribe(bob, "orders", 1, name="reports")
    guarded.subscriptions.take_many(bob, "orders", subscription, 1, 1)
    await guarded.acls.set_acl(SYSTEM, "group://reports", users=["ann"])
    with pytest.raises(AccessDenied, match="may not commit to group reports"):
        guarded.subscriptions.take_many(bob, "orders", subscription, 1, 1)


async def test_anonymous_readers_of_public_topics_commit_to_open_groups_only(
    engine: Engine, clock: ManualClock
) -> None:
    broker = broker_with_users(engine, clock, allow_anonymous=True, default_public=True)
    await broker.start()
    await broker.topics.create(SYSTEM, "news", TopicConfig())
    await broker.acls.set_acl(SYSTEM, "group://closed", users=["ann"])
    await broker.groups.commit(UNAUTHENTICATED, "news", "open", 0, 1)
    with pytest.raises(AuthenticationRequired, match="log in to commit to group closed"):
        await broker.groups.commit(UNAUTHENTICATED, "news", "closed", 0, 1)
    await broker.close()


async def test_a_topic_created_by_its_first_reader_is_created_with_its_rights_and_in_its_name(guarded: Broker) -> None:
    await guarded.users.set_role(SYSTEM, "both", ["read", "write"])
    reader, both = await user(guarded, "con", "consumer"), await user(guarded, "ann", "both")
    with pytest.raises(AccessDenied, match=r"^unauthorized: topic new does not exist, and con may not create it"):
        await guarded.subscriptions.subscribe(reader, "new", 1)
    assert not guarded.topics.exists("new")
    await guarded.subscriptions.subscribe(both, "new", 1)
    await guarded.subscriptions.subscribe(reader, "new", 1)
    created = await guarded.audit.query(SYSTEM, AuditQuery(types=["topic.create"], resource="new"))
    assert [event.user for event in created.events] == ["ann"]


async def test_a_list_of_schemas_notes_no_refusals(engine: Engine, clock: ManualClock) -> None:
    broker = broker_with_users(engine, clock, allow_anonymous=True)
    await broker.start()
    for name in ("a", "b"):
        await broker.schemas.register(SYSTEM, name, "json", "{}")
    assert list(broker.schemas.versions(UNAUTHENTICATED)) == []
    denied = await broker.audit.query(SYSTEM, AuditQuery(types=["access.denied"]))
    assert denied.events == []
    await broker.close()


async def test_who_loses_a_role_loses_it_at_once(guarded: Broker) -> None:
    ann = await user(guarded, "ann", "consumer")
    guarded.records.partition(ann, "orders", 0)
    await guarded.users.update_user(SYSTEM, "ann", ["producer"])
    with pytest.raises(AccessDenied):
        guarded.records.partition(ann, "orders", 0)


async def test_a_list_of_topics_shows_what_may_be_described(guarded: Broker) -> None:
    assert guarded.topics.names(await user(guarded, "listed")) == ["orders"]
    assert guarded.topics.names(await user(guarded, "gus", "guest")) == []
    assert guarded.topics.names(await user(guarded, "con", "consumer")) == ["orders", "other"]


@pytest.mark.parametrize("default_public", [False, True])
@pytest.mark.parametrize("allow_anonymous", [False, True])
async def test_public_topics_are_open_as_far_as_the_settings_say(
    allow_anonymous: bool, default_public: bool, engine: Engine, clock: ManualClock
) -> None:
    broker = broker_with_users(engine, clock, allow_anonymous=allow_anonymous, default_public=default_public)
    await broker.start()
    gus = await user(broker, "gus", "guest")
    await broker.acls.set_acl(SYSTEM, "closed", users=["ann"])
    if allow_anonymous:
        await broker.acls.set_acl(SYSTEM, "open", public=True)
    public = ({"other"} if default_public else set()) | ({"open"} if allow_anonymous or default_public else set())
    for topic in ("open", "closed", "other"):
        for operation in Operation:
            resource = Resource(ResourceKind.TOPIC, topic)
            may = topic in public and operation in (READ, WRITE, DESCRIBE)
            assert _may(broker, gus, operation, resource) is may
            assert _may(broker, UNAUTHENTICATED, operation, resource) is (may and allow_anonymous)
    assert _may(broker, UNAUTHENTICATED, DESCRIBE, BROKER) is allow_anonymous
    assert not _may(broker, UNAUTHENTICATED, WRITE, BROKER)
    await broker.close()


def _may(broker: Broker, principal: Principal, operation: Operation, resource: Resource) -> bool:
    try:
        broker.access.check(principal, operation, resource)
    except PenstockError:
        return False
    return True


async def test_the_principal_of_the_setup_may_do_nothing_once_there_is_an_administrator(guarded: Broker) -> None:
    founder = Principal(SETUP_NAME, frozenset({"admin"}))
    await guarded.users.create_user(founder, "root", "secret", ["admin"])
    with pytest.raises(AuthenticationRequired, match="there is an administrator now"):
        await guarded.users.create_user(founder, "second", "secret", ["admin"])

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.access.acls import AclInfo
from penstock.broker.access.checks import SYSTEM, Operation, Principal, Resource, ResourceKind, is_allowed
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import InvalidRequest, InvalidTopicName, LimitExceeded
from penstock.log.api import Engine
from penstock.testing.clock import ManualClock
from tests.broker.accounts import broker_with_users


@pytest.fixture
async def broker(engine: Engine, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = broker_with_users(engine, clock)
    await broker.start()
    yield broker
    await broker.close()


async def test_an_acl_is_set_replaced_and_deleted(broker: Broker) -> None:
    acls = broker.acls
    await acls.set_acl(SYSTEM, "orders", users=["ann", "bob:read", "ann"], roles=["producer"])
    assert acls.get_acl(SYSTEM, "orders") == AclInfo("orders", True, False, ("ann", "bob:read"), ("producer",))
    await acls.set_acl(SYSTEM, "a.*", users=["cid"])
    await acls.set_acl(SYSTEM, "orders", users=["bob"])
    assert acls.list_acls(SYSTEM) == [
        AclInfo("a.*", True, False, ("cid",)),
        AclInfo("orders", True, False, ("bob",)),
    ]
    await acls.delete_acl(SYSTEM, "orders")
    await acls.delete_acl(SYSTEM, "orders")
    assert acls.get_acl(SYSTEM, "orders") == AclInfo("orders", False, False)


async def test_a_topic_is_not_made_public_where_everyone_must_log_in(broker: Broker) -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"^cannot make topic public because anonymous access is disabled in server configuration$",
    ):
        await broker.acls.set_acl(SYSTEM, "orders", public=True)


@pytest.mark.parametrize("topic", ["", "a\nb", "../x", "x" * 250, "__users", "__*", "_" * 2])
async def test_acls_speak_of_topics_that_can_be(broker: Broker, topic: str) -> None:
    with pytest.raises((InvalidTopicName, InvalidRequest)):
        await broker.acls.set_acl(SYSTEM, topic, users=["ann"])
    assert broker.acls.list_acls(SYSTEM) == []


@pytest.mark.parametrize("topic", ["*", "a/*", "a.b*", "_*"])
async def test_patterns_may_end_anywhere_in_a_name(broker: Broker, topic: str) -> None:
    await broker.acls.set_acl(SYSTEM, topic, users=["ann"])
    assert broker.acls.get_acl(SYSTEM, topic).exists


async def test_api_keys_and_tenants_are_named_in_acls_of_topics(broker: Broker) -> None:
    await broker.acls.set_acl(SYSTEM, "orders", users=["key:worker:read", "key:read", "tenant:t1"])
    guests = frozenset({"guest"})
    for name, may_read, may_write in (
        ("key:worker", True, False),
        ("key:read", True, True),
        ("tenant:t1", True, True),
        ("key:other", False, False),
        ("key", False, False),
        ("worker", False, False),
    ):
        for operation, may in ((Operation.READ, may_read), (Operation.WRITE, may_write)):
            resource = Resource(ResourceKind.TOPIC, "orders")
            assert is_allowed(broker.access, Principal(name, guests), operation, resource) == may, (name, operation)


async def test_api_keys_and_tenants_are_named_in_acls_of_groups(broker: Broker) -> None:
    await broker.acls.set_acl(SYSTEM, "group://billing", users=["key:worker", "tenant:t1"])
    group = Resource(ResourceKind.GROUP, "billing", "orders")
    readers = frozenset({"consumer"})
    for name, may in (("key:worker", True), ("tenant:t1", True), ("key:other", False), ("worker", False)):
        assert is_allowed(broker.access, Principal(name, readers), Operation.COMMIT, group) == may, name
    with pytest.raises(InvalidRequest, match="entry 'key:worker:read' of ACL group://billing has a right"):
        await broker.acls.set_acl(SYSTEM, "group://billing", users=["key:worker:read"])


@pytest.mark.parametrize("entry", ["key:", "tenant:", "other:x", "key:a\nb", "key:" + "x" * 250, "setup:"])
async def test_other_names_with_a_colon_are_refused_in_acls(broker: Broker, entry: str) -> None:
    for acl in ("orders", "group://billing"):
        with pytest.raises(InvalidRequest):
            await broker.acls.set_acl(SYSTEM, acl, users=[entry])


async def test_entries_are_names_and_roles_that_exist(broker: Broker) -> None:
    with pytest.raises(InvalidRequest, match="user name 'a:admin' is not allowed"):
        await broker.acls.set_acl(SYSTEM, "t", users=["a:admin"])
    with pytest.raises(InvalidRequest, match="there is no role boss: use one of admin, producer, consumer, guest"):
        await broker.acls.set_acl(SYSTEM, "t", roles=["boss:read"])
    with pytest.raises(LimitExceeded, match="too many for one ACL"):
        await broker.acls.set_acl(
            SYSTEM, "t", users=[f"u{number}" for number in range(BrokerLimits().acl_entries_max + 1)]
        )


async def test_all_acls_together_are_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.acls, "_limits", BrokerLimits(acl_entries_total_max=3))
    await broker.acls.set_acl(SYSTEM, "a", users=["ann", "bob"])
    with pytest.raises(LimitExceeded, match=r"all ACLs together.*limits\.acl_entries_total_max"):
        await broker.acls.set_acl(SYSTEM, "b", users=["ann", "bob"])
    await broker.acls.set_acl(SYSTEM, "a", users=["ann", "bob", "cid"])


@pytest.mark.parametrize("group", ["group://billing", "group://billing-*", "group://*", "group://a/b", "group://__x"])
async def test_acls_may_speak_of_groups(broker: Broker, group: str) -> None:
    await broker.acls.set_acl(SYSTEM, group, users=["ann"], roles=["consumer"])
    assert broker.acls.list_acls(SYSTEM) == [AclInfo(group, True, False, ("ann",), ("consumer",))]


@pytest.mark.parametrize("group", ["group://", "group://a\nb", "group://" + "x" * 250])
async def test_acls_speak_of_groups_that_can_be(broker: Broker, group: str) -> None:
    with pytest.raises(InvalidRequest, match="group name"):
        await broker.acls.set_acl(SYSTEM, group, users=["ann"])


async def test_an_acl_of_a_group_names_users_and_roles_and_nothing_else(broker: Broker) -> None:
    with pytest.raises(InvalidRequest, match="entry 'ann:read' of ACL group://g has a right"):
        await broker.acls.set_acl(SYSTEM, "group://g", users=["ann:read"])
    with pytest.raises(InvalidRequest, match="entry 'consumer:write' of ACL group://g has a right"):
        await broker.acls.set_acl(SYSTEM, "group://g", roles=["consumer:write"])
    with pytest.raises(InvalidRequest, match="ACL group://g cannot be public"):
        await broker.acls.set_acl(SYSTEM, "group://g", public=True)


async def test_no_topic_has_a_name_that_an_acl_of_a_group_has(broker: Broker) -> None:
    with pytest.raises(InvalidTopicName):
        await broker.topics.ensure(SYSTEM, "group://billing")

from __future__ import annotations

import pytest

from penstock.broker.access.checks import Operation
from penstock.broker.access.directory import (
    BUILT_IN_ROLES,
    CACHED_MAX,
    Acl,
    Directory,
    Role,
    User,
    check_name,
    parse_entry,
)
from penstock.broker.limits import BrokerLimits
from penstock.errors import InvalidRequest, LimitExceeded
from penstock.log.api import Engine

READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


@pytest.fixture
async def directory(engine: Engine) -> Directory:
    directory = Directory(engine, BrokerLimits())
    await directory.start()
    return directory


async def test_built_in_roles_mean_what_deployed_brokers_mean_by_them(engine: Engine) -> None:
    directory = Directory(engine, BrokerLimits())
    allowed = {name: directory.permissions(frozenset({name})) for name in BUILT_IN_ROLES}
    assert allowed == {
        "admin": frozenset(Operation),
        "producer": {WRITE, DESCRIBE},
        "consumer": {READ, DESCRIBE},
        "guest": frozenset(),
    }


async def test_permissions_of_several_roles_add_up_and_unknown_roles_give_none(engine: Engine) -> None:
    directory = Directory(engine, BrokerLimits())
    assert directory.permissions(frozenset({"producer", "consumer", "gone"})) == {READ, WRITE, DESCRIBE}
    assert directory.permissions(frozenset({"gone"})) == frozenset()


async def test_a_changed_role_counts_at_once(directory: Directory) -> None:
    await directory.roles.put("operator", Role(("create",)))
    assert directory.permissions(frozenset({"operator"})) == {Operation.CREATE}
    await directory.roles.put("operator", Role(("delete", "read")))
    assert directory.permissions(frozenset({"operator"})) == {Operation.DELETE, READ, DESCRIBE}
    await directory.roles.delete("operator")
    assert directory.permissions(frozenset({"operator"})) == frozenset()


async def test_acls_cover_their_topic_or_what_begins_like_it(directory: Directory) -> None:
    for name, user in (("orders", "a"), ("orders*", "b"), ("orders.eu.*", "c"), ("*", "d")):
        await directory.acls.put(name, Acl(False, (user,), ()))
    who_may = {
        topic: {user for user in "abcd" for acl in directory.covering(topic) if acl.allows(user, (), READ)}
        for topic in ("orders", "orders.eu.paris", "orders.us", "other")
    }
    assert who_may == {"orders": set("abd"), "orders.eu.paris": set("bcd"), "orders.us": set("bd"), "other": set("d")}


async def test_a_changed_acl_counts_at_once(directory: Directory) -> None:
    assert directory.covering("orders") == ()
    assert not directory.granted_anywhere("ann", frozenset(), READ)
    await directory.acls.put("ord*", Acl(False, ("ann:read",), ()))
    assert directory.granted_anywhere("ann", frozenset(), READ)
    assert not directory.granted_anywhere("ann", frozenset(), WRITE)
    assert len(directory.covering("orders")) == 1
    await directory.acls.delete("ord*")
    assert directory.covering("orders") == ()
    assert not directory.granted_anywhere("ann", frozenset(), READ)


async def test_entries_may_be_for_reading_or_writing_only(directory: Directory) -> None:
    await directory.acls.put("t", Acl(False, ("both", "in:read", "out:write", "two:read", "two:write"), ("team:read",)))
    [acl] = directory.covering("t")
    allowed = {
        user: {each for each in Operation if acl.allows(user, (), each)} for user in ("both", "in", "out", "two", "no")
    }
    assert allowed == {
        "both": {READ, WRITE, DESCRIBE},
        "in": {READ, DESCRIBE},
        "out": {WRITE, DESCRIBE},
        "two": {READ, WRITE, DESCRIBE},
        "no": set(),
    }
    assert acl.allows("no", ("guest", "team"), READ)
    assert not acl.allows("no", ("guest", "team"), WRITE)


def test_only_a_right_is_cut_from_an_entry() -> None:
    assert parse_entry("CN=a,O=b") == ("CN=a,O=b", frozenset({READ, WRITE, DESCRIBE}))
    assert parse_entry("bob:read") == ("bob", frozenset({READ, DESCRIBE}))
    assert parse_entry("bob:admin")[0] == "bob:admin"


async def test_users_roles_and_acls_are_there_again_after_a_restart(engine: Engine) -> None:
    first = Directory(engine, BrokerLimits())
    await first.start()
    await first.users.put("ann", User("hash", ("operator",), True, 1, 2))
    await first.roles.put("operator", Role(("admin",)))
    await first.acls.put("ord*", Acl(True, (), ("operator",)))
    await first.close()
    second = Directory(engine, BrokerLimits())
    await second.start()
    assert second.users.get("ann") == User("hash", ("operator",), True, 1, 2)
    assert second.has_admin()
    assert not second.has_admin(besides="ann")
    assert second.covering("orders")[0].public


async def test_what_is_remembered_is_bounded(directory: Directory) -> None:
    for number in range(CACHED_MAX + 100):
        directory.covering(f"t{number}")
        directory.covering_group(f"g{number}")
    assert len(directory._topic_acls._covering) <= CACHED_MAX
    assert len(directory._group_acls._covering) <= CACHED_MAX


@pytest.mark.parametrize("name", ["", "x" * 250, "a:b", "a\nb", " a", "a ", "a\x1b[2J", "a\u202eb"])
def test_names_that_could_mislead_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_name("user name", name)


@pytest.mark.parametrize("name", ["a", "ann@example.org", "CN=billing,O=Example Ltd", "Jörg", "x" * 249])
def test_other_names_are_taken(name: str) -> None:
    check_name("user name", name)


async def test_users_roles_and_acls_are_bounded_by_settings(engine: Engine) -> None:
    directory = Directory(engine, BrokerLimits(users_max=1, roles_max=1, acls_max=1))
    await directory.start()
    values = (User("hash", (), True, 1, 2), Role(()), Acl(True, (), ()))
    for table, value in zip((directory.users, directory.roles, directory.acls), values, strict=True):
        await table.put("a", value)  # type: ignore[attr-defined]
        with pytest.raises(LimitExceeded, match=rf"raise limits\.{table.topic.lstrip('_')}_max"):  # type: ignore[attr-defined]
            await table.put("b", value)  # type: ignore[attr-defined]

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.access.audit import AuditQuery
from penstock.broker.access.checks import ANONYMOUS, SYSTEM, Principal
from penstock.broker.access.logins import HOLD_S_MAX
from penstock.broker.access.policy import SETUP_NAME
from penstock.broker.access.users import RoleInfo, Standing, UserInfo
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import (
    AuthenticationFailed,
    InvalidRequest,
    LimitExceeded,
    UserExists,
    UserNotFound,
)
from penstock.log.api import Engine
from penstock.testing.clock import START_MS, ManualClock
from tests.broker.accounts import broker_with_users, user

LIMITS = BrokerLimits()

HERE, THERE = "192.0.2.1:50000", "198.51.100.9:40000"


@pytest.fixture
async def broker(engine: Engine, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = broker_with_users(engine, clock)
    await broker.start()
    yield broker
    await broker.close()


@pytest.fixture
def slept(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long answers were held back."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(broker.logins, "_sleep", sleep)
    return slept


# -- logging in ---------------------------------------------------------------------------------------------------------------


async def test_the_right_password_proves_who_is_asking(broker: Broker) -> None:
    await user(broker, "ann", "producer", "consumer")
    principal = await broker.users.authenticate("ann", "ann", HERE)
    assert principal == Principal("ann")
    assert principal.address == HERE
    assert broker.users.standing(principal) == Standing("ann", ("consumer", "producer"), ("read", "write"))
    assert broker.logins.stats.succeeded == 1


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("ann", "Ann"),
        ("ann", ""),
        ("nobody", "ann"),
        ("", ""),
        ("x" * 60_000, "ann"),
        ("ann", "x" * 60_000),
        ("a:b", ""),
    ],
)
async def test_anything_else_is_refused_without_saying_what_was_wrong(broker: Broker, name: str, password: str) -> None:
    await user(broker, "ann")
    with pytest.raises(AuthenticationFailed, match=r"^invalid username or password$"):
        await broker.users.authenticate(name, password, HERE)


async def test_a_disabled_user_hears_of_it_only_with_the_right_password(broker: Broker) -> None:
    await user(broker, "ann")
    await broker.users.update_user(SYSTEM, "ann", enabled=False)
    with pytest.raises(AuthenticationFailed, match=r"^user account is disabled$"):
        await broker.users.authenticate("ann", "ann", HERE)
    with pytest.raises(AuthenticationFailed, match=r"^invalid username or password$"):
        await broker.users.authenticate("ann", "guess", HERE)


async def test_a_password_that_was_proved_once_is_recognised_without_the_work(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await user(broker, "ann")
    await broker.users.authenticate("ann", "ann", HERE)

    async def not_again(stored: str | None, password: str) -> bool:
        raise AssertionError("verified again")

    with monkeypatch.context() as patch:
        patch.setattr(broker.users._passwords, "verify", not_again)
        await broker.users.authenticate("ann", "ann", THERE)
    await broker.users.set_password(SYSTEM, "ann", "new")
    with pytest.raises(AuthenticationFailed):
        await broker.users.authenticate("ann", "ann", HERE)
    await broker.users.authenticate("ann", "new", HERE)


async def test_a_password_that_changes_while_it_is_verified_proves_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await user(broker, "ann")
    verify = broker.users._passwords.verify

    async def verify_late(stored: str | None, password: str) -> bool:
        result = await verify(stored, password)
        await broker.users.set_password(SYSTEM, "ann", "new")
        return result

    monkeypatch.setattr(broker.users._passwords, "verify", verify_late)
    with pytest.raises(AuthenticationFailed):
        await broker.users.authenticate("ann", "ann", HERE)


async def test_guessing_gets_slower_and_the_password_is_not_checked_meanwhile(
    broker: Broker, clock: ManualClock, slept: list[float]
) -> None:
    await user(broker, "ann")
    for _ in range(LIMITS.login_failures_per_user_max + 1):
        with pytest.raises(AuthenticationFailed, match="invalid"):
            await broker.users.authenticate("ann", "guess", HERE)
    with pytest.raises(AuthenticationFailed, match=r"^too many failed attempts: try again in 0\.2 s$"):
        await broker.users.authenticate("ann", "ann", HERE)
    assert slept == [0.25, 0.25]
    assert (broker.logins.stats.failed, broker.logins.stats.throttled) == (LIMITS.login_failures_per_user_max + 1, 1)
    clock.advance(1)
    await broker.users.authenticate("ann", "ann", HERE)


async def test_a_flood_costs_few_verifications_and_no_answer_is_held_for_long(
    broker: Broker, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    await user(broker, "ann")
    verified = 0
    verify = broker.users._passwords.verify

    async def counted(stored: str | None, password: str) -> bool:
        nonlocal verified
        verified += 1
        return await verify(stored, password)

    monkeypatch.setattr(broker.users._passwords, "verify", counted)
    for guess in range(2_000):
        with pytest.raises(AuthenticationFailed):
            await broker.users.authenticate("ann", f"guess {guess}", HERE)
    assert verified == LIMITS.login_failures_per_user_max + 1
    assert max(slept) <= HOLD_S_MAX
    await broker.audit.close()
    assert broker.audit.stats.written < 10, "equal failures are one event"
    assert broker.audit.stats.folded > 1_900


async def test_throttled_attempts_are_audited_by_address_whatever_names_they_try(
    broker: Broker, slept: list[float]
) -> None:
    for guess in range(500):
        with pytest.raises(AuthenticationFailed):
            await broker.users.authenticate(f"user-{guess}", "guess", HERE)
    page = await broker.audit.query(SYSTEM, AuditQuery())
    told = [(event.user, event.client_ip, event.result) for event in page.events]
    assert told.count(("", "192.0.2.1", "throttled")) == 1
    assert len(told) == LIMITS.login_failures_per_address_max + 2


async def test_more_logins_at_once_than_can_be_checked_are_refused_after_a_while(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_with_users(engine, clock, limits=BrokerLimits(password_checks_max=1))
    await broker.start()
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(broker.logins, "_sleep", sleep)
    await user(broker, "ann")
    await user(broker, "bob")
    first = asyncio.create_task(broker.users.authenticate("ann", "ann", HERE))
    await asyncio.sleep(0)
    with pytest.raises(LimitExceeded, match=r"1 passwords are being checked.*raise limits\.password_checks_max"):
        await broker.users.authenticate("bob", "bob", THERE)
    assert slept == [HOLD_S_MAX]
    assert broker.logins.stats.throttled == 1
    assert (await first).name == "ann"
    await broker.close()


async def test_who_is_known_where_it_logs_in_gets_in_while_others_guess(broker: Broker, slept: list[float]) -> None:
    await user(broker, "ann")
    await broker.users.authenticate("ann", "ann", HERE)
    for _ in range(20):
        with pytest.raises(AuthenticationFailed):
            await broker.users.authenticate("ann", "guess", THERE)
    await broker.users.authenticate("ann", "ann", HERE)


# -- setting up -----------------------------------------------------------------------------------------------------------------


async def test_the_set_up_secret_works_until_there_is_an_administrator(broker: Broker) -> None:
    token = broker.users.open_setup()
    assert token is not None
    assert len(token) == 64
    with pytest.raises(AuthenticationFailed):
        await broker.users.authenticate(SETUP_NAME, "0" * 64, HERE)
    founder = await broker.users.authenticate(SETUP_NAME, token, HERE)
    await broker.users.create_user(founder, "root", "secret", ["admin"])
    with pytest.raises(AuthenticationFailed):
        await broker.users.authenticate(SETUP_NAME, token, HERE)
    assert broker.users.open_setup() is None


async def test_without_being_opened_there_is_no_set_up(broker: Broker) -> None:
    for guess in ("", "None", "0" * 64):
        with pytest.raises(AuthenticationFailed):
            await broker.users.authenticate(SETUP_NAME, guess, HERE)


async def test_a_user_that_may_not_administer_does_not_end_the_set_up(broker: Broker) -> None:
    await user(broker, "ann", "producer")
    assert broker.users.open_setup() is not None


# -- users ----------------------------------------------------------------------------------------------------------------------


async def test_users_are_created_listed_changed_and_deleted(broker: Broker, clock: ManualClock) -> None:
    users = broker.users
    made = await users.create_user(SYSTEM, "bob", "secret", ["consumer", "consumer"])
    assert made == UserInfo("bob", ("consumer",), ("read",), True, START_MS, START_MS)
    clock.advance(1)
    await users.update_user(SYSTEM, "bob", ["producer"])
    assert users.get_user(SYSTEM, "bob") == UserInfo("bob", ("producer",), ("write",), True, START_MS, START_MS + 1000)
    await users.update_user(SYSTEM, "bob", [], enabled=False)
    assert users.get_user(SYSTEM, "bob")[1:4] == (("producer",), ("write",), False)
    await user(broker, "ann")
    assert [each.name for each in users.list_users(SYSTEM)] == ["ann", "bob"]
    await users.delete_user(SYSTEM, "bob")
    assert [each.name for each in users.list_users(SYSTEM)] == ["ann"]


async def test_what_cannot_be_done_to_users_says_why(broker: Broker) -> None:
    users = broker.users
    await user(broker, "bob")
    with pytest.raises(UserExists, match=r'^user "bob" already exists$'):
        await users.create_user(SYSTEM, "bob", "x", [])
    for name, password in (("", "x"), ("eve", "")):
        with pytest.raises(InvalidRequest, match=r"^username and password are required$"):
            await users.create_user(SYSTEM, name, password, [])
    with pytest.raises(InvalidRequest, match="there is no role boss"):
        await users.create_user(SYSTEM, "eve", "x", ["boss"])
    with pytest.raises(InvalidRequest, match="too many for one user"):
        await users.create_user(SYSTEM, "eve", "x", ["guest"] * (LIMITS.roles_per_principal_max + 1))
    with pytest.raises(InvalidRequest, match="a user name has 1 to 249 bytes"):
        await users.create_user(SYSTEM, "e" * 250, "x", [])
    for attempt in (
        users.delete_user(SYSTEM, "eve"),
        users.update_user(SYSTEM, "eve", ["guest"]),
        users.set_password(SYSTEM, "eve", "x"),
    ):
        with pytest.raises(UserNotFound, match=r'^user "eve" not found$'):
            await attempt
    with pytest.raises(UserNotFound):
        users.get_user(SYSTEM, "eve")


async def test_two_who_create_the_same_user_at_once_create_it_once(broker: Broker) -> None:
    results = await asyncio.gather(
        *(broker.users.create_user(SYSTEM, "bob", f"password {number}", []) for number in range(5)),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["UserExists"] * 4 + ["UserInfo"]


async def test_nobody_deletes_the_own_account_nor_the_last_administrator(broker: Broker) -> None:
    root = await user(broker, "root", "admin")
    with pytest.raises(InvalidRequest, match=r"^cannot delete your own account$"):
        await broker.users.delete_user(root, "root")
    with pytest.raises(InvalidRequest, match="root is the only administrator"):
        await broker.users.delete_user(ANONYMOUS, "root")
    with pytest.raises(InvalidRequest, match="root is the only administrator"):
        await broker.users.update_user(root, "root", ["guest"])
    with pytest.raises(InvalidRequest, match="root is the only administrator"):
        await broker.users.update_user(root, "root", enabled=False)
    await user(broker, "second", "admin")
    await broker.users.update_user(root, "root", ["guest"])


async def test_a_user_changes_the_own_password_with_the_old_one(broker: Broker, slept: list[float]) -> None:
    ann = await user(broker, "ann", "guest")
    with pytest.raises(AuthenticationFailed, match=r"^invalid current password$"):
        await broker.users.change_own_password(ann, "guess", "new")
    await broker.users.change_own_password(ann, "ann", "new")
    await broker.users.authenticate("ann", "new", HERE)
    for _ in range(10):
        with pytest.raises(AuthenticationFailed):
            await broker.users.change_own_password(ann, "guess", "newer")
    with pytest.raises(AuthenticationFailed):
        await broker.users.change_own_password(ann, "new", "newer")


# -- roles ----------------------------------------------------------------------------------------------------------------------


async def test_roles_of_ones_own_stand_behind_those_that_are_built_in(broker: Broker) -> None:
    users = broker.users
    await users.set_role(SYSTEM, "operator", ["read", "create", "read"], "runs things")
    assert users.list_roles(SYSTEM) == [
        RoleInfo("admin", ("read", "write", "admin"), "Everything"),
        RoleInfo("producer", ("write",), "Writes to every topic"),
        RoleInfo("consumer", ("read",), "Reads every topic"),
        RoleInfo("guest", (), "Nothing beyond what ACLs give"),
        RoleInfo("operator", ("read", "create"), "runs things"),
    ]
    await users.delete_role(SYSTEM, "operator")
    await users.delete_role(SYSTEM, "operator")
    assert len(users.list_roles(SYSTEM)) == 4


async def test_what_cannot_be_done_to_roles_says_why(broker: Broker) -> None:
    users = broker.users
    with pytest.raises(InvalidRequest, match="role admin is built in: choose another name"):
        await users.set_role(SYSTEM, "admin", [])
    with pytest.raises(InvalidRequest, match="unknown permission 'fly': use some of read, write"):
        await users.set_role(SYSTEM, "pilot", ["fly"])
    with pytest.raises(InvalidRequest, match="at most 1024 bytes"):
        await users.set_role(SYSTEM, "pilot", [], "x" * 1025)
    with pytest.raises(InvalidRequest, match="a role name has 1 to 64 bytes"):
        await users.set_role(SYSTEM, "x" * 65, [])
    with pytest.raises(InvalidRequest, match="role guest is built in and stays"):
        await users.delete_role(SYSTEM, "guest")
    await users.set_role(SYSTEM, "team", [])
    await user(broker, "ann", "team")
    with pytest.raises(InvalidRequest, match="role team is in use by user ann"):
        await users.delete_role(SYSTEM, "team")
    await broker.users.update_user(SYSTEM, "ann", ["guest"])
    await broker.acls.set_acl(SYSTEM, "orders", roles=["team:read"])
    with pytest.raises(InvalidRequest, match="role team is in use by the ACL of orders"):
        await users.delete_role(SYSTEM, "team")
    await broker.acls.delete_acl(SYSTEM, "orders")
    await broker.api_keys.create(SYSTEM, "worker", ["team"])
    with pytest.raises(InvalidRequest, match="role team is in use by key worker"):
        await users.delete_role(SYSTEM, "team")
    await broker.api_keys.revoke(SYSTEM, "worker")
    await users.delete_role(SYSTEM, "team")


async def test_the_audit_trail_tells_of_all_of_it_and_of_no_password(broker: Broker, clock: ManualClock) -> None:
    root = Principal("root", frozenset({"admin"}), address=HERE)
    users = broker.users
    await users.create_user(root, "ann", "hunter2", ["guest"])
    await users.update_user(root, "ann", ["consumer"])
    await users.set_password(root, "ann", "hunter3")
    clock.advance(1)
    await users.authenticate("ann", "hunter3", HERE)
    with pytest.raises(AuthenticationFailed):
        await users.authenticate("ann", "hunter4", HERE)
    clock.advance(1)
    await users.set_role(root, "team", [])
    await users.delete_role(root, "team")
    await broker.acls.set_acl(root, "orders", users=["ann"])
    await broker.acls.delete_acl(root, "orders")
    await users.delete_user(root, "ann")
    await broker.audit.written()
    page = await broker.audit.query(SYSTEM, AuditQuery())
    assert [event.type for event in reversed(page.events)] == [
        "user.create",
        "user.update",
        "user.password",
        "auth.success",
        "auth.failure",
        "role.set",
        "role.delete",
        "acl.set",
        "acl.delete",
        "user.delete",
    ]
    assert {event.client_ip for event in page.events} == {"192.0.2.1"}
    assert "hunter" not in str(page)

"""API keys: made once, stored hashed, revoked for good."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.access.api_keys import KEYS_TOPIC, digest_of
from penstock.broker.access.audit import AuditQuery
from penstock.broker.access.checks import SYSTEM, Principal
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import AuthenticationFailed, EntryNotFound, InvalidRequest, LimitExceeded
from penstock.log.api import Engine
from penstock.testing.clock import ManualClock
from tests.engines import make_engine

LIMITS = BrokerLimits()

HERE = "192.0.2.1:1"


async def test_a_key_stands_for_its_name_and_roles(broker: Broker) -> None:
    key = await broker.api_keys.create(SYSTEM, "worker", ["consumer"])
    login = broker.api_keys.authenticate(key, HERE)
    assert login is not None
    principal = login.principal
    assert login.key_digest == digest_of(key)
    assert (principal.name, principal.roles, principal.trusted) == ("key:worker", frozenset({"consumer"}), False)
    assert principal.address == HERE
    assert broker.api_keys.authenticate(key + "x") is None
    assert broker.api_keys.authenticate("") is None


async def test_there_may_be_several_and_they_survive_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    keys: dict[str, str] = {}
    for run in range(2):
        engine = make_engine(tmp_path / "data", clock=clock)
        await engine.start()
        broker = Broker(engine, clock=clock, limits=BrokerLimits())
        await broker.start()
        for name, key in keys.items():
            login = broker.api_keys.authenticate(key)
            assert login is not None
            assert login.principal.name == f"key:{name}"
        for name in (f"a{run}", f"b{run}"):
            keys[name] = await broker.api_keys.create(SYSTEM, name)
        assert [info.name for info in broker.api_keys.names(SYSTEM)] == sorted(keys)
        await broker.close()
        await engine.close()


async def test_the_log_holds_a_hash_and_not_the_key(broker: Broker, engine: Engine) -> None:
    key = await broker.api_keys.create(SYSTEM, "worker")
    [block] = await engine.partition(KEYS_TOPIC, 0).read(0)
    [stored] = block.values()
    assert stored is not None
    assert key.encode() not in stored
    assert digest_of(key) in stored


async def test_a_revoked_key_is_worth_nothing_and_its_name_free(broker: Broker) -> None:
    key = await broker.api_keys.create(SYSTEM, "worker")
    assert broker.api_keys.is_valid(digest_of(key))
    await broker.api_keys.revoke(SYSTEM, "worker")
    assert not broker.api_keys.is_valid(digest_of(key))
    assert broker.api_keys.authenticate(key) is None
    other = await broker.api_keys.create(SYSTEM, "worker")
    assert other != key
    assert broker.api_keys.authenticate(key) is None
    assert broker.api_keys.authenticate(other) is not None


async def test_mistakes_are_refused(broker: Broker) -> None:
    await broker.api_keys.create(SYSTEM, "worker")
    with pytest.raises(InvalidRequest, match="already"):
        await broker.api_keys.create(SYSTEM, "worker")
    with pytest.raises(InvalidRequest, match="role"):
        await broker.api_keys.create(SYSTEM, "idle", [])
    with pytest.raises(InvalidRequest, match="key name"):
        await broker.api_keys.create(SYSTEM, "")
    with pytest.raises(EntryNotFound, match="penstock key list"):
        await broker.api_keys.revoke(SYSTEM, "nobody")


async def test_there_are_no_more_keys_than_allowed(engine: Engine, clock: ManualClock) -> None:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(api_keys_max=1))
    await broker.start()
    await broker.api_keys.create(SYSTEM, "one")
    with pytest.raises(LimitExceeded):
        await broker.api_keys.create(SYSTEM, "two")
    await broker.close()


@pytest.mark.parametrize("claimed", [None, "tenant:t1"])
async def test_wrong_secrets_delay_those_that_people_chose_but_no_key_that_the_broker_made(
    broker: Broker, clock: ManualClock, claimed: str | None
) -> None:
    keys = broker.api_keys
    made = await keys.create(SYSTEM, "worker")
    chosen = Principal(claimed or "key:configured", address=HERE)

    def find(digest: bytes) -> Principal | None:
        return chosen if digest == digest_of("chosen") else None

    for _ in range(LIMITS.login_failures_per_address_max + 1):
        clock.advance(LIMITS.login_delay_s_max)
        assert keys.authenticate("guess", HERE, find, claimed) is None
    with pytest.raises(AuthenticationFailed, match="too many failed attempts"):
        keys.authenticate("chosen", HERE, find, claimed)
    login = keys.authenticate(made, HERE, find, claimed)
    assert login is not None
    assert login.principal.name == "key:worker"
    clock.advance(LIMITS.login_delay_s_max)
    login = keys.authenticate("chosen", HERE, find, claimed)
    assert login is not None
    assert login == (chosen, None)
    events = (await broker.audit.query(SYSTEM, AuditQuery(types=["auth.success", "auth.failure"]))).events
    told = [(event.user, event.result) for event in events]
    assert told[:3] == [(chosen.name, "success"), ("key:worker", "success"), ("", "throttled")]
    assert told[3:] == [(claimed or "key:unknown", "failure")] * (LIMITS.login_failures_per_address_max + 1)


async def test_failures_of_one_protocol_count_for_the_others(broker: Broker) -> None:
    for _ in range(LIMITS.login_failures_per_address_max + 1):
        assert broker.api_keys.authenticate("guess", HERE) is None
    with pytest.raises(AuthenticationFailed, match="too many failed attempts"):
        broker.logins.check("ann", HERE)
    broker.logins.check("ann", "198.51.100.9:1")


async def test_what_cannot_be_a_key_says_why(broker: Broker) -> None:
    for name in ("configured", "unknown"):
        with pytest.raises(InvalidRequest, match=f"key name {name} is reserved"):
            await broker.api_keys.create(SYSTEM, name)
    with pytest.raises(InvalidRequest, match="there is no role boss"):
        await broker.api_keys.create(SYSTEM, "worker", ["boss"])
    with pytest.raises(InvalidRequest, match="too many for one key"):
        await broker.api_keys.create(SYSTEM, "worker", ["guest"] * (LIMITS.roles_per_principal_max + 1))
    assert broker.api_keys.names(SYSTEM) == []


async def test_of_several_who_create_one_name_at_once_one_wins(broker: Broker) -> None:
    results = await asyncio.gather(
        *(broker.api_keys.create(SYSTEM, "worker", [role]) for role in ("producer", "consumer", "guest")),
        return_exceptions=True,
    )
    [key] = [result for result in results if isinstance(result, str)]
    assert sum(isinstance(result, InvalidRequest) for result in results) == 2
    assert broker.api_keys.authenticate(key) is not None

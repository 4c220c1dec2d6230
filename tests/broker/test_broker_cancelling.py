"""Every operation of the broker may be cancelled wherever it waits, and leaves nothing half done."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.broker.access.audit import AuditQuery
from penstock.broker.access.checks import ANONYMOUS, SYSTEM
from penstock.broker.broker import Broker
from penstock.broker.deliveries.deadletter_entries import FailedRecord
from penstock.broker.deliveries.shards import SUBSCRIPTIONS_TOPIC
from penstock.broker.limits import BrokerLimits
from penstock.broker.schedule.schedule import Scheduled
from penstock.broker.schedule.schedule_log import ScheduleLog
from penstock.errors import EntryNotFound, InvalidRequest, LimitExceeded, PenstockError, TopicExists
from penstock.log.api import Engine, TopicConfig
from penstock.testing.clock import ManualClock
from tests.broker.access.test_checks import public_methods
from tests.broker.accounts import broker_with_users, user
from tests.broker.cancelling import at_every_step, cancelled_at
from tests.broker.producing import dead_letter, produce, read_values
from tests.broker.transaction_house import House
from tests.open_access import OpenAccess

WHO = ANONYMOUS

# They change nothing, or one thing in one append: where they are cancelled it is made or not made, as a whole.
SAFE_BY_THEMSELVES = {
    "topics.ensure",  # creates in a task of its own
    "groups.seek_to_time",
    "groups.start_position",
    "groups.lag",
    "topics.find",
    "topics.follow",
    "groups.lags",
    "coordinator.heartbeat",  # changes memory in one step; what was not stored is stored with the next heartbeat or sweep
    "coordinator.leave",  # likewise
    "groups.statuses",
    "subscription_admin.statuses",
    "subscription_admin.first_statuses",
    "audit.query",
    "dead_letters.letter",
    "dead_letters.letters",
    "pipelines.report",
    "pipelines.note_end",
    "snapshots.create",  # runs in a task of the engine's own
    "snapshots.release",  # the removal is done by a thread; what is left, maintenance removes
    "pipelines.stop",
    "producers.register",  # one append
    "schedule.list_pending",
    "schemas.check",
    "schemas.decode",
    "schemas.find",
    "schemas.validate",
    "staging.abort",
    "staging.commit",  # decides and publishes in tasks of its own
    "subscriptions.load",
    "transactions.commit",  # appends, and waits for that only
}


def test_every_operation_that_waits_runs_to_completion_or_is_known_to_be_safe() -> None:
    waiting = {
        name: method
        for name, method in public_methods().items()
        if hasattr(method, "declaration") and inspect.iscoroutinefunction(inspect.unwrap(method))
    }
    unguarded = {name for name, method in waiting.items() if not hasattr(method, "runs_to_completion")}
    assert unguarded == SAFE_BY_THEMSELVES


async def test_creating_a_topic_with_a_schema_is_done_or_not_begun(broker: Broker) -> None:
    await broker.schemas.register(WHO, "s", "json", '{"type": "object"}')

    async def attempt(step: int) -> bool:
        name = f"t{step}"
        waited = await cancelled_at(step, broker.topics.create(WHO, name, TopicConfig(), "s"))
        with suppress(TopicExists):
            await broker.topics.create(WHO, name, TopicConfig(), "s")
        assert broker.schemas.bound_to(WHO, name) == "s"
        created = await broker.audit.query(SYSTEM, AuditQuery(types=["topic.create"], resource=name))
        assert created.total == 1
        return waited

    await at_every_step(attempt)


async def test_deleting_a_topic_takes_everything_of_it_along(broker: Broker) -> None:
    await broker.schemas.register(WHO, "s", "json", '{"type": "object"}')

    async def attempt(step: int) -> bool:
        name = f"t{step}"
        await broker.topics.create(WHO, name, TopicConfig(), "s")
        await broker.groups.commit(WHO, name, "g", 0, 1)
        subscription = await broker.subscriptions.subscribe(WHO, name, 1, name="workers")
        waited = await cancelled_at(step, broker.topics.delete(WHO, name))
        await broker.background.finish()
        assert not broker.topics.exists(name)
        assert subscription.deleted
        await broker.topics.ensure(WHO, name)
        assert broker.schemas.bound_to(WHO, name) is None
        assert await broker.groups.start_position(WHO, name, "g", 0, "committed") == 0
        deleted = await broker.audit.query(SYSTEM, AuditQuery(types=["topic.delete"], resource=name))
        assert deleted.total == 1
        return waited

    await at_every_step(attempt)


async def test_a_subscription_is_stored_and_known_or_neither(broker: Broker, engine: Engine) -> None:
    async def attempt(step: int) -> bool:
        waited = await cancelled_at(step, broker.subscriptions.subscribe(WHO, f"t{step}", 1, name="g"))
        await broker.background.finish()
        again = await broker.subscriptions.subscribe(WHO, f"t{step}", 1, name="g")
        stored = {key for key, value in broker.subscriptions._shards[0].stored() if value.topic == f"t{step}"}
        assert stored == {again.id}
        return waited

    await at_every_step(attempt)
    assert engine.partition(SUBSCRIPTIONS_TOPIC, 0).failure is None


async def delay(broker: Broker, topic: str, value: bytes) -> Scheduled:
    scheduled: asyncio.Future[Scheduled | PenstockError] = asyncio.get_running_loop().create_future()
    broker.schedule.add(WHO, topic, 0, value, delay_ms=60_000, done=scheduled.set_result)
    result = await scheduled
    assert isinstance(result, Scheduled)
    return result


async def test_a_delayed_record_whose_cancel_was_cancelled_waits_as_the_log_says(
    broker: Broker, engine: Engine
) -> None:
    await broker.topics.ensure(WHO, "t")

    async def attempt(step: int) -> bool:
        entry = await delay(broker, "t", b"v")
        waited = await cancelled_at(step, broker.schedule.cancel(WHO, "t", entry.id))
        await broker.background.finish()
        # Behind whatever the cancel has appended.
        await broker.schedule.cancel(WHO, "t", (await delay(broker, "t", b"last")).id)
        assert broker.schedule.pending == len(await ScheduleLog(engine).load())
        with suppress(EntryNotFound):
            await broker.schedule.cancel(WHO, "t", entry.id)
        return waited

    await at_every_step(attempt)
    assert broker.schedule.pending == 0


async def test_a_dead_letter_is_replayed_once_although_a_replay_of_it_was_cancelled(broker: Broker) -> None:
    async def attempt(step: int) -> bool:
        topic = f"t{step}"
        await broker.topics.ensure(WHO, topic)
        await dead_letter(broker, [FailedRecord(topic, 0, 0, b"v", None, None, "why", 1, 1, 1)])
        waited = await cancelled_at(step, broker.dead_letters.replay(WHO, topic, "0-0"))
        await broker.dead_letters.replay_all(WHO, topic)
        await broker.background.finish()
        assert await read_values(broker.records.partition(WHO, topic, 0)) == [b"v"]
        assert await broker.dead_letters.letters(WHO, topic, 10) == []
        return waited

    await at_every_step(attempt)


async def test_the_last_administrator_stays_although_the_delete_of_another_was_cancelled(
    engine: Engine, clock: ManualClock
) -> None:
    broker = broker_with_users(engine, clock)
    await broker.start()

    async def attempt(step: int) -> bool:
        first, second = f"first{step}", f"second{step}"
        for name in (first, second):
            await user(broker, name, "admin")
        waited = await cancelled_at(step, broker.users.delete_user(SYSTEM, first))
        with suppress(InvalidRequest):  # it may be the only one left
            await broker.users.delete_user(SYSTEM, second)
        await broker.background.finish()
        administrators = [each.name for each in broker.users.list_users(SYSTEM)]
        assert administrators
        deleted = await broker.audit.query(SYSTEM, AuditQuery(types=["user.delete"], resource=first))
        assert deleted.total == (first not in administrators)
        await user(broker, f"other{step}", "admin")
        for name in administrators:
            await broker.users.delete_user(SYSTEM, name)
        return waited

    await at_every_step(attempt)
    await broker.close()


async def test_what_was_changed_is_audited_although_the_caller_was_cancelled(broker: Broker) -> None:
    async def attempt(step: int) -> bool:
        waits = [
            await cancelled_at(step, broker.acls.set_acl(WHO, f"t{step}", users=["ann"])),
            await cancelled_at(step, broker.api_keys.create(WHO, f"k{step}")),
            await cancelled_at(step, broker.groups.reset_offset(WHO, "orders", f"g{step}", 0, "earliest")),
        ]
        await broker.background.finish()
        for kind, name in (("acl.set", f"t{step}"), ("key.create", f"k{step}"), ("group.reset", f"g{step}")):
            assert (await broker.audit.query(SYSTEM, AuditQuery(types=[kind], resource=name))).total == 1
        return any(waits)

    await broker.topics.ensure(WHO, "orders")
    await at_every_step(attempt)


async def test_a_transaction_is_committed_once_although_its_commit_was_cancelled(house: House) -> None:
    async with house:

        async def attempt(step: int) -> bool:
            topic = f"t{step}"
            await house.topic(topic)
            transaction = house.begin()
            house.add(transaction, topic, [b"v"])
            waited = await cancelled_at(step, house.commit(transaction))
            await house.commit(transaction)
            assert await house.values(topic) == [b"v"]
            return waited

        await at_every_step(attempt)


async def test_a_group_keeps_its_place_under_the_limit_until_its_first_commit_is_over(
    tmp_path: Path, engine: Engine, clock: ManualClock
) -> None:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(groups_max=1), access=OpenAccess())
    await broker.start()
    committing = broker.groups.commit(WHO, "t", "first", 0, 1)
    committing.cancel()
    await asyncio.wait([committing])
    with pytest.raises(LimitExceeded):
        await broker.groups.commit(WHO, "t", "second", 0, 1)
    await broker.groups.commit(WHO, "t", "first", 0, 2)
    assert broker.groups.committed(WHO, "t", "first", 0) == 2
    await broker.close()


async def test_closing_waits_for_operations_whose_callers_were_cancelled(engine: Engine, clock: ManualClock) -> None:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    assert await cancelled_at(1, broker.topics.create(WHO, "t", TopicConfig()))
    await broker.close()
    assert "t" in engine.topics()


async def test_a_writer_that_gives_up_leaves_its_topic_usable(broker: Broker) -> None:
    async def attempt(step: int) -> bool:
        waited = await cancelled_at(step, broker.topics.ensure(WHO, f"t{step}"))
        await broker.topics.ensure(WHO, f"t{step}")
        await produce(broker, f"t{step}", [b"v"])
        return waited

    await at_every_step(attempt)

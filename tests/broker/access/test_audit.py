from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.broker.access.audit import (
    ACCESS_AUDIT_TOPIC,
    AUDIT_TOPIC,
    DEDUP_WINDOW_S,
    DETAIL_BYTES_MAX,
    EVENTS_MAX,
    EVENTS_PER_CHECK,
    NAME_BYTES_KEPT,
    REFUSALS_PER_SOURCE_MAX,
    REFUSALS_WINDOW_S,
    SOURCES_MAX,
    TRUNCATED,
    WAITING_EVENTS_MAX,
    Audit,
    AuditEvent,
    AuditQuery,
)
from penstock.broker.access.checks import BROKER, SYSTEM, Operation, Principal, Resource, ResourceKind
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.clock import SystemClock
from penstock.errors import InvalidRequest, ShuttingDown
from penstock.log.api import Engine
from penstock.testing.clock import START_MS, ManualClock
from penstock.testing.faults import FaultyDisk
from penstock.workers import WorkerPool
from tests.engines import make_engine
from tests.open_access import OpenAccess
from tests.test_server import config_for, running

ANN = Principal("ann", address="192.0.2.1:50000")
BOB = Principal("bob", address="198.51.100.9:40000")


@pytest.fixture
async def audit(engine: Engine, clock: ManualClock) -> AsyncIterator[Audit]:
    audit = Audit(engine, clock, BrokerLimits(), OpenAccess(), WorkerPool(), node="node-1")
    await audit.start()
    yield audit
    await audit.close()


async def types(audit: Audit, **query: object) -> list[str]:
    await audit.written()
    page = await audit.query(SYSTEM, AuditQuery(**query))  # type: ignore[arg-type]
    return [event.type for event in page.events]


@pytest.mark.dense
async def test_what_is_noted_is_found_newest_first(audit: Audit, clock: ManualClock) -> None:
    audit.note(ANN, "topic.create", "orders", details={"partitions": "3"})
    clock.advance(1)
    audit.note(BOB, "topic.delete", "orders")
    await audit.written()
    page = await audit.query(SYSTEM, AuditQuery())
    newest, oldest = page.events
    assert page.total == 2
    assert (oldest.id, oldest.ts_ms, oldest.type, oldest.user) == ("0", START_MS, "topic.create", "ann")
    assert (oldest.client_ip, oldest.resource, oldest.action) == ("192.0.2.1", "orders", "create")
    assert (oldest.result, oldest.node, oldest.details) == ("success", "node-1", {"partitions": "3"})
    assert (newest.id, newest.ts_ms, newest.type, newest.user) == ("1", START_MS + 1000, "topic.delete", "bob")


async def test_events_are_found_by_what_they_say(audit: Audit, clock: ManualClock) -> None:
    audit.note(ANN, "topic.create", "orders")
    clock.advance(10)
    audit.note(BOB, "topic.delete", "orders", details={"why": "Clean-Up"})
    clock.advance(10)
    audit.note_refusal(BOB, "access.denied", "secret", "read", "denied")
    assert await types(audit) == ["access.denied", "topic.delete", "topic.create"]
    assert await types(audit, types=["topic.create", "access.denied"]) == ["access.denied", "topic.create"]
    assert await types(audit, user="ann") == ["topic.create"]
    assert await types(audit, resource="orders") == ["topic.delete", "topic.create"]
    assert await types(audit, result="denied") == ["access.denied"]
    assert await types(audit, search="clean-up") == ["topic.delete"]
    assert await types(audit, start_ms=START_MS + 1) == ["access.denied", "topic.delete"]
    assert await types(audit, end_ms=START_MS + 10_000) == ["topic.delete", "topic.create"]
    assert await types(audit, limit=1) == ["access.denied"]
    assert await types(audit, limit=1, skip=2) == ["topic.create"]
    assert await types(audit, skip=9) == []
    page = await audit.query(SYSTEM, AuditQuery(limit=1))
    assert page.total == 3


@pytest.mark.parametrize(
    "query", [AuditQuery(limit=-1), AuditQuery(limit=EVENTS_MAX + 1), AuditQuery(skip=-1), AuditQuery(skip=10**9)]
)
async def test_a_query_that_asks_for_too_much_is_refused(audit: Audit, query: AuditQuery) -> None:
    with pytest.raises(InvalidRequest, match="events at a time"):
        await audit.query(SYSTEM, query)


async def test_equal_refusals_become_one_event_that_counts_them(audit: Audit, clock: ManualClock) -> None:
    orders = Resource(ResourceKind.TOPIC, "orders")
    for _ in range(100):
        audit.note_denied(ANN, Operation.READ, orders)
    audit.note_denied(ANN, Operation.WRITE, orders)
    audit.note_denied(BOB, Operation.READ, orders)
    audit.note_denied(BOB, Operation.ADMIN, BROKER)
    clock.advance(DEDUP_WINDOW_S)
    audit.note_denied(ANN, Operation.READ, orders)
    await audit.written()
    page = await audit.query(SYSTEM, AuditQuery())
    told = [(event.user, event.action, event.resource, event.details) for event in page.events]
    assert told == [
        ("ann", "read", "orders", {"repeated": "99"}),
        ("bob", "admin", "broker", {}),
        ("bob", "read", "orders", {}),
        ("ann", "write", "orders", {}),
        ("ann", "read", "orders", {}),
    ]
    assert audit.stats.folded == 99


async def test_noting_never_waits_and_gathers_while_an_append_is_in_flight(audit: Audit, engine: Engine) -> None:
    commits = engine.stats.commits
    for number in range(1000):
        audit.note(ANN, "topic.create", f"t{number}")
    await audit.written()
    assert audit.stats.written == 1000
    assert engine.stats.commits - commits <= 3


async def test_more_than_fit_are_dropped_and_counted(audit: Audit) -> None:
    for number in range(WAITING_EVENTS_MAX + 101):
        audit.note(ANN, "topic.create", f"t{number}")
    await audit.written()
    assert (audit.stats.written, audit.stats.dropped) == (WAITING_EVENTS_MAX + 1, 100)


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\U0001f600"])
async def test_texts_of_clients_are_cut_to_a_number_of_bytes(audit: Audit, letter: str) -> None:
    long = letter * 20_000
    audit.note(Principal(long), "auth.failure", long, details={"why": long})
    [event] = (await audit.query(SYSTEM, AuditQuery())).events
    assert {len(text.encode()) - len(TRUNCATED) for text in (event.user, event.resource)} == {NAME_BYTES_KEPT}
    assert len(event.details["why"].encode()) - len(TRUNCATED) == DETAIL_BYTES_MAX


async def test_refusals_do_not_push_out_changes(audit: Audit, engine: Engine) -> None:
    audit.note(ANN, "topic.delete", "orders")
    for number in range(1_000):
        stranger = Principal(f"user-{number}", address=f"10.0.{number // 256}.{number % 256}:1")
        audit.note_refusal(stranger, "auth.failure", stranger.name, "login", "failure")
    await audit.written()
    assert engine.partition(AUDIT_TOPIC, 0).committed_end == 1, (
        "the topic of changes holds nothing that anyone can cause"
    )
    page = await audit.query(SYSTEM, AuditQuery(limit=1_001))
    assert page.total == len(page.events) == 1_001
    assert len({event.id for event in page.events}) == 1_001
    assert [event.resource for event in page.events if event.type == "topic.delete"] == ["orders"]


async def test_refusals_that_fill_their_queue_leave_room_for_changes(audit: Audit) -> None:
    for number in range(WAITING_EVENTS_MAX + 101):
        audit.note(ANN, "access.denied", f"t{number}")
    audit.note(ANN, "topic.delete", "orders")
    assert audit.stats.dropped == 100
    assert await types(audit, types=["topic.delete"]) == ["topic.delete"]


async def test_one_source_causes_few_events_a_minute_and_the_rest_is_counted(audit: Audit, clock: ManualClock) -> None:
    for number in range(1_000):
        audit.note_refusal(Principal(f"user-{number}", address=BOB.address), "auth.failure", "", "login", "failure")
    audit.note_refusal(ANN, "access.denied", "orders", "read", "denied")
    page = await audit.query(SYSTEM, AuditQuery())
    assert page.total == REFUSALS_PER_SOURCE_MAX + 1
    assert audit.stats.folded == 1_000 - REFUSALS_PER_SOURCE_MAX
    clock.advance(REFUSALS_WINDOW_S)
    audit.note_refusal(BOB, "auth.failure", "", "login", "failure")
    newest = (await audit.query(SYSTEM, AuditQuery(limit=1))).events[0]
    assert (newest.user, newest.details) == ("bob", {"suppressed": str(1_000 - REFUSALS_PER_SOURCE_MAX)})


async def test_equal_logins_become_one_event_that_counts_them(audit: Audit, clock: ManualClock) -> None:
    for _ in range(100):
        audit.note_login(ANN)
    audit.note_login(BOB)
    clock.advance(DEDUP_WINDOW_S)
    audit.note_login(ANN)
    page = await audit.query(SYSTEM, AuditQuery())
    told = [(event.type, event.user, event.action, event.result, event.details) for event in page.events]
    assert told == [
        ("auth.success", "ann", "login", "success", {"repeated": "99"}),
        ("auth.success", "bob", "login", "success", {}),
        ("auth.success", "ann", "login", "success", {}),
    ]


async def test_the_memory_for_sources_is_bounded(audit: Audit) -> None:
    for number in range(SOURCES_MAX + 10):
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1"
        audit.note_refusal(Principal("ann", address=address), "auth.failure", "", "login", "failure")
    assert len(audit._sources) == SOURCES_MAX


@pytest.mark.embedded
async def test_a_trail_that_cannot_be_written_is_counted_and_logged_once(tmp_path: Path, clock: ManualClock) -> None:
    disk = FaultyDisk()
    engine = make_engine(tmp_path / "data", clock=clock, disk=disk)
    await engine.start()
    audit = Audit(engine, clock, BrokerLimits(), OpenAccess(), WorkerPool())
    await audit.start()
    disk.fail_next_fsync()
    with capture_logs() as logs:
        for _ in range(3):
            audit.note(ANN, "topic.create", "orders")
            await asyncio.wait_for(audit.written(), 30)
    assert audit.stats.dropped == 3
    assert [entry["event"] for entry in logs if entry["event"] == "audit_not_written"] == ["audit_not_written"]
    await audit.close()
    try:
        await engine.close()
    except Exception:  # noqa: BLE001  a log whose disk failed closes with that error
        pass


async def test_the_trail_is_there_after_a_restart_and_its_size_is_bounded(engine: Engine, clock: ManualClock) -> None:
    first = Audit(engine, clock, BrokerLimits(), OpenAccess(), WorkerPool())
    await first.start()
    first.note(ANN, "topic.create", "orders")
    await first.close()
    first.note(ANN, "topic.delete", "orders")
    assert first.stats.dropped == 1, "closed"
    second = Audit(engine, clock, BrokerLimits(), OpenAccess(), WorkerPool())
    await second.start()
    assert await types(second) == ["topic.create"]
    await second.close()
    limits = BrokerLimits()
    for topic in (AUDIT_TOPIC, ACCESS_AUDIT_TOPIC):
        config = engine.topics()[topic].config
        assert (config.retention_ms, config.retention_bytes) == (
            limits.audit_retention_ms,
            limits.audit_retention_bytes,
        )


@pytest.mark.parametrize("by", ["the broker", "the client"])
async def test_a_query_is_ended_by_a_stop_of_the_broker_and_by_that_of_its_client(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    workers = WorkerPool()
    audit, worker = Audit(engine, clock, BrokerLimits(), OpenAccess(), workers), workers.worker()
    await audit.start()
    for number in range(10 * EVENTS_PER_CHECK):
        audit.note(ANN, "topic.create", f"t{number}")
    started, stopped = asyncio.Event(), threading.Event()
    loop, compared = asyncio.get_running_loop(), []

    def matches(self: AuditQuery, event: AuditEvent) -> bool:
        compared.append(event)
        loop.call_soon_threadsafe(started.set)
        assert stopped.wait(10)
        return True

    monkeypatch.setattr(AuditQuery, "matches", matches)
    query = asyncio.ensure_future(audit.query(SYSTEM, AuditQuery(), worker))
    await started.wait()
    if by == "the broker":
        workers.close()
    else:
        worker.stop()
    stopped.set()
    with pytest.raises(ShuttingDown):
        await query
    assert len(compared) <= EVENTS_PER_CHECK
    await audit.close()


async def test_a_trail_that_exists_gets_the_retention_that_is_configured(tmp_path: Path) -> None:
    async with running(config_for(tmp_path)) as server:
        created = server.engine.topics()[AUDIT_TOPIC].config
    limits = {"audit_retention_ms": "365d", "audit_retention_bytes": "1 GiB"}
    async with running(config_for(tmp_path, limits=limits)) as server:
        for topic in (AUDIT_TOPIC, ACCESS_AUDIT_TOPIC):
            altered = server.engine.topics()[topic].config
            assert altered == replace(created, retention_ms=365 * 24 * 3600 * 1000, retention_bytes=1 << 30)


@pytest.mark.embedded
async def test_a_full_disk_does_not_keep_a_broker_with_another_retention_from_starting(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async def applied(limits: BrokerLimits) -> list[str]:
        engine = make_engine(tmp_path, clock=SystemClock(), disk=disk)
        await engine.start()
        broker = Broker(engine, clock=SystemClock(), access=OpenAccess(), limits=limits)
        await broker.start()
        with capture_logs() as lines:
            await broker.audit.apply_retention()
        await broker.close()
        await engine.close()
        return [line["event"] for line in lines]

    assert await applied(BrokerLimits()) == []
    disk.disk_full()
    shorter = BrokerLimits.model_validate({"audit_retention_ms": "1h"})
    assert await applied(shorter) == ["audit_retention_not_changed"] * 2

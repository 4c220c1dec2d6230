"""Health and metrics of a real broker, asked for over real sockets."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

from penstock.admin import figures, http
from penstock.admin.http import AdminServer, AdminSettings, State
from penstock.admin.launcher import Launcher
from penstock.admin.metrics import Metrics
from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.clock import SystemClock
from penstock.errors import ConfigError, NoSpace
from penstock.log.api import TopicConfig
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.disk import Disk
from penstock.net.limits import AdminLimits
from penstock.net.stats import ListenerStats
from penstock.protocols.flymq.operations.records import Produce
from penstock.protocols.flymq.session import FlyMQStats
from penstock.testing.clock import ManualClock
from tests.open_access import OpenAccess


class FailingDisk(Disk):
    """A disk that fails every flush once `failing` is set."""

    failing = False

    def fdatasync(self, fd: int) -> None:
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


@dataclass
class Listening:
    stats: ListenerStats = field(default_factory=ListenerStats)
    address: str = "127.0.0.1:9092"


@dataclass
class Node:
    """A broker, its admin endpoint, and a way to ask it."""

    admin: AdminServer
    broker: Broker
    clock: ManualClock
    disk: FailingDisk
    listener: Listening
    sessions: FlyMQStats

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.admin.address.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
        return parse(await self.ask(f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()))

    async def ask(self, request: bytes) -> bytes:
        reader, writer = await self.connect()
        writer.write(request)
        response = await rest(reader)
        await close(writer)
        return response

    async def produce(self, topic: str, *values: bytes) -> None:
        placed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.broker.records.produce(ANONYMOUS, topic, 0, values, done=placed.set_result)
        await placed


def parse(response: bytes) -> tuple[int, dict[str, str], str]:
    head, _, body = response.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(status.split()[1]), headers, body.decode()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection ends, cleanly or not."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        pass  # the server has cut it off


def no_launcher(broker: Broker) -> Launcher:
    return Launcher(
        [],
        Path(),
        processes_max=1,
        pipelines=broker.pipelines,
        background=broker.background,
        clock=SystemClock(),
    )


def not_started(node: Node, bind: str) -> AdminServer:
    return AdminServer(
        AdminSettings(bind),
        engine=node.admin._engine,
        broker=node.broker,
        launcher=no_launcher(node.broker),
        listeners={},
        sessions={},
    )


@asynccontextmanager
async def running(data_dir: Path, limits: AdminLimits | None = None) -> AsyncIterator[Node]:
    clock, disk, listener, sessions = ManualClock(), FailingDisk(), Listening(), FlyMQStats()
    engine = EmbeddedEngine(data_dir, clock=clock, disk=disk)
    await engine.start()
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    admin = AdminServer(
        AdminSettings("127.0.0.1:0", limits=limits or AdminLimits()),
        engine=engine,
        broker=broker,
        launcher=no_launcher(broker),
        listeners={"flymq": listener},
        sessions={"flymq": sessions},
    )
    await admin.start()
    try:
        yield Node(admin, broker, clock, disk, listener, sessions)
    finally:
        disk.failing = False
        await admin.stop()
        await broker.close()
        await engine.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running(tmp_path) as node:
        yield node


def samples(text: str) -> dict[str, float]:
    rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


# -- health ---------------------------------------------------------------------------------------------------------------


async def test_a_process_that_answers_is_alive_in_every_state(node: Node) -> None:
    for state in ("starting", "ready", "stopping"):
        node.admin.state = state
        assert (await node.get("/livez"))[::2] == (200, "ok\n")


async def test_it_is_ready_once_it_is_told_so_and_until_it_stops(node: Node) -> None:
    expected: list[tuple[State, int]] = [("starting", 503), ("ready", 200), ("stopping", 503)]
    for state, status in expected:
        node.admin.state = state
        answered, headers, body = await node.get("/readyz")
        assert answered == status
        assert headers["content-type"] == "application/json"
        assert json.loads(body) == {"ready": status == 200, "state": state}


async def test_health_looks_at_no_partition(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.admin.state = "ready"
    await node.broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=2))
    looked_at: list[object] = []
    monkeypatch.setattr(node.broker._engine, "partition", lambda *place: looked_at.append(place))
    assert (await node.get("/readyz"))[0] == 200
    assert node.broker.cluster.status(ANONYMOUS).partitions_failed == 0
    node.admin._alerts.evaluate(0)
    assert looked_at == []


async def test_a_partition_that_cannot_write_makes_it_not_ready_and_is_named(node: Node) -> None:
    node.admin.state = "ready"
    await node.broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=2))
    await node.broker.topics.create(ANONYMOUS, "healthy", TopicConfig())
    node.disk.failing = True
    await node.produce("orders", b"lost")
    status, _, body = await node.get("/readyz")
    answer = json.loads(body)
    assert status == 503
    assert answer["ready"] is False
    named = {(failure["topic"], failure["partition"]): failure["failure"] for failure in answer["failed_partitions"]}
    assert named["orders", 0]
    assert answer["failed"] == len(named)
    for path in ("/health", "/health/ready"):
        status, _, body = await node.get(path)
        assert status == 503
        assert json.loads(body)["checks"][0]["message"] == f"{len(named)} partitions refuse writes"
    assert (await node.get("/health/live"))[0] == 200
    assert samples((await node.get("/metrics"))[2])["penstock_partitions_failed"] == len(named)


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
async def test_probes_of_a_flymq_broker_find_a_healthy_one(node: Node, path: str) -> None:
    node.admin.state = "ready"
    status, headers, body = await node.get(path)
    assert status == 200
    assert headers["content-type"] == "application/json"
    answer = json.loads(body)
    assert answer["status"] == "healthy"
    assert answer["version"] == version("penstock")
    assert datetime.strptime(answer["timestamp"], "%Y-%m-%dT%H:%M:%S%z").utcoffset() == timedelta()
    checks = answer.get("checks", [])
    assert [(check["name"], check["status"]) for check in checks] == [("readiness", "healthy")] * (
        path != "/health/live"
    )
    assert all(type(check["latency_ms"]) is int and "message" not in check for check in checks)


@pytest.mark.parametrize("state", ["starting", "stopping"])
async def test_probes_of_a_flymq_broker_tell_one_that_is_not_ready_from_one_that_is_dead(
    node: Node, state: State
) -> None:
    node.admin.state = state
    assert (await node.get("/health/live"))[0] == 200
    for path in ("/health", "/health/ready"):
        status, _, body = await node.get(path)
        answer = json.loads(body)
        assert (status, answer["status"]) == (503, "unhealthy")
        [check] = answer["checks"]
        assert (check["status"], check["message"]) == ("unhealthy", f"the broker is {state}")


async def test_a_background_task_that_fails_makes_it_not_ready_until_a_run_succeeds(node: Node) -> None:
    node.admin.state = "ready"
    task = node.broker.background.health("subscription_states")
    task.failed(NoSpace("the disk is full"))
    status, _, body = await node.get("/readyz")
    assert status == 503
    assert json.loads(body) == {
        "ready": False,
        "state": "ready",
        "failing_tasks": [{"task": "subscription_states", "failure": "NoSpace: the disk is full"}],
    }
    found = samples((await node.get("/metrics"))[2])
    assert found['penstock_background_failures_total{task="subscription_states"}'] == 1
    assert found['penstock_background_failing{task="subscription_states"}'] == 1
    task.succeeded()
    assert (await node.get("/readyz"))[0] == 200
    found = samples((await node.get("/metrics"))[2])
    assert found['penstock_background_failures_total{task="subscription_states"}'] == 1
    assert found['penstock_background_failing{task="subscription_states"}'] == 0


# -- metrics --------------------------------------------------------------------------------------------------------------


async def test_metrics_show_what_happened(node: Node) -> None:
    await node.broker.topics.create(ANONYMOUS, "orders", TopicConfig())
    await node.produce("orders", b"a", b"b", b"c")
    node.listener.stats.connections_open = 2
    node.sessions.requests[Produce.opcode] += 1
    node.sessions.errors += 2
    status, headers, text = await node.get("/metrics")
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = samples(text)
    assert found['penstock_partition_end_offset{partition="0",topic="orders"}'] == 3
    assert found["penstock_appended_records_total"] >= 3
    assert found["penstock_flush_duration_seconds_count"] >= 1
    assert found['penstock_connections{listener="flymq"}'] == 2
    assert found['penstock_requests_total{listener="flymq",operation="produce"}'] == 1
    assert found['penstock_request_errors_total{listener="flymq"}'] == 2
    assert found["process_open_fds"] > 0
    assert found["penstock_event_loop_tasks"] >= 1  # the scrape itself


async def test_group_lag_is_the_records_left_and_the_age_of_the_first(node: Node) -> None:
    await node.broker.topics.create(ANONYMOUS, "orders", TopicConfig())
    await node.produce("orders", b"read")
    node.clock.advance(10)
    await node.produce("orders", b"unread")
    node.clock.advance(5)
    await node.produce("orders", b"unread too")
    node.clock.advance(2)
    await node.broker.groups.commit(ANONYMOUS, "orders", "billing", 0, 1)
    labels = '{group="billing",partition="0",topic="orders"}'
    found = samples((await node.get("/metrics"))[2])
    assert found["penstock_group_lag_records" + labels] == 2
    assert found["penstock_group_lag_seconds" + labels] == 7
    await node.broker.groups.commit(ANONYMOUS, "orders", "billing", 0, 3)
    found = samples((await node.get("/metrics"))[2])
    assert found["penstock_group_lag_records" + labels] == 0
    assert found["penstock_group_lag_seconds" + labels] == 0


async def test_the_lag_of_a_subscription_is_what_is_not_settled(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    subscriptions = node.broker.subscriptions
    numbered = await subscriptions.subscribe(ANONYMOUS, "orders", 1)
    billing = await subscriptions.subscribe(ANONYMOUS, "orders", 2, name="billing")
    await node.produce("orders", b"settled", b"in flight", b"not delivered")
    taken = subscriptions.take_many(ANONYMOUS, "orders", billing, 2, 1000)
    assert isinstance(taken, list)
    assert subscriptions.acknowledge(ANONYMOUS, "orders", billing, taken[0].tag)
    found = samples((await node.get("/metrics"))[2])
    assert found['penstock_subscription_lag_records{subscription="billing",topic="orders"}'] == 2
    assert found[f'penstock_subscription_lag_records{{subscription="{numbered.id}",topic="orders"}}'] == 3
    assert found["penstock_subscription_lags_left_out"] == 0
    monkeypatch.setattr(figures, "LAGS_EXPORTED_MAX", 1)
    found = samples((await node.get("/metrics"))[2])
    assert [name for name in found if "subscription_lag_records" in name] == [
        'penstock_subscription_lag_records{subscription="billing",topic="orders"}'
    ]
    assert found["penstock_subscription_lags_left_out"] == 1


async def test_more_partitions_than_the_bound_are_counted_instead_of_listed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "PARTITIONS_EXPORTED_MAX", 3)
    await node.broker.topics.create(ANONYMOUS, "a", TopicConfig(partitions=2))
    await node.broker.topics.create(ANONYMOUS, "b", TopicConfig(partitions=2))
    found = samples((await node.get("/metrics"))[2])
    listed = sum(name.startswith("penstock_partition_end_offset{") for name in found)
    assert listed == 3
    assert found["penstock_partitions"] == 3 + found["penstock_partitions_left_out"]


async def test_scrapes_at_the_same_time_all_get_an_answer(node: Node) -> None:
    answers = await asyncio.gather(*(node.get("/metrics") for _ in range(8)))
    assert [status for status, _, _ in answers] == [200] * 8


# -- HTTP -----------------------------------------------------------------------------------------------------------------


async def test_other_paths_and_methods_are_refused(node: Node) -> None:
    assert (await node.get("/"))[0] == 404
    assert (await node.get("/metrics", method="DELETE"))[0] == 405


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x00\x01\x02\x03\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"a" * (http.REQUEST_HEAD_BYTES_MAX + 1)],
    ids=["not HTTP", "an endless head"],
)
async def test_what_is_not_http_is_answered_once_and_closed(node: Node, request_bytes: bytes) -> None:
    assert parse(await node.ask(request_bytes))[0] == 400


async def test_a_connection_serves_one_request_after_another(node: Node) -> None:
    reader, writer = await node.connect()
    for _ in range(3):
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
    await close(writer)


async def test_a_connection_that_sends_no_further_request_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path, AdminLimits.model_construct(keep_alive_s=0)) as node:
        reader, writer = await node.connect()
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await rest(reader)).endswith(b"ok\n")
        await close(writer)


async def test_a_request_that_never_ends_is_cut_off(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.admin._http, "limits", AdminLimits.model_construct(response_s_max=0.01))
    reader, writer = await node.connect()
    writer.write(b"GET /livez HTTP/1.1\r\nhost:")
    assert await rest(reader) == b""
    await close(writer)


PROBE = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
SLOW_BODY = b"POST /api/v1/topics HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", PROBE, b"GET /livez HTT", SLOW_BODY], ids=["nothing", "whole", "head", "body"])
async def test_a_connection_too_many_takes_the_place_of_the_one_that_sent_no_request_for_longest(
    node: Node, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(node.admin._http, "limits", AdminLimits(max_connections=2))
    idle, idle_writer = await node.connect()
    idle_writer.write(sent)
    if sent == PROBE:
        await idle.readuntil(b"ok\n")
    kept, kept_writer = await node.connect()
    for _ in range(2):  # the second time it is known to have been kept
        kept_writer.write(PROBE)
        await kept.readuntil(b"ok\n")
        assert (await node.get("/livez"))[0] == 200
    assert await rest(idle) == b""
    await close(kept_writer)
    await close(idle_writer)


async def test_connections_that_are_being_answered_do_not_give_way(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.admin._http, "limits", AdminLimits(max_connections=1))
    answering, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(metrics: Metrics) -> bytes:
        answering.set()
        await go_on.wait()
        return b"done\n"

    monkeypatch.setattr(Metrics, "render", slowly)
    reader, writer = await node.connect()
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    await answering.wait()
    assert await node.ask(PROBE) == b""
    go_on.set()
    await reader.readuntil(b"done\n")
    await close(writer)


# -- start and stop -------------------------------------------------------------------------------------------------------


async def test_an_address_in_use_is_refused_with_advice(node: Node) -> None:
    second = not_started(node, node.admin.address)
    with pytest.raises(
        ConfigError, match=r"admin\.bind: cannot listen on 127\.0\.0\.1:\d+ .*another process listens there"
    ):
        await second.start()
    await second.stop()


async def test_it_leaves_the_process_its_signals(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with running(tmp_path):
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_stop_closes_idle_connections_at_once(node: Node) -> None:
    reader, writer = await node.connect()
    writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
    await reader.readuntil(b"ok\n")
    await node.admin.stop()
    assert await rest(reader) == b""
    await close(writer)


async def test_stop_lets_a_response_that_has_begun_finish(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def render(_: Metrics) -> bytes:
        begun.set()
        await go_on.wait()
        return b"numbers\n"

    monkeypatch.setattr(Metrics, "render", render)
    scrape = asyncio.ensure_future(node.get("/metrics"))
    await begun.wait()
    stopping = asyncio.ensure_future(node.admin.stop(grace_s=30))
    await asyncio.sleep(0)
    go_on.set()
    assert (await scrape)[::2] == (200, "numbers\n")
    await stopping


async def test_stop_cuts_off_a_response_that_takes_too_long(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def render(_: Metrics) -> bytes:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Metrics, "render", render)
    scrape = asyncio.ensure_future(node.ask(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"))
    await begun.wait()
    await node.admin.stop(grace_s=0)
    assert await scrape == b""


async def test_it_can_be_stopped_twice_and_before_it_is_started(node: Node) -> None:
    await node.admin.stop()
    await node.admin.stop()
    never_started = not_started(node, "127.0.0.1:0")
    with pytest.raises(RuntimeError, match="not started"):
        assert never_started.address
    await never_started.stop()

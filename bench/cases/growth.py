"""How cost grows with what a broker holds: topics, partitions, connections, the length of a log, consumer groups and subscriptions.

Each axis has a broker of its own, which grows from point to point; the load is the same at every point. The cost is the broker's processor
time for a record or request, so that a busy machine changes it little; the rate stands beside it. A line that should be flat and is not
shows work that is done for everything there is instead of for what is asked. `python -m bench.plots` draws a plot for each axis.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from bench.blipmq_load import Pairs, publish_to_delivery
from bench.cases import blipmq
from bench.cases.against_redis import Shape, broker_job
from bench.cases.idle import allow_descriptors, talk
from bench.cases.topics import each
from bench.dialects import RecordLost
from bench.load import LoadResult, Meter, cpu_seconds
from bench.processes import HOST, Broker, check_held, run_load
from bench.rounds import Load, Measured, Plan, Point, Row, alone, cpu_note, cpu_us_each
from penstock.protocols.blipmq.client import AsyncBlipMQClient
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.flymq.operations.operation import encode_request
from penstock.protocols.flymq.operations.records import Fetch
from penstock.protocols.flymq.wire import HEADER, HEADER_BYTES

COUNTS: Final = (1, 10, 100, 1_000, 10_000)
COUNTS_QUICK: Final = (1, 10, 100)
PARTITIONS: Final = (1, 4, 16, 64, 256, 1_024)
PARTITIONS_QUICK: Final = (1, 4, 16)
CONNECTIONS: Final = (1, 10, 100, 1_000, 5_000)
CONNECTIONS_QUICK: Final = (1, 10, 100)
LOG_MB: Final = (100, 300, 1_000, 5_000)
LOG_MB_LARGE: Final = (*LOG_MB, 50_000)
LOG_MB_QUICK: Final = (10, 30)
LOG_ROOM: Final = 1.5
"""How much of the disk must be free, as a multiple of the log."""

PIPELINED: Final = Shape(100, 16, 100)
FILLING: Final = Shape(1_024, 4, 500)
IN_FLIGHT: Final = 64
REQUESTS, REQUESTS_QUICK = 5_000, 500
"""Of one kind in a round, where a client makes them."""
ASKING_S: Final = 10.0
"""A round has fewer requests if they take longer."""
MAINTENANCE_S: Final = 1.0
"""Between two passes of maintenance: an idle broker does little else."""
IDLE_S: Final = 5.0
DESCRIPTORS_BESIDE: Final = 1_000

CPU_PANEL: Final = "CPU of the broker for one, us"

FLAGS: Final = (
    "--set", f"log.maintenance_interval_s={MAINTENANCE_S:g}",
    "--set", "limits.topics_max=20000",
    "--set", "limits.partitions_per_topic_max=2000",
    "--set", "limits.subscriptions_max=20000",
    "--set", "limits.subscriptions_per_principal_max=20000",
)  # fmt: skip
"""Room above what is measured."""

_Subject = TypeVar("_Subject")


def measure(plan: Plan) -> list[Row]:
    axes = (topics, partitions, connections, log_size, groups, subscriptions)
    return [row for axis in axes for row in axis(plan)]


class _Axis:
    """The rows of one axis."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.rows: list[Row] = []
        self._plan = plan
        self._name = name
        self._at = 0.0
        self._label = ""

    def go_to(self, at: float, label: str) -> None:
        """Rows from here on belong to this point."""
        self._at, self._label = at, label
        self._plan.say(f"growth: {label}")

    def add_rates(self, series: str, unit: str, results: Sequence[Load]) -> None:
        rates = [result.rate for result in results]
        self._add(CPU_PANEL, series, unit, rates, note=cpu_note(results), cpu_us=cpu_us_each(results))

    def add_figure(self, what: str, unit: str, figure: float) -> None:
        self._add(f"{what}, {unit}", what, unit, [figure])

    def add_start_after_kill(self, broker: Broker) -> None:
        """Kill the broker and start it again: the processor time until it is ready, which is drawn, and the time."""
        broker.kill()
        seconds = broker.start()
        self.add_figure("start after kill -9", "s of CPU", cpu_seconds(broker.pid))
        self.rows.append(alone(f"growth: {self._name}", f"{self._label}: start after kill -9", "s", [seconds]))

    def add_idle(self, broker: Broker) -> None:
        """What the broker costs by being there: memory, and processor time without a request."""
        time.sleep(2 * MAINTENANCE_S)  # what was just written to is looked after once more
        seconds = self._plan.seconds if self._plan.quick else IDLE_S
        before = cpu_seconds(broker.pid)
        time.sleep(seconds)
        self.add_figure("memory", "MB", broker.resident_bytes() / 1e6)
        self.add_figure("idle", "ms of CPU a second", 1_000 * (cpu_seconds(broker.pid) - before) / seconds)

    def _add(
        self,
        panel: str,
        series: str,
        unit: str,
        rounds: list[float],
        note: str = "",
        cpu_us: list[float] | None = None,
    ) -> None:
        point = Point(axis=self._name, at=self._at, panel=panel, series=series)
        setting = f"{self._label}: {series}"
        self.rows.append(alone(f"growth: {self._name}", setting, unit, rounds, note=note, cpu_us=cpu_us, point=point))


def topics(plan: Plan) -> list[Row]:
    axis, broker = _Axis(plan, "topics"), Broker(plan.directory / "growth-topics", *FLAGS)
    names: list[str] = []
    broker.start()
    try:
        for count in COUNTS_QUICK if plan.quick else COUNTS:
            axis.go_to(count, f"{count:,} topics")
            more = [f"topic-{number:05d}" for number in range(len(names), count)]
            asyncio.run(each(broker, more, lambda client, name: client.create_topic(name)))
            names += more
            produced = _pipelined(plan, broker, names[0])
            axis.add_rates(f"produce to one of them, fsync, {PIPELINED}", "records/s", produced)
            turns = [names[number % count] for number in range(plan.volume(REQUESTS, REQUESTS_QUICK))]
            sent = [_by_client(broker, turns, _send, ASKING_S) for _ in range(plan.rounds)]
            axis.add_rates(f"produce to each in turn, fsync, 100 B, {IN_FLIGHT} in flight", "records/s", sent)
            axis.add_idle(broker)
            axis.add_start_after_kill(broker)
    finally:
        broker.stop()
    return axis.rows


def _send(client: AsyncFlyMQClient, topic: str) -> Awaitable[object]:
    return client.send(topic, b"x" * 100)


def partitions(plan: Plan) -> list[Row]:
    axis = _Axis(plan, "partitions")
    with Broker(plan.directory / "growth-partitions", *FLAGS) as broker:
        for count in PARTITIONS_QUICK if plan.quick else PARTITIONS:
            axis.go_to(count, f"{count:,} partitions")
            results = [_once(plan, broker, f"spread-{count}", PIPELINED, count) for _ in range(plan.rounds)]
            axis.add_rates(f"produce, each record for the next, fsync, {PIPELINED}", "records/s", results)
            axis.add_idle(broker)
    return axis.rows


def connections(plan: Plan) -> list[Row]:
    axis = _Axis(plan, "connections")
    counts = CONNECTIONS_QUICK if plan.quick else CONNECTIONS
    allow_descriptors(2 * counts[-1] + DESCRIPTORS_BESIDE)
    with Broker(plan.directory / "growth-connections", *FLAGS) as broker, contextlib.ExitStack() as opened:
        idle = 0
        for count in counts:
            axis.go_to(count, f"{count:,} connections")
            shape = Shape(100, count, 1)
            results = [_once(plan, broker, f"busy-{count}", shape) for _ in range(plan.rounds)]
            axis.add_rates("produce on all of them, fsync, 100 B, 1 in flight each", "records/s", results)
            talk(opened, broker.port, count - idle)
            idle = count
            results = [_once(plan, broker, f"beside-{count}", PIPELINED) for _ in range(plan.rounds)]
            axis.add_rates(f"produce beside as many idle ones, fsync, {PIPELINED}", "records/s", results)
            axis.add_idle(broker)
    return axis.rows


def log_size(plan: Plan) -> list[Row]:
    axis = _Axis(plan, "log size in MB")
    sizes = LOG_MB_QUICK if plan.quick else LOG_MB_LARGE if plan.large else LOG_MB
    free = shutil.disk_usage(plan.directory).free
    if free < LOG_ROOM * sizes[-1] * 1e6:
        raise RuntimeError(f"{plan.directory} has {free / 1e9:.0f} GB free, too little for a log of {sizes[-1]:,} MB")
    broker, records = Broker(plan.directory / "growth-log", *FLAGS), 0
    broker.start()
    try:
        with broker.client() as client:
            client.create_topic("long", 1, durability="none")
        for megabytes in sizes:
            axis.go_to(megabytes, f"a log of {megabytes:,} MB")
            more = megabytes * 1_000_000 // FILLING.payload_bytes - records
            filled = run_load(broker_job(broker, "long", FILLING, warm_up_s=0, records=more, held_before=records))
            records += more
            check_held(broker, "long", {0: records})
            axis.add_rates(f"produce, none, {FILLING}", "records/s", [filled])
            fetched = [_fetch_anywhere(plan, broker, records) for _ in range(plan.rounds)]
            axis.add_rates("fetch of one record anywhere, 1 in flight", "requests/s", fetched)
            axis.add_idle(broker)
            axis.add_start_after_kill(broker)
    finally:
        broker.stop()
    return axis.rows


def groups(plan: Plan) -> list[Row]:
    axis = _Axis(plan, "groups")
    with Broker(plan.directory / "growth-groups", *FLAGS) as broker:
        with broker.client() as client:
            client.create_topic("read", 1)
        made = 0
        for count in COUNTS_QUICK if plan.quick else COUNTS:
            axis.go_to(count, f"{count:,} groups")
            _by_client(broker, range(made, count), _commit)
            made = count
            turns = [number % count for number in range(plan.volume(REQUESTS, REQUESTS_QUICK))]
            results = [_by_client(broker, turns, _commit, ASKING_S) for _ in range(plan.rounds)]
            axis.add_rates(f"commit of each in turn, {IN_FLIGHT} in flight", "requests/s", results)
            asked = [_by_client(broker, turns, _committed, ASKING_S) for _ in range(plan.rounds)]
            axis.add_rates(f"committed offset of each in turn, {IN_FLIGHT} in flight", "requests/s", asked)
            produced = _pipelined(plan, broker, "read")
            axis.add_rates(f"produce to their topic, fsync, {PIPELINED}", "records/s", produced)
            axis.add_idle(broker)
    return axis.rows


def _commit(client: AsyncFlyMQClient, number: int) -> Awaitable[object]:
    return client.commit("read", f"group-{number:05d}", 0, 0)


def _committed(client: AsyncFlyMQClient, number: int) -> Awaitable[object]:
    return client.committed("read", f"group-{number:05d}", 0)


def subscriptions(plan: Plan) -> list[Row]:
    axis = _Axis(plan, "subscriptions")
    with Broker(plan.directory / "growth-subscriptions", *FLAGS, config=blipmq.CONFIG) as broker:
        job = Pairs(
            host=HOST,
            port=broker.ports["blipmq"],
            key=blipmq.KEY,
            server_pid=broker.pid,
            pairs=1,
            messages=plan.volume(20_000, 2_000),
            qos=1,
            payload_bytes=blipmq.PAYLOAD_BYTES,
            prefix="shared",
        )
        made = 0
        for count in COUNTS_QUICK if plan.quick else COUNTS:
            axis.go_to(count, f"{count:,} subscriptions")
            asyncio.run(_subscribe(broker, f"{job.prefix}-{job.qos}-0", count - made))
            made = count
            results = [publish_to_delivery(job) for _ in range(plan.rounds)]
            axis.add_rates("publish, poll and ack by one more, fsync, QoS 1, 256 B", "messages/s", results)
            axis.add_idle(broker)
    return axis.rows


async def _subscribe(broker: Broker, topic: str, count: int) -> None:
    """Make subscriptions that nobody polls."""
    url = f"blipmq://{blipmq.KEY}@{HOST}:{broker.ports['blipmq']}"
    async with AsyncBlipMQClient(url) as client:
        for first in range(0, count, IN_FLIGHT):
            await asyncio.gather(*(client.subscribe(topic) for _ in range(min(IN_FLIGHT, count - first))))


def _pipelined(plan: Plan, broker: Broker, topic: str) -> list[LoadResult]:
    """All rounds of the load that is the same everywhere, to a topic of one partition that is there."""
    results = []
    for _ in range(plan.rounds):
        with broker.client() as client:
            [partition] = client.describe_topic(topic).partitions
        results.append(
            run_load(broker_job(broker, topic, PIPELINED, seconds=plan.seconds, held_before=partition.next_offset))
        )
        check_held(broker, topic, results[-1].acknowledged)
    return results


def _once(plan: Plan, broker: Broker, topic: str, shape: Shape, partitions: int = 1) -> LoadResult:
    """One round, to a topic that is there for it only."""
    with broker.client() as client:
        client.create_topic(topic, partitions)
    result = run_load(broker_job(broker, topic, shape, seconds=plan.seconds, partitions=tuple(range(partitions))))
    check_held(broker, topic, result.acknowledged)
    with broker.client() as client:
        client.delete_topic(topic)
    return result


def _by_client(
    broker: Broker,
    subjects: Iterable[_Subject],
    ask: Callable[[AsyncFlyMQClient, _Subject], Awaitable[object]],
    seconds_max: float = math.inf,
) -> Measured:
    """A request for each by Penstock's own client, some at a time; the client takes more processor time than the broker."""
    wanted = list(subjects)
    meter = Meter(broker.pid)
    return meter.measured(asyncio.run(each(broker, wanted, ask, seconds_max)))


def _fetch_anywhere(plan: Plan, broker: Broker, records: int) -> Measured:
    """One record at a time, each from an offset by chance."""
    chance = random.Random(records)
    count = plan.volume(REQUESTS, REQUESTS_QUICK)
    with socket.create_connection((HOST, broker.port)) as connection, connection.makefile("rb") as replies:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        meter = Meter(broker.pid)
        for _ in range(count):
            connection.sendall(encode_request(Fetch("long", 0, chance.randrange(records), 1, "")))
            _, _, opcode, _, length = HEADER.unpack(replies.read(HEADER_BYTES))
            payload = replies.read(length)
            if opcode != Fetch.opcode or int.from_bytes(payload[:4]) != 1:
                raise RecordLost(f"a FETCH was answered with {payload[:100]!r}")
        return meter.measured(count)

"""What the console asks the broker for: pages of a large topic, long lists, and what it costs producers while it is open.

The requests are those that the pages make, over HTTP and one after the other; drawing them is the browser's part.
"""

from __future__ import annotations

import asyncio
import http
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import msgspec

from bench.cases.against_redis import Shape, broker_round
from bench.load import LoadResult
from bench.processes import HOST, Broker
from bench.rounds import Plan, Row, alone, compared, cpu_us_each, interleave
from penstock.protocols.flymq.client import AsyncFlyMQClient

RECORDS = 10_000_000
RECORDS_QUICK = 50_000
RECORDS_PER_CALL = 50_000
TOPICS, TOPICS_QUICK = 1_000, 50
GROUPS, GROUPS_QUICK = 500, 20
PAGE_S_AIM = 1.0
PRODUCE_RATIO_AIM = 0.98
SHAPE = Shape(100, 4, 100)
TAIL_S, STATUS_S, HISTORY_S = 1.0, 2.0, 10.0
"""How often an open tail and an open Overview ask."""
SOON_S = 0.05


def measure(plan: Plan) -> list[Row]:
    with Broker(plan.directory / "console", "--set", "durability=none") as broker:
        rows = _pages(plan, broker) + _lists(plan, broker)
    with Broker(plan.directory / "console-produce") as broker:
        return rows + _produce(plan, broker)


class NotThere(Exception):
    """The topic is not there: not yet, or not any more."""


class Console:
    """One connection that asks as the console does."""

    def __init__(self, broker: Broker) -> None:
        self._connection = http.client.HTTPConnection(HOST, broker.ports["admin"])

    def get(self, path: str, **query: object) -> Any:
        self._connection.request("GET", f"/api/v1{path}?{urlencode(query)}" if query else f"/api/v1{path}")
        with self._connection.getresponse() as response:
            body = msgspec.json.decode(response.read())
            if response.status == http.HTTPStatus.NOT_FOUND:
                raise NotThere(path)
            if response.status != http.HTTPStatus.OK:
                raise RuntimeError(f"{path}: {body}")
            return body

    def seconds(self, path: str, **query: object) -> float:
        started = time.perf_counter()
        self.get(path, **query)
        return time.perf_counter() - started

    def seconds_to_list(self, kind: str) -> float:
        """The time for every page of a list."""
        started = time.perf_counter()
        after: dict[str, object] = {}
        while True:
            page = self.get(f"/{kind}", **after)
            if not page.get("more"):
                return time.perf_counter() - started
            last = page[kind][-1]
            name = last["name"]
            after = {"after": name} if kind == "topics" else {"after_topic": last["topic"], "after_name": name}


def _pages(plan: Plan, broker: Broker) -> list[Row]:
    records = plan.volume(RECORDS, RECORDS_QUICK)
    plan.say(f"console: writing {records:,} records")
    asyncio.run(_fill(broker, records))
    console, path = Console(broker), "/topics/large/records"
    first = console.get(path, at="earliest", limit=1)["records"][0]
    last = console.get(path, at="latest", limit=1)["records"][-1]
    halfway_ms = (first["timestamp_ms"] + last["timestamp_ms"]) // 2
    asked: dict[str, dict[str, object]] = {
        "opens": {"at": "latest"},
        "jumps by time": {"at": "time", "time_ms": halfway_ms},
        "jumps to an offset": {"at": "offset", "partition": 0, "offset": records // 8},
        "filters by a JSON path that is nowhere": {"at": "time", "time_ms": halfway_ms, "filter": "$.absent"},
        "filters by conditions that never hold": {"at": "earliest", "filter": "$.n < 0 and $header.source = web"},
        "filters by text that is nowhere": {"at": "earliest", "filter": "nowhere"},
    }

    def side(query: dict[str, object]) -> Callable[[int], float]:
        return lambda _: console.seconds(path, **query)

    seconds = interleave({name: side(query) for name, query in asked.items()}, plan.rounds)
    of = f"{records:,} records in 4 partitions"
    return [alone(f"console: record view {name}", of, "s", seconds[name], below=PAGE_S_AIM) for name in asked]


async def _fill(broker: Broker, records: int) -> None:
    async with AsyncFlyMQClient(broker.url) as client:
        await client.create_topic("large", 4)
        for at in range(0, records, RECORDS_PER_CALL):
            count = min(RECORDS_PER_CALL, records - at)
            await client.send_many(
                "large", [b'{"n":%d,"text":"a record of the large topic"}' % (at + n) for n in range(count)]
            )


def _lists(plan: Plan, broker: Broker) -> list[Row]:
    topics, groups = plan.volume(TOPICS, TOPICS_QUICK), plan.volume(GROUPS, GROUPS_QUICK)
    plan.say(f"console: {topics:,} topics and {groups} groups")
    asyncio.run(_make(broker, topics, groups))
    console = Console(broker)
    seconds = interleave(
        {
            "topics": lambda _: console.seconds_to_list("topics"),
            "groups": lambda _: console.seconds_to_list("groups"),
        },
        plan.rounds,
    )
    return [
        alone("console: list of topics", f"{topics:,} topics", "s", seconds["topics"], below=PAGE_S_AIM),
        alone("console: list of groups", f"{groups} groups", "s", seconds["groups"], below=PAGE_S_AIM),
    ]


async def _make(broker: Broker, topics: int, groups: int) -> None:
    async with AsyncFlyMQClient(broker.url) as client:
        for number in range(topics):
            await client.create_topic(f"topic-{number:04d}", 1)
        await asyncio.gather(*(client.commit("large", f"group-{number:03d}", 0, number) for number in range(groups)))


def _produce(plan: Plan, broker: Broker) -> list[Row]:
    tails: list[float] = []

    def closed(number: int) -> LoadResult:
        return broker_round(plan, broker, "fsync", SHAPE, number)

    def opened(number: int) -> LoadResult:
        number += plan.rounds
        with _visitor(broker, f"produce-{number}", tails):
            return broker_round(plan, broker, "fsync", SHAPE, number)

    plan.say("console: produce with the console open and without")
    results = interleave({"open": opened, "closed": closed}, plan.rounds)
    rates = {name: [each.rate for each in side] for name, side in results.items()}
    setting = f"fsync, {SHAPE}; Overview and a tail"
    case = "console: produce with it open"
    return [
        compared(
            case,
            setting,
            "records/s",
            rates["open"],
            "without",
            rates["closed"],
            ratio_min=PRODUCE_RATIO_AIM,
            cpu_us=cpu_us_each(results["open"]),
            against_cpu_us=cpu_us_each(results["closed"]),
        ),
        alone("console: a page of that tail", setting, "s", tails, below=PAGE_S_AIM),
    ]


@contextmanager
def _visitor(broker: Broker, topic: str, tails: list[float]) -> Iterator[None]:
    """Overview and the tail of a topic, each in its own rhythm, in a thread; from when the topic is there."""
    leaving = threading.Event()

    def visit() -> None:
        console = Console(broker)
        every = {"/status": STATUS_S, "/history": HISTORY_S, "/alerts": HISTORY_S, f"/topics/{topic}/records": TAIL_S}
        due = dict.fromkeys(every, time.monotonic())
        while not leaving.wait(max(0.0, min(due.values()) - time.monotonic())):
            path = min(due, key=lambda each: due[each])
            due[path] = time.monotonic() + every[path]
            if path.startswith("/topics"):
                try:
                    tails.append(console.seconds(path, at="latest", limit=100))
                except NotThere:
                    due[path] = time.monotonic() + SOON_S
            else:
                console.get(path)

    thread = threading.Thread(target=visit)
    thread.start()
    try:
        yield
    finally:
        leaving.set()
        thread.join()

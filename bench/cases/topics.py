"""What many topics cost that are hardly used: starting after kill -9, open files, and listing them."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from bench.processes import Broker, check_held
from bench.rounds import Plan, Row, alone, interleave
from penstock.protocols.flymq.client import AsyncFlyMQClient

TOPICS = 5_000
TOPICS_QUICK = 200
IN_FLIGHT = 64
"""Topics made at once, and records sent."""
START_S_AIM = 2.0
DESCRIPTORS_AIM = 2_000.0
LIST_REQUESTS_AIM = 2.0
MAINTENANCE_S = 1.0
"""Between two passes, after which topics that nobody writes to have been looked after: two passes without a write."""
SETTLED_S_MAX = 300.0
LIST_REQUESTS = 'penstock_requests_total{listener="flymq",operation="topic_list"}'

_Subject = TypeVar("_Subject")


def measure(plan: Plan) -> list[Row]:
    topics = plan.volume(TOPICS, TOPICS_QUICK)
    names = [f"topic-{number:05d}" for number in range(topics)]
    broker = Broker(plan.directory / "topics", "--set", f"log.maintenance_interval_s={MAINTENANCE_S:g}")
    broker.start()
    try:
        plan.say(f"topics: making {topics:,} with one record each")
        asyncio.run(each(broker, names, lambda client, name: client.create_topic(name)))
        descriptors: list[float] = []
        listed: list[float] = []
        requests: list[float] = []

        def written(number: int) -> float:
            plan.say(f"topics: one record to each, kill -9, round {number + 1}")
            asyncio.run(each(broker, names, lambda client, name: client.send(name, b"x" * 100)))
            descriptors.append(len(_open_files(broker)))
            broker.kill()
            seconds = broker.start()
            for name in (names[0], names[-1]):
                check_held(broker, name, {0: number + 1})
            return seconds

        def idle(number: int) -> float:
            plan.say(f"topics: kill -9 when idle, round {number + 1}")
            _wait_until_idle(broker)
            broker.kill()
            seconds = broker.start()
            before = broker.metrics().get(LIST_REQUESTS, 0)
            listed.append(_seconds_to_list(broker))
            requests.append(broker.metrics()[LIST_REQUESTS] - before)
            return seconds

        starts = interleave({"written": written, "idle": idle}, plan.rounds)
    finally:
        broker.stop()
    of = f"{topics:,} topics, fsync"
    return [
        alone("topics: start after kill -9", f"{of}, all just written to", "s", starts["written"], below=START_S_AIM),
        alone(
            "topics: start after kill -9", f"{of}, nobody has written lately", "s", starts["idle"], below=START_S_AIM
        ),
        alone("topics: descriptors", f"{of}, all just written to", "open", descriptors, below=DESCRIPTORS_AIM),
        alone("topics: penstock topic list", of, "s", listed, note="the start of the command with it"),
        alone("topics: requests of penstock topic list", of, "requests", requests, below=LIST_REQUESTS_AIM),
    ]


async def each(
    broker: Broker,
    subjects: Sequence[_Subject],
    act: Callable[[AsyncFlyMQClient, _Subject], Awaitable[object]],
    seconds_max: float = math.inf,
) -> int:
    """Do something with every topic, or whatever they are, some at a time, until the time is up; returns with how many."""
    deadline = time.monotonic() + seconds_max
    done = 0
    async with AsyncFlyMQClient(broker.url) as client:
        while done < len(subjects) and time.monotonic() < deadline:
            some = subjects[done : done + IN_FLIGHT]
            await asyncio.gather(*(act(client, subject) for subject in some))
            done += len(some)
    return done


def _wait_until_idle(broker: Broker) -> None:
    """Until the broker has closed the segments, which nobody writes to."""
    deadline = time.monotonic() + SETTLED_S_MAX
    while any(path.stem.isdigit() and path.suffix == ".log" for path in _open_files(broker)):
        if time.monotonic() > deadline:
            raise RuntimeError("the broker keeps segments open that nobody writes to")
        time.sleep(MAINTENANCE_S)


def _open_files(broker: Broker) -> list[Path]:
    found = []
    for link in Path(f"/proc/{broker.pid}/fd").iterdir():
        try:
            found.append(link.readlink())
        except FileNotFoundError:
            pass  # closed meanwhile
    return found


def _seconds_to_list(broker: Broker) -> float:
    command = [sys.executable, "-m", "penstock", "topic", "list", "--server", broker.url]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started

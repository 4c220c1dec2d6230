"""The engine that tests of the broker and of sessions run on.

That is the embedded one, unless `--engine` names another: `shared` is `penstock.testing.shared_engine`, with offsets as dense as those of
the embedded engine, because many tests have them as constants; `skipping` is the same with all its freedom; `kafka` is the engine on a real
Kafka, one broker for the whole run, with a prefix of its own for each log. What needs the embedded engine (its files, its disk and the
faults of that) is marked `embedded`, what has offsets as constants and cannot go by what it was answered `dense`; they are left out where
they cannot pass.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import pytest

from penstock.clock import Clock
from penstock.log.api import Engine
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.faults import FaultyDisk
from penstock.testing.shared_engine import SharedEngine
from penstock.testing.shared_log import SharedLog

ENGINES: Final = ("embedded", "shared", "skipping", "kafka")
KAFKA_SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "file.delete.delay.ms": "0",  # each test leaves a dozen topics behind
    "log.index.size.max.bytes": "4096",
}


class Choice:
    """What the command line says (`--engine`, `--engine-seed`)."""

    engine = "embedded"
    seed = 0
    kafka = ""
    """The address of the broker of this run."""


_logs: dict[Path, SharedLog] = {}
"""By the directory where the embedded engine would have its own; of the test that runs."""


class NoDisk(FaultyDisk):
    """What stands for the disk of an engine without one: a test that comes to it is to be marked."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise AssertionError(f"this engine has no disk, and the test needs one for {name}: mark it `embedded`")


_prefixes: dict[Path, str] = {}
"""The same for topics in Kafka."""
_left: list[str] = []
"""Prefixes of tests that have ended."""
LEFT_MAX: Final = 8
"""A Kafka with thousands of topics is slow, and so is deleting those of each test by itself."""
_numbers = itertools.count()


def make_engine(
    directory: Path, *, clock: Clock, disk: FaultyDisk | None = None, options: EngineOptions | None = None
) -> Engine:
    """Return an engine that is not started yet. One on the same directory finds what another left there."""
    if Choice.engine == "embedded":
        return EmbeddedEngine(directory, clock=clock, disk=disk, options=options)
    if disk is not None:
        disk.__class__ = NoDisk
    if Choice.engine == "kafka":
        return _kafka_engine(directory, clock)
    log = _logs.setdefault(directory, SharedLog())
    return SharedEngine(log, clock=clock, seed=Choice.seed, skips=Choice.engine == "skipping")


def _kafka_engine(directory: Path, clock: Clock) -> Engine:
    from penstock.log.kafka.engine import KafkaEngine
    from penstock.log.kafka.settings import KafkaSettings

    prefix = _prefixes.setdefault(directory, f"p{os.getpid()}-{next(_numbers)}.")
    return KafkaEngine(KafkaSettings(bootstrap=[Choice.kafka], topic_prefix=prefix), clock=clock)


@contextmanager
def kafka_of_the_run(directory: Path) -> Iterator[str]:
    """A Kafka for all tests of a run, and all its workers; returns its address."""
    from bench.kafka import Kafka

    with Kafka(directory, 1, light=True, settings=KAFKA_SETTINGS) as kafka:
        yield kafka.bootstrap


async def _delete_topics(prefixes: tuple[str, ...]) -> None:
    from penstock.log.kafka.client import KafkaClient
    from penstock.log.kafka.settings import KafkaSettings

    client = KafkaClient(KafkaSettings(bootstrap=[Choice.kafka]))
    await client.start()
    try:
        await asyncio.gather(
            *(client.delete_topic(name) for name in client.partition_counts() if name.startswith(prefixes))
        )
    finally:
        await client.close()


def embedded(engine: Engine) -> EmbeddedEngine:
    """Return an engine that has files; a test that wants them is marked `embedded`."""
    assert isinstance(engine, EmbeddedEngine), "this engine has no files, and the test needs them: mark it `embedded`"
    return engine


def forget_logs() -> None:
    """Let each test begin with directories of its own."""
    _logs.clear()
    if len(_left) >= LEFT_MAX:
        with ThreadPoolExecutor(1) as thread:  # this one may have a loop
            thread.submit(asyncio.run, _delete_topics(tuple(_left))).result()
        _left.clear()
    _left.extend(_prefixes.values())  # the engine of the last test may be open still
    _prefixes.clear()


def can_run(item: pytest.Item) -> bool:
    """Whether a test has marks that keep it from the chosen engine."""
    if Choice.engine != "embedded" and item.get_closest_marker("embedded"):
        return False
    return not (Choice.engine in ("skipping", "kafka") and item.get_closest_marker("dense"))

"""One broker for all examples of a test: what is true of a conversation is true whatever was said before it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.log.embedded import EmbeddedEngine
from penstock.testing.clock import ManualClock
from tests.open_access import OpenAccess


class Stage:
    def __init__(self, runner: asyncio.Runner, broker: Broker, clock: ManualClock) -> None:
        self.broker = broker
        self.clock = clock
        self.run = runner.run


@contextmanager
def a_stage(directory: Path, limits: BrokerLimits | None = None) -> Iterator[Stage]:
    clock = ManualClock()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        engine = EmbeddedEngine(directory, clock=clock)
        broker = Broker(engine, clock=clock, limits=limits or BrokerLimits(), access=OpenAccess())

        async def start() -> None:
            await engine.start()
            await broker.start()

        async def stop() -> None:
            await broker.close()
            await engine.close()

        runner.run(start())
        try:
            yield Stage(runner, broker, clock)
        finally:
            runner.run(stop())

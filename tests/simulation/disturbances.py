"""What goes wrong in a run, and when: drawn from the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from tests.simulation.world import World

KINDS_MAX = 6
PAUSE_S = 0.6
OPERATIONS_MAX = 60
"""A crash in the middle of a commit, a rewrite or a recovery comes at one of this many operations of the disk from now."""


class Disturbances:
    """Some kinds, one after another; the broker is started again after each that ends it."""

    def __init__(self, world: World, chance: Random, names: Sequence[str] = ()) -> None:
        """`names` are the kinds; some are drawn where none are given."""
        self._world = world
        self._chance = chance
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "crash": self._crash,
            "crash-at-operation": self._crash_at_operation,
            "power-cut": self._cut_power,
            "power-cut-at-operation": self._cut_power_at_operation,
            "restart": self._restart,
            "reset": self._reset,
            "slow-readers": self._slow_readers,
            "stall": self._stall,
            "datagram-loss": self._lose_datagrams,
            "clock": self._jump,
            "flush-error": self._fail_flush,
            "full": self._fill,
        }
        drawn = chance.sample(sorted(kinds), chance.randint(2, KINDS_MAX))
        self.names = sorted(names or drawn)
        self._kinds = [kinds[name] for name in self.names]

    async def run(self, seconds: float) -> None:
        loop = self._world.loop
        end_s = loop.time() + seconds
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S))
            if loop.time() >= end_s or self._world.failures:
                break
            await self._chance.choice(self._kinds)()
            if not await self.ensure_up():
                return
        self._world.network.datagram_loss = 0.0
        self._world.disk.set_full(False)

    async def ensure_up(self) -> bool:
        """Start the broker until it runs; False if it does not."""
        while not self._world.is_up and not self._world.failures:
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))
            await self._world.start_broker()
        return not self._world.failures

    async def _crash(self) -> None:
        self._world.crash()

    async def _cut_power(self) -> None:
        self._world.cut_power()

    async def _crash_at_operation(self) -> None:
        await self._end_at_operation(self._world.crash)

    async def _cut_power_at_operation(self) -> None:
        await self._end_at_operation(self._world.cut_power)

    async def _end_at_operation(self, end: Callable[[], None]) -> None:
        """End the broker at an operation of its disk; sometimes at one of its next start."""
        world = self._world
        if self._chance.random() < 0.4:
            world.crash()
            starting = asyncio.ensure_future(world.start_broker())
            await asyncio.sleep(0)
            world.disk.end_process_after(self._chance.randint(1, OPERATIONS_MAX * 4), end)
            await starting
        else:
            world.disk.end_process_after(self._chance.randint(1, OPERATIONS_MAX), end)
            await asyncio.sleep(self._chance.uniform(0.0, 2.0))

    async def _restart(self) -> None:
        await self._world.stop_broker()

    async def _reset(self) -> None:
        self._world.network.reset_some(0.5)

    async def _slow_readers(self) -> None:
        self._world.network.slow_some(0.5, self._chance.uniform(0.2, 6.0))

    async def _stall(self) -> None:
        self._world.network.stall(self._chance.choice((0.1, 1.0, 5.0)))

    async def _lose_datagrams(self) -> None:
        self._world.network.datagram_loss = self._chance.choice((0.0, 0.02, 0.2))

    async def _jump(self) -> None:
        seconds = self._chance.choice((-3600.0, -1.0, 1.0, 3600.0))
        self._world.trace.note("clock", seconds)
        self._world.clock.jump(seconds)

    async def _fail_flush(self) -> None:
        """An operator sees that it refuses writes, and restarts it."""
        self._world.fail_flushes(self._chance.choice((1, 6)))
        await asyncio.sleep(self._chance.uniform(0.1, 1.0))
        await self._chance.choice((self._crash, self._restart, self._cut_power))()

    async def _fill(self) -> None:
        self._world.trace.note("disk-full")
        self._world.disk.set_full(True)
        await asyncio.sleep(self._chance.uniform(0.1, 1.0))
        self._world.disk.set_full(False)
        self._world.trace.note("disk-has-room")

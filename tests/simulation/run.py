"""One run: a broker, its clients and what goes wrong, all from one seed; and the verdict."""

from __future__ import annotations

import asyncio
import gc
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from penstock.errors import EntryNotFound, PenstockError
from penstock.net.descriptors import raise_descriptor_limit
from penstock.testing.checker import ReadRecord
from tests.simulation.certificate import certificate_files
from tests.simulation.clients import (
    PATIENT,
    Actor,
    BlipMQSubscriber,
    Churner,
    Compactor,
    FelixSubscriber,
    FujinReader,
    GroupReader,
    Producer,
    close,
    connect,
)
from tests.simulation.disturbances import Disturbances
from tests.simulation.history import LOGGED, TOPICS, FinalState, History
from tests.simulation.loop import SimLoop, Stalled
from tests.simulation.machine import simulated
from tests.simulation.trace import Trace
from tests.simulation.world import CHECKED, World

LOAD_S: Final = 6.0
DRAIN_S_MAX: Final = 90.0
"""Virtual seconds: deliveries that were not acknowledged come again after a delay that grows."""
STOP_S_MAX: Final = 60.0
COLLECTIONS: Final = 3
"""A coroutine that waits again when it is to end is collected by the next of them."""


@dataclass(slots=True)
class Outcome:
    """What became of one run."""

    seed: int
    trace: Trace
    summary: str
    violations: list[str]

    @property
    def ok(self) -> bool:
        return not self.violations


def simulate(seed: int, *, seconds: float = LOAD_S, disturbances: Sequence[str] = ()) -> Outcome:
    """Run a seed, with this many virtual seconds of load, and with these disturbances instead of those that the seed draws."""
    certificate_files()
    raise_descriptor_limit()  # every file that ever was stays open, so that its place on the disk is not given to another
    chance = Random(seed)
    loop = SimLoop(Random(chance.random()))
    trace = Trace(loop.time)
    root = Path(tempfile.mkdtemp(prefix="simulation-"))
    world = World(loop, root, Random(chance.random()), trace)
    run = _Run(world, chance, disturbances)
    try:
        with simulated(loop, world.network, world.clock, Random(chance.random()), trace):
            try:
                loop.run_until_complete(run.main(seconds))
            except Stalled as error:
                run.history.violations.append(str(error))
            except Exception:  # noqa: BLE001 - a seed that cannot be judged has failed, and the next one runs
                run.history.violations.append(traceback.format_exc())
            loop.cancel_all()
            outcome = Outcome(seed, trace, run.summary, [*world.failures, *run.history.violations, *loop.errors])
            trace.close()
            world.close()
            _bury(loop)
        return outcome
    finally:
        shutil.rmtree(root)


def _bury(loop: SimLoop) -> None:
    """Collect what killed processes have left; their `finally` blocks find no loop, and nobody minds."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loop.bury()
            loop.close()
            for _ in range(COLLECTIONS):
                gc.collect()
    finally:
        sys.unraisablehook = hook


class _Run:
    def __init__(self, world: World, chance: Random, disturbances: Sequence[str]) -> None:
        self.world = world
        self.history = History(world.loop.time)
        self._chance = chance
        self._disturbances = Disturbances(world, Random(chance.random()), disturbances)
        world.checked_topics = sorted(LOGGED)

    @property
    def summary(self) -> str:
        states = [attempt.state for attempt in self.history.attempts]
        counts = ", ".join(f"{states.count(state)} {state}" for state in ("acked", "failed", "unknown"))
        world = self.world
        ends = f"{world.crashes} crashes, {len(world.power_cuts)} power cuts"
        return f"{counts}; {ends}; {world.loop.time():.0f} s; {', '.join(self._disturbances.names)}"

    async def main(self, seconds: float) -> None:
        world = self.world
        if not await world.start_broker():
            return
        subscription = await self._set_up()
        actors = self._actors(subscription)
        tasks = [asyncio.create_task(actor.run(), name=actor.name) for actor in actors]
        await self._disturbances.run(seconds)
        for actor in actors:
            actor.stop()
        if not await self._disturbances.ensure_up():
            return
        await self._all_stopped(tasks)
        await self._chance.choice((self._end_by_crash, self._end_by_power_cut, world.stop_broker))()
        if not await self._disturbances.ensure_up():
            return
        world.network.calm()
        try:
            final = await self._look(subscription)
        except (PenstockError, TimeoutError) as error:
            self.history.violations.append(f"what is there cannot be read: {type(error).__name__}: {error}")
            return
        flushes_failed = world.flush_failures > 0
        self.history.check(final, world.power_cuts, flushes_failed=flushes_failed)
        await world.stop_broker()

    async def _set_up(self) -> int:
        flymq = await connect(self.world, "flymq", self._chance)
        for name, spec in TOPICS.items():
            await flymq.create_topic(name, spec.partitions, durability=spec.durability, cleanup=spec.cleanup)
            self.history.topics[name] = True
        blipmq = await connect(self.world, "blipmq", self._chance)
        subscription: int = await blipmq.subscribe("single")
        await close(flymq)
        await close(blipmq)
        return subscription

    def _actors(self, subscription: int) -> list[Actor]:
        kinds: list[tuple[type[Actor], str]] = [
            (Producer, "flymq"),
            (Producer, "flymq"),
            (Producer, "blipmq"),
            (Producer, "rustlog"),
            (Producer, "fujin"),
            (Producer, "felix"),
            (Compactor, "flymq"),
            (GroupReader, "flymq"),
            (GroupReader, "rustlog"),
            (BlipMQSubscriber, "blipmq"),
            (FujinReader, "fujin"),
            (FelixSubscriber, "felix"),
            (Churner, "flymq"),
        ]
        actors = [
            kind(self.world, self.history, protocol, number, Random(self._chance.random()))
            for number, (kind, protocol) in enumerate(kinds)
        ]
        for actor in actors:
            if isinstance(actor, BlipMQSubscriber):
                actor.subscription = subscription
        return actors

    async def _all_stopped(self, tasks: list[asyncio.Task[None]]) -> None:
        _, pending = await asyncio.wait(tasks, timeout=STOP_S_MAX)
        for task in tasks:
            if task in pending:
                self.history.violations.append(f"{task.get_name()} still waits for an answer")
            elif (error := task.exception()) is not None:
                self.history.violations.append(f"{task.get_name()} failed: {type(error).__name__}: {error}")

    async def _end_by_crash(self) -> None:
        self.world.crash()

    async def _end_by_power_cut(self) -> None:
        self.world.cut_power()

    # -- reading everything ------------------------------------------------------------------------------------------------

    async def _look(self, subscription: int) -> FinalState:
        clients = {
            name: await connect(self.world, name, self._chance, PATIENT)
            for name in ("flymq", "rustlog", "fujin", "felix")
        }
        flymq, rustlog = clients["flymq"], clients["rustlog"]
        records = [record for topic in TOPICS for record in await _read(flymq, topic)]
        values = {topic: [record.value for record in records if record.topic == topic] for topic in TOPICS}
        descriptions = [await flymq.describe_topic(topic) for topic in TOPICS]
        final = FinalState(
            records=records,
            rustlog=[record for topic in sorted(LOGGED) for record in await _read(rustlog, topic)],
            felix={"single": await _read_felix(clients["felix"], "single", len(values["single"]))},
            fujin={
                topic: await _read_fujin(clients["fujin"], f"{CHECKED}{topic}", values[topic])
                for topic in sorted(LOGGED)
                if values[topic]
            },
            topics=set(await flymq.topics()),
            ends={(each.name, part.partition): part.next_offset for each in descriptions for part in each.partitions},
            committed={place: await flymq.committed(place[1], place[0], place[2]) for place in self.history.commits},
        )
        delivered = self.history.delivered["fujin spread"]
        delivered |= set(await _read_fujin(clients["fujin"], "spread", values["spread"], delivered))
        await self._drain(subscription, set(values["single"]))
        for client in clients.values():
            await close(client)
        return final

    async def _drain(self, subscription: int, expected: set[bytes]) -> None:
        """Take what the subscription still has to deliver."""
        client = await connect(self.world, "blipmq", self._chance, PATIENT)
        delivered = self.history.delivered["blipmq single"]
        end_s = self.world.loop.time() + DRAIN_S_MAX
        while expected - delivered and self.world.loop.time() < end_s:
            messages = await client.poll(subscription, 100)
            delivered |= {message.value for message in messages}
            with suppress(EntryNotFound):  # an acknowledgement that comes too late means a second delivery
                await client.ack(subscription, *(message.tag for message in messages))
            await asyncio.sleep(0.1)
        await close(client)


async def _read(client: Any, topic: str) -> list[ReadRecord]:
    return [
        ReadRecord(topic, record.partition, record.offset, record.key, record.value)
        async for record in client.records(topic)
    ]


async def _read_felix(client: Any, topic: str, count: int) -> list[bytes]:
    values: list[bytes] = []
    subscription = await client.subscribe(topic, start="earliest")
    while len(values) < count:
        event = await subscription.next(timeout_s=DRAIN_S_MAX)
        if event is None:
            break
        values.append(event.value)
    subscription.close()
    return values


async def _read_fujin(
    client: Any, name: str, expected: list[bytes], delivered: set[bytes] | frozenset[bytes] = frozenset()
) -> list[bytes]:
    """Read until everything has come that did not come before."""
    values: list[bytes] = []
    async with client.reader(name) as reader:
        while set(expected) - set(values) - delivered:
            messages = await reader.next_batch(100, timeout_s=DRAIN_S_MAX)
            if not messages:
                break
            values += [message.value for message in messages]
            await reader.ack(*messages)
    return values

"""Keeps partitions current that somebody here uses: one request to each broker that waits for news of all of them.

It moves their ends, feeds their tails and calls their watchers. Appends of ours are known before they come back this way; while there is
nothing else, there is a pause between requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from penstock.background import Tasks
from penstock.errors import PenstockError
from penstock.log.kafka.client import KafkaClient, Purpose
from penstock.log.kafka.faults import KafkaFault, Unanswered
from penstock.log.kafka.partition import KafkaPartition
from penstock.log.kafka.reader import RETRY_S_MAX

WAIT_MS: Final = 500
"""A partition that is followed from now on is part of the next request."""
PARTITION_BYTES: Final = 256 << 10
TOTAL_BYTES: Final = 4 << 20
IDLE_S: Final = 60.0
"""A partition that nobody watches, reads or writes for so long is followed no more."""
FOLLOWED_MAX: Final = 4_000
PAUSE_S_MIN: Final = 0.002
PAUSE_S_MAX: Final = 0.05
"""Between requests that bring only what was known: a bound on how late news of others come while this node writes."""
_PARTITION_S: Final = 20e-6
"""What naming a partition in a request costs, roughly: many of them are asked about less often."""

log = structlog.get_logger(__name__)


class Follower:
    """Runs from the first `touch` to `stop`."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._followed: dict[KafkaPartition, None] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._catching_up = Tasks()
        self._stopped = False
        self._turn = 0

    def touch(self, partition: KafkaPartition) -> None:
        """Somebody uses a partition: follow it for a while."""
        partition.touched = self._loop.time()
        if partition not in self._followed and not self._stopped:
            self._followed[partition] = None
            if len(self._followed) > FOLLOWED_MAX:
                self._drop_oldest()
            self._begin(partition)

    def _begin(self, partition: KafkaPartition) -> None:
        node = self._client.leader(partition.place)
        if node is not None and node not in self._tasks:
            self._tasks[node] = self._loop.create_task(self._run(node), name=f"penstock-kafka-follow-{node}")

    def catch_up_soon(self, partition: KafkaPartition) -> None:
        """Ask for the end of a partition that was not followed, without waiting for it."""
        _ = self._catching_up.run(self._catch_up(partition))

    async def _catch_up(self, partition: KafkaPartition) -> None:
        try:
            await partition.follow()
        except PenstockError as error:
            log.debug("catching_up_failed", partition=str(partition), error=str(error))

    def drop(self, partition: KafkaPartition) -> None:
        self._followed.pop(partition, None)
        partition.followed = False

    async def note_sizes(self, partitions: Iterable[KafkaPartition]) -> None:
        """Ask how large partitions are, and leave it if nobody answers."""
        try:
            sizes = await self._client.sizes()
        except (Unanswered, KafkaFault) as error:
            log.debug("sizes_unknown", error=str(error))
            return
        for partition in partitions:
            partition.size_bytes = sizes.get(partition.place, partition.size_bytes)

    async def stop(self) -> None:
        self._stopped = True
        tasks = [*self._tasks.values(), *self._catching_up]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop_oldest(self) -> None:
        unwatched = [partition for partition in self._followed if not partition.watchers]
        if unwatched:
            self.drop(min(unwatched, key=lambda partition: partition.touched))

    def _drop_idle(self) -> None:
        late = self._loop.time() - IDLE_S
        for partition in [each for each in self._followed if each.touched < late and not each.watchers]:
            self.drop(partition)

    async def _run(self, node: int) -> None:
        """Ask one broker for news of what it leads, until it leads nothing that is followed."""
        pause_s = 0.0
        try:
            while True:
                self._drop_idle()
                theirs = {
                    partition.place: partition
                    for partition in self._followed
                    if partition.followed and self._client.leader(partition.place) == node
                }
                if not theirs:
                    if not any(self._client.leader(partition.place) == node for partition in self._followed):
                        return
                    await asyncio.sleep(PAUSE_S_MAX)
                    continue
                try:
                    news = await self._ask(node, theirs)
                except (Unanswered, KafkaFault):
                    await self._look_around()
                    continue
                except Exception:
                    log.exception("following_failed", broker=node)
                    await self._look_around()
                    continue
                pause_s = 0.0 if news else min(max(2 * pause_s, PAUSE_S_MIN), PAUSE_S_MAX)
                await asyncio.sleep(max(pause_s, len(theirs) * _PARTITION_S))
        finally:
            del self._tasks[node]

    async def _look_around(self) -> None:
        """Leaders may have changed."""
        await asyncio.sleep(RETRY_S_MAX)
        await self._client.refresh()
        self.begin_all()

    def begin_all(self) -> None:
        """See to it that every broker is asked that leads something."""
        for partition in self._followed:
            self._begin(partition)

    async def _ask(self, node: int, theirs: dict[tuple[str, int], KafkaPartition]) -> bool:
        """One request; returns whether it brought something that was not known."""
        # A batch that is larger than the bound comes whole only as the first: so each partition is the first in its turn.
        self._turn += 1
        places = list(theirs)
        places = places[self._turn % len(places) :] + places[: self._turn % len(places)]
        positions = {place: theirs[place].position for place in places}
        answers = await self._client.fetch(
            node, positions, PARTITION_BYTES, WAIT_MS, Purpose.TAIL, total_bytes=TOTAL_BYTES
        )
        faulty = [theirs[place] for place, answer in answers.items() if isinstance(answer, KafkaFault)]
        found = [(theirs[place], answer) for place, answer in answers.items() if not isinstance(answer, KafkaFault)]
        news = not any(answer.data for _, answer in found)  # it has waited in vain: no pause is needed
        for partition, answer in found:
            if partition.followed:
                try:
                    news |= partition.absorb(answer)
                except Exception:
                    # The other partitions of the broker are followed all the same.
                    log.exception("following_failed", partition=str(partition))
                    faulty.append(partition)
        if faulty:  # its leader is another now, or it begins behind what we know
            for partition in faulty:
                self.drop(partition)
                self.catch_up_soon(partition)
            await self._look_around()
        return news

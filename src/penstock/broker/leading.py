"""What a broker does as one of several nodes on a log.

One node leads: it alone has the parts that keep in memory what must be known in one place only (delayed records, transactions, members of
groups), and it makes all decisions. The others follow users, ACLs, schemas, keys, offsets and topics, and serve records. They pass on
the rest. A broker on a log of its own always leads.

What is done for topics one by one is divided into shards, of which every node owns some (`Sharded`); a broker on a log of its own owns all.
A shard that goes to another node is lost first, so that what was answered here is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from penstock.background import Background, Loop
from penstock.broker.access.checks import Principal
from penstock.broker.table import AWAIT_LEADER_S
from penstock.errors import PenstockError
from penstock.log.api import Engine, TopicConfig
from penstock.log.watchers import Watchers


class Leader(Protocol):
    """The node that leads, as a broker on another node sees it."""

    async def create_topic(self, principal: Principal, name: str, config: TopicConfig, schema: str | None) -> None:
        """Create a topic there. One that exists is left as it is. Raises NotLeading if nobody leads now."""


class Followed(Protocol):
    """A part that every node has, which follows the log."""

    async def start(self) -> None: ...

    async def catch_up(self) -> None:
        """Show what was answered before, on any node."""

    async def close(self) -> None: ...


class Tidied(Followed, Protocol):
    async def lead(self) -> None:
        """Complete and delete what a crash or another node has left."""


class Led(Protocol):
    """A part that only the node that leads has."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Sharded(Protocol):
    """A part whose work is divided into shards."""

    async def start(self) -> None: ...

    async def divide(self) -> int:
        """Divide the log unless it is, for the node that leads; returns the number of shards."""

    async def is_divided(self) -> bool:
        """Whether shards can be owned."""

    @property
    def owned(self) -> Collection[int]:
        """The shards that were gained and not lost."""

    async def gain(self, number: int) -> None:
        """Load a shard that this node has claimed, and work on it."""

    async def lose(self, number: int) -> None:
        """Work on a shard no more, and store what was answered. Raises if that fails, and is tried again."""

    async def close(self) -> None: ...


class Leading:
    """Starts and closes the parts of a broker as its node follows and leads."""

    def __init__(
        self,
        engine: Engine,
        background: Background,
        *,
        tidied: Sequence[Tidied],
        followed: Sequence[Followed],
        led: Sequence[Led],
        sharded: Sharded,
    ) -> None:
        """`led` are started in their order, and closed in the reverse of it."""
        self._engine = engine
        self._background = background
        self._tidied = tidied
        self._followed = [*followed[:1], *tidied, *followed[1:]]
        self._to_lead = list(led)
        self._led: list[Led] = []
        self._sharded = sharded
        self._owning: Loop | None = None
        self._is_loaded = False
        self._watchers: Watchers[[]] = Watchers("lead")
        self._beginning: Loop | None = None
        self._stop_watching: list[Callable[[], None]] = []

    @property
    def leads(self) -> bool:
        """Whether this node leads, and everything that is decided here is loaded."""
        return self._is_loaded and self._engine.leads

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when this node begins to lead. Returns what stops it."""
        return self._watchers.add(callback)

    async def start(self) -> None:
        for part in self._followed:
            await part.start()
        await self._sharded.start()
        if self._engine.leads:
            await self._lead()
        else:
            self._beginning = self._background.loop("lead", self._lead_if_chosen, first_s=0)
            self._stop_watching.append(self._engine.watch_nodes(self._beginning.wake))
        if self._engine.shards is not None:
            await self._sharded.is_divided()  # raises if it is divided otherwise
            self._owning = self._background.loop("shards", self._own_given, first_s=0)
            self._stop_watching.append(self._engine.watch_nodes(self._owning.wake))

    async def stop_watching(self) -> None:
        """Begin to lead no more."""
        for stop in self._stop_watching:
            stop()
        for loop in (self._beginning, self._owning):
            if loop is not None:
                await loop.cancel()

    async def close_led(self) -> None:
        await self._sharded.close()
        while self._led:
            await self._led.pop().close()

    async def close_followed(self) -> None:
        for part in reversed(self._followed):
            await part.close()

    async def catch_up(self) -> None:
        """Show what was answered before, on any node: topics, users, roles, ACLs, keys, schemas and offsets of groups."""
        await self._engine.catch_up()
        await asyncio.gather(*(part.catch_up() for part in self._followed))

    async def refresh_ends(self, topics: Iterable[str]) -> None:
        """Refresh the high watermarks of those topics that exist, for a client that has just written to them on another node."""
        infos = [info for name in topics if (info := self._engine.topics().get(name)) is not None]
        partitions = [partition for info in infos for partition in self._engine.partitions(info)]
        await asyncio.gather(*(partition.follow() for partition in partitions if partition.followed))

    async def _lead_if_chosen(self) -> None:
        if self._engine.leads and not self._is_loaded:
            await self._lead()

    async def _lead(self) -> None:
        """Load what the node that leads keeps in memory, and decide from now on."""
        await self.catch_up()
        for part in self._tidied:
            await part.lead()
        while self._to_lead:
            await self._to_lead[0].start()
            self._led.append(self._to_lead.pop(0))
        shards = await self._sharded.divide()
        if self._engine.shards is None:
            for shard in range(shards):
                await self._sharded.gain(shard)
        elif self._owning is not None:
            self._owning.wake()
        self._is_loaded = True
        self._watchers.notify()

    async def _own_given(self) -> float | None:
        """Release shards assigned to other nodes and claim those assigned to this one. Returns the delay before the next check."""
        engine, sharded = self._engine, self._sharded
        if engine.deposed is not None:
            return None
        failed: dict[int, PenstockError] = {}  # one that cannot be stored or loaded holds up no other
        for shard in range(engine.shards or 0):
            if shard not in engine.given_shards or shard not in sharded.owned:
                # Also one that came back before it had gone, or that could not be gained: nothing of it is under way when it is claimed.
                try:
                    await sharded.lose(shard)
                    await engine.release_shard(shard)
                except PenstockError as error:
                    failed[shard] = error
        for shard in sorted(engine.given_shards):
            if not await sharded.is_divided():
                return AWAIT_LEADER_S
            if shard in engine.given_shards and shard not in sharded.owned and shard not in failed:
                try:
                    await engine.claim_shard(shard)
                    await sharded.gain(shard)
                except PenstockError as error:
                    failed[shard] = error
        if failed:
            raise next(iter(failed.values()))
        return None

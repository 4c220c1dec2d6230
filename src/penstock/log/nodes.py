"""What the engine contract says of nodes that share a log.

One of them leads (`NodeOnLog.leads`). It alone decides: it writes internal topics, creates, alters and deletes topics, and appends to
several partitions at once. The others append to single partitions of users' topics and of internal topics that are shared
(`NodeOnLog.share`), and follow the rest. A new leader has fenced the one before: what that one still decides is refused (`NotLeading`,
`NotWritten`), never merged. An engine with one node always leads.

Work that is divided has shards, each with one owner (`NodeOnLog.given_shards`), which alone appends to the partitions of its number of
internal topics that are divided, also together with partitions of users' topics. An owner is fenced as a leader is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple


class NodeInfo(NamedTuple):
    """A node on a shared log, as the others see it."""

    id: str
    addresses: Mapping[str, str]
    """Where its listeners are, by name."""
    leads: bool
    shards: Sequence[int] = ()
    """Those that it is to own."""


class NodeOnLog:
    """A node as it sees itself and others: the part of `Engine` that has an answer for a log that is not shared."""

    @property
    def leads(self) -> bool:
        """Whether this node decides for all. A node that leads does so until it is closed or `deposed`; one that does not may begin to."""
        return True

    @property
    def deposed(self) -> str | None:
        """Why this node does not lead any more, None if it does or never did. It writes nothing more: close it and open another."""
        return None

    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes that share this log, by id; empty if it is not shared."""
        return ()

    def watch_nodes(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after `leads`, `deposed` or `nodes` has changed. Returns what stops it."""
        return lambda: None

    def announce(self, addresses: Mapping[str, str]) -> None:
        """Tell the other nodes where this one listens, by name of the listener."""
        return

    def share(self, topic: str) -> None:
        """Let every node append to an internal topic: one in which the last record of a key, or every record, counts on every node."""
        return

    @property
    def shards(self) -> int | None:
        """How many shards the work on this log is divided into, the same on all nodes; None if this node has the log for itself."""
        return None

    @property
    def given_shards(self) -> Collection[int]:
        """The shards that this node is to own; `watch_nodes` tells when that changes. No other node is given one before it is released."""
        return ()

    @property
    def is_heard(self) -> bool:
        """Whether the other nodes count on this one. While they do not, what it owns may be another's before it knows."""
        return True

    def divide(self, topic: str) -> None:
        """From now on only the owner of a shard appends to the partition of an internal topic with its number."""
        return

    async def claim_shard(self, shard: int) -> None:
        """Own a shard: what a former owner still appends to its partitions is refused from now on. Raises NotWritten, Unreachable."""
        return

    async def release_shard(self, shard: int) -> None:
        """Append no more to the partitions of a shard, and let another node own it."""
        return

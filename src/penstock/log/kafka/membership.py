"""The nodes on one cluster, which of them leads, and who owns which shards: a consumer group of Kafka, in which that is shared out.

Every node is a member, and says of itself who it is, where it listens, and whether it leads. Kafka notices members that vanish, and lets
one member share out: it gives the lead to the node that has it, or else to the one that has been there for longest, and shards to those
that others reach (`share_out`), and tells all members of each. A shard that moves is given once the node before has released it, or is
gone. That a node leads or owns is not proof that no other thinks so: the one before may not have noticed yet. `NodeLock` sees to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from penstock.background import Background, Loop
from penstock.errors import InvalidRequest, Unreachable
from penstock.log.kafka.client import Joined, KafkaClient
from penstock.log.kafka.faults import Code, KafkaFault, Unanswered
from penstock.log.kafka.reader import Reader
from penstock.log.nodes import NodeInfo
from penstock.log.sharing_out import share_out

SESSION_S: Final = 6.0
"""A node that Kafka has not heard of for this long is gone. Kafka allows no less, as it comes."""
HEARTBEAT_S: Final = 0.5
REJOIN_S: Final = 5.0
"""How long Kafka waits for the members that it knows when one has come or gone."""
PROTOCOL: Final = "penstock-nodes-2"
"""Other releases say other things of themselves, and are refused by Kafka."""
_LEAVE_S_MAX: Final = 2.0
_JOIN_AGAIN: Final = frozenset({Code.REBALANCE_IN_PROGRESS, Code.ILLEGAL_GENERATION})

log = structlog.get_logger(__name__)


class _Said(msgspec.Struct, frozen=True):
    """What a member reports of itself, and what all learn of each."""

    id: str
    addresses: dict[str, str]
    since_ms: int
    leads: bool
    shards: tuple[int, ...] = ()
    """Of a member: those that it holds. To all: those that it was given."""
    shard_count: int = 0


class Membership:
    """For one node, from `join` to `leave`. `changed` is called when `nodes`, `leads`, `given` or `lost` has."""

    def __init__(
        self,
        client: KafkaClient,
        prefix: str,
        node: str,
        now_ms: int,
        changed: Callable[[], None],
        background: Background,
        *,
        shards: int = 1,
    ) -> None:
        self._client = client
        self._group = _group(prefix)
        self._said = _Said(node, {}, now_ms, False, shard_count=shards)
        self._announced: _Said | None = None
        """What was said when the nodes were last shared out; None if they are to be again."""
        self._changed = changed
        self._background = background
        self._joined: Joined | None = None
        self._heard_at = 0.0
        self._loop: Loop | None = None
        self.nodes: list[NodeInfo] = []
        self.given: frozenset[int] = frozenset()
        """The shards that this node is to own."""
        self.lost: str | None = None
        """Why a node that led is to lead no more, or one that owned shards is to own none."""

    @property
    def leads(self) -> bool:
        """Whether the lead was given to this node."""
        return self._said.leads and self.lost is None

    @property
    def is_heard(self) -> bool:
        """Whether Kafka has heard of this node, and so cannot take it for gone yet."""
        return asyncio.get_running_loop().time() - self._heard_at < SESSION_S

    async def join(self) -> None:
        """Return once it is known who leads. Raises Unreachable, KafkaFault."""
        while True:
            try:
                await self._join()
            except Unanswered as error:
                raise Unreachable(f"Kafka does not answer: joining the nodes of this cluster ({error})") from error
            except KafkaFault as fault:
                if not fault.retriable and fault.code not in _JOIN_AGAIN:
                    raise
                await asyncio.sleep(HEARTBEAT_S)
            else:
                break
        self._loop = self._background.loop("kafka membership", self._beat, first_s=HEARTBEAT_S)

    def announce(self, addresses: Mapping[str, str]) -> None:
        """Tell the other nodes where this one listens."""
        self._said = msgspec.structs.replace(self._said, addresses=dict(addresses))
        if self._loop is not None:
            self._loop.wake()

    def release(self, shard: int) -> None:
        """Let another node have a shard, unless it was given to this one again meanwhile."""
        if shard not in self.given:
            self._said = msgspec.structs.replace(
                self._said, shards=tuple(each for each in self._said.shards if each != shard)
            )
            if self._loop is not None:
                self._loop.wake()

    async def leave(self) -> None:
        """Go at once instead of when Kafka notices."""
        if self._loop is not None:
            await self._loop.cancel()
        if self._joined is not None:
            try:
                async with asyncio.timeout(_LEAVE_S_MAX):
                    await self._client.leave_group(self._group, self._joined.member)
            except (Unanswered, KafkaFault, TimeoutError) as error:
                log.debug("node_left_without_answer", error=str(error))

    async def _beat(self) -> float | None:
        if self.lost is not None:
            return None  # what is left is to be closed
        now = asyncio.get_running_loop().time()
        try:
            if self._joined is None or self._said != self._announced:
                await self._join()
            else:
                await self._client.heartbeat(self._group, self._joined)
                self._heard_at = now
        except KafkaFault as fault:
            if fault.code == Code.UNKNOWN_MEMBER_ID:
                self._joined = None
                if self.leads or self._said.shards:  # others have been given them
                    self._lose("Kafka has not heard of this node for too long")
                return 0
            if fault.code in _JOIN_AGAIN:
                self._announced = None
                return 0
            if not fault.retriable:
                raise
        except Unanswered as error:
            if self.leads and now - self._heard_at > SESSION_S:
                self._lose(f"this node does not reach Kafka ({error})")
        return HEARTBEAT_S

    def _lose(self, why: str) -> None:
        self.lost = why
        self._changed()

    async def _join(self) -> None:
        said = self._said
        joined = await self._client.join_group(
            self._group,
            "" if self._joined is None else self._joined.member,
            PROTOCOL,
            msgspec.json.encode(said),
            int(SESSION_S * 1000),
            int(REJOIN_S * 1000),
        )
        self._joined, self._announced = joined, None  # until it is known what was shared out
        assignments = {} if not joined.members else _shared_out(joined.members)
        now = asyncio.get_running_loop().time()
        assignment = await self._client.sync_group(self._group, joined, assignments)
        self._heard_at = now
        told = msgspec.json.decode(assignment, type=dict[str, _Said])
        self._check_shards(told.values())
        nodes = [NodeInfo(each.id, each.addresses, each.leads, each.shards) for each in told.values()]
        self.nodes = sorted(nodes, key=lambda node: node.id)
        ours = told.get(joined.member, msgspec.structs.replace(said, leads=False, shards=()))
        if said.leads and not ours.leads:
            self._lose("another node leads now")
        self.given = frozenset(ours.shards)
        self._said = msgspec.structs.replace(
            self._said, leads=ours.leads, shards=tuple(sorted(self.given.union(self._said.shards)))
        )
        self._announced = msgspec.structs.replace(
            said, leads=ours.leads, shards=tuple(sorted(self.given.union(said.shards)))
        )
        self._changed()

    def _check_shards(self, told: Iterable[_Said]) -> None:
        """Raise InvalidRequest if this node joins others that divide the log otherwise."""
        count = self._said.shard_count
        other = next((each for each in told if each.shard_count != count), None)
        if self._loop is None and other is not None:
            raise InvalidRequest(
                f"cluster.shards is {count} here and {other.shard_count} on node {other.id}: set the same number on all nodes"
            )


async def check_alone(client: KafkaClient, reader: Reader, prefix: str) -> None:
    """Raise InvalidRequest if nodes share these topics: they would take turns with this one, and write to users' topics meanwhile."""
    said = await reader.patiently("asking for other nodes", lambda: client.members(_group(prefix)))
    nodes = sorted(msgspec.json.decode(each, type=_Said).id if each else "one that joins" for each in said)
    if nodes:
        raise InvalidRequest(
            f"nodes of a cluster run on these topics in Kafka ({', '.join(nodes)}): stop all of them first, or give this broker the "
            f"section [cluster] that they have. Kafka forgets one that was killed after {SESSION_S:g} seconds"
        )


def _group(prefix: str) -> str:
    return f"{prefix}penstock.nodes"


def _shared_out(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Give the lead to one of the members, and shards to those that others reach; returns what each receives, which is the same for all."""
    said = {member: msgspec.json.decode(metadata, type=_Said) for member, metadata in members.items()}
    leader = min(said, key=lambda member: (not said[member].leads, said[member].since_ms, said[member].id))
    oldest_first = sorted(said, key=lambda member: (said[member].since_ms, said[member].id))
    count = said[leader].shard_count
    given = share_out({member: said[member].shards for member in oldest_first if said[member].addresses}, count)
    told = msgspec.json.encode(
        {
            member: msgspec.structs.replace(each, leads=member == leader, shards=given.get(member, ()))
            for member, each in said.items()
        }
    )
    return dict.fromkeys(members, told)


def leader_of(nodes: Sequence[NodeInfo]) -> str:
    """Return the id of the node that leads, for a message."""
    return next((node.id for node in nodes if node.leads), "no node")

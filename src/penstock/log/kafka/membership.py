"""The nodes on one cluster, and which of them leads: a consumer group of Kafka, in which there is one thing to share out.

Every node is a member, and says of itself who it is, where it listens, and whether it leads. Kafka notices members that vanish, and lets
one member share out: it gives the lead to the node that has it, or else to the one that has been there for longest, and tells all members
of each. That a node leads is not proof that no other thinks so: the one before may not have noticed yet. `NodeLock` sees to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from penstock.background import Background, Loop
from penstock.errors import Unreachable
from penstock.log.api import NodeInfo
from penstock.log.kafka.client import Joined, KafkaClient
from penstock.log.kafka.faults import Code, KafkaFault, Unanswered

SESSION_S: Final = 6.0
"""A node that Kafka has not heard of for this long is gone. Kafka allows no less, as it comes."""
HEARTBEAT_S: Final = 0.5
REJOIN_S: Final = 5.0
"""How long Kafka waits for the members that it knows when one has come or gone."""
PROTOCOL: Final = "penstock-nodes"
_LEAVE_S_MAX: Final = 2.0
_JOIN_AGAIN: Final = frozenset({Code.REBALANCE_IN_PROGRESS, Code.ILLEGAL_GENERATION})

log = structlog.get_logger(__name__)


class _Said(msgspec.Struct, frozen=True):
    """What a member reports of itself, and what all learn of each."""

    id: str
    addresses: dict[str, str]
    since_ms: int
    leads: bool


class Membership:
    """For one node, from `join` to `leave`. `changed` is called when `nodes`, `leads` or `lost` has."""

    def __init__(
        self,
        client: KafkaClient,
        prefix: str,
        node: str,
        now_ms: int,
        changed: Callable[[], None],
        background: Background,
    ) -> None:
        self._client = client
        self._group = _group(prefix)
        self._said = _Said(node, {}, now_ms, False)
        self._announced: _Said | None = None
        """What was said when the nodes were last shared out; None if they are to be again."""
        self._changed = changed
        self._background = background
        self._joined: Joined | None = None
        self._heard_at = 0.0
        self._loop: Loop | None = None
        self.nodes: list[NodeInfo] = []
        self.lost: str | None = None
        """Why a node that led is to lead no more."""

    @property
    def leads(self) -> bool:
        """Whether the lead was given to this node."""
        return self._said.leads and self.lost is None

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
                self._lose("Kafka has not heard of this node for too long")
                return 0
            if fault.code in _JOIN_AGAIN:
                self._announced = None
                return 0
            if not fault.retriable:
                raise
        except Unanswered as error:
            if now - self._heard_at > SESSION_S:
                self._lose(f"this node does not reach Kafka ({error})")
        return HEARTBEAT_S

    def _lose(self, why: str) -> None:
        if self.leads:
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
        assignment = await self._client.sync_group(self._group, joined, assignments)
        self._heard_at = asyncio.get_running_loop().time()
        told = msgspec.json.decode(assignment, type=dict[str, _Said])
        nodes = [NodeInfo(each.id, each.addresses, each.leads) for each in told.values()]
        self.nodes = sorted(nodes, key=lambda node: node.id)
        given = joined.member in told and told[joined.member].leads
        if said.leads and not given:
            self._lose("another node leads now")
        self._said = msgspec.structs.replace(self._said, leads=given)
        self._announced = msgspec.structs.replace(said, leads=given)
        self._changed()


async def running_nodes(client: KafkaClient, prefix: str) -> list[str]:
    """The ids of the nodes that share the topics behind a prefix now. Raises Unanswered, KafkaFault."""
    found = await client.members(_group(prefix))
    return sorted(msgspec.json.decode(said, type=_Said).id if said else "one that joins" for said in found)


def _group(prefix: str) -> str:
    return f"{prefix}penstock.nodes"


def _shared_out(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Give the lead to one of the members; returns what each receives, which is the same for all."""
    said = {member: msgspec.json.decode(metadata, type=_Said) for member, metadata in members.items()}
    leader = min(said, key=lambda member: (not said[member].leads, said[member].since_ms, said[member].id))
    told = msgspec.json.encode(
        {member: msgspec.structs.replace(each, leads=member == leader) for member, each in said.items()}
    )
    return dict.fromkeys(members, told)


def leader_of(nodes: Sequence[NodeInfo]) -> str:
    """Return the id of the node that leads, for a message."""
    return next((node.id for node in nodes if node.leads), "no node")

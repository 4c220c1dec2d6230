"""The claim of one node on what it alone writes in a cluster: the topics that are decided on by one, or a shard.

Two nodes must not both decide. The claim is a transactional id: Kafka gives each who
takes it a higher epoch, and refuses what is written with a lower one. The new owner ends an empty transaction on every internal partition:
from then on the leaders of these refuse what the former owner still writes there, and its commits are refused by their coordinator. A node
that lost its claim finds out when it writes, or within `CHECK_S`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.errors import NotWritten
from penstock.log.kafka.client import KafkaClient, Place, ProducerId
from penstock.log.kafka.faults import FENCED, Code, KafkaFault
from penstock.log.kafka.reader import Reader

CHECK_S: Final = 2.0
KEEP_S: Final = 3600.0
"""How often the claim is used, so that Kafka does not forget it (after a week)."""
TRANSACTION_MS: Final = 10_000
"""After this Kafka aborts a transaction whose node has died; until then readers see nothing after it."""
NODE_ID: Final = "penstock.node"


class NodeLock:
    """Held from `claim` until another node claims it."""

    def __init__(self, client: KafkaClient, reader: Reader, transactional_id: str) -> None:
        self._client = client
        self._reader = reader
        self._id = transactional_id
        self.producer = ProducerId(-1, -1)
        self.on_lost: Callable[[], None] = lambda: None
        """Told whenever it is found that another node has taken the claim."""

    async def claim(self) -> None:
        """Take it from its current owner, if any."""
        self.producer = await self._reader.patiently(
            "claiming the topics of this node", lambda: self._client.init_producer(self._id, TRANSACTION_MS)
        )

    async def fence(self, places: Sequence[Place]) -> None:
        """Have the leaders of these partitions refuse what former owners write."""
        await self._reader.patiently(
            "fencing the node before this one",
            lambda: self._client.add_to_transaction(self._id, self.producer, places),
        )
        # Until it is told twice, it is only decided, and not known to every leader.
        for _ in range(2):
            await self._reader.patiently("fencing the node before this one", self._end)

    async def _end(self) -> None:
        await self._client.end_transaction(self._id, self.producer, commit=False)

    async def check(self) -> None:
        """Raises NotWritten if another node has taken the claim."""
        try:
            await self._reader.patiently("checking the claim of this node", self._end)
        except KafkaFault as fault:
            if fault.code in FENCED or fault.code == Code.INVALID_PRODUCER_ID_MAPPING:
                self.on_lost()
                raise NotWritten(f"another Penstock node has claimed the topics of this one ({fault})") from fault
            raise

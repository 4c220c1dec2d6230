"""Who may write what on a log that nodes share: the node that leads has a claim to internal topics, and the owner of a shard one that
covers the partition with its number of every topic that is divided."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

import structlog

from penstock.errors import NotWritten
from penstock.log.api import BatchFor
from penstock.log.kafka.claims import Claim, claim_of_leader, claim_of_shard
from penstock.log.kafka.client import KafkaClient, Place
from penstock.log.kafka.faults import KafkaFault
from penstock.log.kafka.partition import KafkaPartition
from penstock.log.kafka.reader import Reader
from penstock.names import is_internal

log = structlog.get_logger(__name__)


class Shards:
    def __init__(
        self,
        client: KafkaClient,
        reader: Reader,
        prefix: str,
        count: int,
        shared: Collection[str],
        partition: Callable[[str, int], KafkaPartition],
    ) -> None:
        """`shared` are the internal topics that every node writes. `partition` finds one by its topic and number."""
        self.lead = claim_of_leader(client, reader, prefix)
        self._shared = shared
        self._partition = partition
        self._claims = [claim_of_shard(client, reader, prefix, shard) for shard in range(count)]
        self._divided: set[str] = set()

    def __iter__(self) -> Iterator[Claim]:
        """Iterate over all claims."""
        return iter((self.lead, *self._claims))

    def divide(self, topic: str) -> None:
        self._divided.add(topic)

    def claim_of(self, partition: KafkaPartition) -> Claim | None:
        """Return what a node must hold to write to a partition, None if every node may."""
        topic = partition.topic
        if topic in self._divided and partition.index < len(self._claims):
            return self._claims[partition.index]
        return self.lead if is_internal(topic) and topic not in self._shared else None

    def claim_for(self, parts: Sequence[BatchFor]) -> Claim:
        """Return whose transaction an atomic append is: that of the shard that it writes to, or of the node that leads."""
        claims = {partition.claim for partition, _ in parts if isinstance(partition, KafkaPartition)}
        return next((claim for claim in self._claims if claim in claims), self.lead)

    async def take(self, shard: int) -> None:
        """Claim a shard. Raises NotWritten, Unreachable."""
        partitions = self._covered(shard)
        try:
            await self._claims[shard].take([partition.place for partition in partitions])
        except KafkaFault as fault:
            raise NotWritten(
                f"Kafka does not let this node claim shard {shard} ({fault}): it needs the right to use the transactional ids that begin"
                " with 'penstock.shard.' behind the prefix"
            ) from fault
        for partition in partitions:
            partition.sequence = 0  # of the new epoch of its producer
        log.info("shard_acquired", shard=shard)

    async def leave(self, shard: int) -> None:
        """Return once nothing of a shard is under way here any more, and nothing more will be."""
        claim = self._claims[shard]
        if claim.held:
            log.info("shard_released", shard=shard)
        claim.leave()
        for partition in self._covered(shard):
            await partition.written()
        await claim.transactions.ended()

    async def check(self, led: Place, *, keep: bool) -> None:
        """Find out whether another node has taken a claim. `keep`: use those that are held, so that Kafka does not forget them; `led` is a
        partition that the node that leads writes to."""
        for shard, claim in enumerate(self, -1):
            if claim.held:
                with suppress(NotWritten):  # which was reported, unless it was left meanwhile
                    await claim.lock.check()
                    if keep and claim.held:
                        await claim.lock.fence([led] if shard < 0 else [each.place for each in self._covered(shard)])

    def _covered(self, shard: int) -> list[KafkaPartition]:
        return [self._partition(topic, shard) for topic in self._divided]

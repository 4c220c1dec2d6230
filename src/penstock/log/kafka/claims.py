"""What only one of several nodes may write: the internal topics, by the one that leads, and the partitions of a shard, by its owner.

Who holds a claim has a transactional id for plain appends (`lock`), and others for atomic ones. Taking them fences who held it before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.log.kafka.client import KafkaClient, Place, ProducerId
from penstock.log.kafka.lock import NODE_ID, NodeLock
from penstock.log.kafka.reader import Reader
from penstock.log.kafka.transactions import POOL_SIZE, Transactions


class Claim:
    def __init__(self, client: KafkaClient, reader: Reader, lock_id: str, writer_ids: Sequence[str], what: str) -> None:
        """`what` is claimed, for errors: of it nothing is written while the claim is not held."""
        self.lock = NodeLock(client, reader, lock_id)
        self.transactions = Transactions(client, reader, self.lock, writer_ids)
        self.held = False
        self.what = what
        self.on_lost: Callable[[], None] = lambda: None
        """Told whenever it is found that another node has taken the claim, unless it was left to that."""
        self._is_left = False
        self.lock.on_lost = self._was_taken

    @property
    def producer(self) -> ProducerId:
        """Of plain appends."""
        return self.lock.producer

    async def take(self, places: Sequence[Place]) -> None:
        """Take it, and have the leaders of these partitions refuse what was claimed before. Raises KafkaFault, Unreachable."""
        self.held = self._is_left = False
        await self.lock.claim()
        await self.lock.fence(places)
        await self.transactions.start()
        self.held = True

    def leave(self) -> None:
        """Write nothing more by it: another node may take it."""
        self.held, self._is_left = False, True

    def _was_taken(self) -> None:
        if not self._is_left:
            self.on_lost()


def claim_of_leader(client: KafkaClient, reader: Reader, prefix: str) -> Claim:
    """Return the claim to everything that is not divided into shards."""
    writers = [f"{prefix}penstock.txn.{number}" for number in range(POOL_SIZE)]
    return Claim(client, reader, prefix + NODE_ID, writers, "this node does not lead")


def claim_of_shard(client: KafkaClient, reader: Reader, prefix: str, shard: int) -> Claim:
    """Return the claim to the partitions with the number of a shard."""
    own = f"{prefix}penstock.shard.{shard}"
    return Claim(client, reader, own, [f"{own}.txn"], f"this node does not own shard {shard}")

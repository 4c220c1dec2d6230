"""Which appends go into one transaction."""

from __future__ import annotations

from typing import Final

from penstock.log.api import LateBatch
from penstock.log.kafka.appends import Atomic, Pending, Share, Transaction
from penstock.log.kafka.partition import KafkaPartition

TRANSACTION_BYTES: Final = 4 << 20
TRANSACTION_APPENDS_MAX: Final = 1000


def gather_transaction(first: Atomic) -> Transaction | None:
    """An atomic append and what follows it in its queues, other atomic appends included; None if it has to wait itself."""
    taken: dict[KafkaPartition, list[Pending]] = {}
    atomics: dict[Atomic, None] = {}
    size = appends = 0

    def next_of(partition: KafkaPartition) -> Pending | None:
        at = len(taken.get(partition, ()))
        return partition.queue[at] if at < len(partition.queue) else None

    def take(partition: KafkaPartition) -> None:
        nonlocal size, appends
        pending = next_of(partition)
        assert pending is not None
        taken.setdefault(partition, []).append(pending)
        size += pending.batch.size_bytes
        appends += 1

    def fits(atomic: Atomic) -> bool:
        if atomic.claim is not first.claim:
            return False
        for partition in atomic.partitions:
            pending = next_of(partition)
            if partition.busy or pending is None or pending.atomic is not atomic:
                return False
            # What is made late does not know where the parts behind another late one will be.
            behind_late = any(isinstance(each.batch, LateBatch) for each in taken.get(partition, ()))
            if behind_late and not isinstance(pending.batch, LateBatch):
                return False
        return True

    if not fits(first):
        return None
    for partition in first.partitions:
        take(partition)
    atomics[first] = None
    if not first.alone:
        more = list(taken)
        for partition in more:
            while (pending := next_of(partition)) is not None:
                if size + pending.batch.size_bytes > TRANSACTION_BYTES or appends >= TRANSACTION_APPENDS_MAX:
                    break
                if pending.atomic is None:
                    if pending.alone:
                        break
                    take(partition)
                elif not pending.atomic.alone and fits(pending.atomic):
                    atomics[pending.atomic] = None
                    for other in pending.atomic.partitions:
                        if other not in taken:
                            more.append(other)
                        take(other)
                else:
                    break
    for partition, theirs in taken.items():
        for _ in theirs:
            partition.queue.popleft()
        partition.busy = True
    return Transaction([Share(partition, theirs) for partition, theirs in taken.items()], list(atomics))

"""Positions in logs that lost their tail.

A topic without `fsync` may lose acknowledged records in a power cut, and a restored backup ends before the log it was made of. New records
then get offsets that lost ones had. A reader that stored a position beyond the cut would skip them, so every stored position carries the
log epoch of its partition (`Partition.epoch`) and is checked when it is loaded.
"""

from __future__ import annotations

from penstock.log.api import Partition


def position_of_client(partition: Partition, offset: int) -> int:
    """Return `offset`, which a client asks for that keeps its position itself and knows no epochs, or the last cut if it is beyond the end.

    A client that lived through the crash has read records that are lost. It is noticed as long as the log ends before its position.
    """
    if partition.epoch and offset > partition.committed_end:
        return valid_position(partition, offset, partition.epoch - 1)
    return offset


def valid_position(partition: Partition, offset: int, epoch: int | None) -> int:
    """Return `offset`, or the offset at which the log was cut if that happened after `epoch` and below it.

    Releases without epochs stored None. Such a position can only be compared with the end of the log, so it has to be checked before
    anything is appended.
    """
    if epoch is None:
        cut = partition.committed_end if partition.epoch else None
    else:
        cut = partition.cut_since(epoch)
    return offset if cut is None else min(offset, cut)

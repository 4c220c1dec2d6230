"""What is said of a write that failed, and which parts of a commit fail with others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.errors import NotWritten, OutcomeUnknown
from penstock.log.embedded.atomic import AtomicAppend
from penstock.log.embedded.disk import is_full, is_out_of_descriptors, storage_error
from penstock.log.embedded.layout import PartitionCommit

if TYPE_CHECKING:
    from penstock.log.embedded.partition import EmbeddedPartition


def flush_failed(error: OSError, partition: EmbeddedPartition) -> str:
    return f"flushing {partition} to disk failed: {error.strerror or error}; check the disk, then restart the broker"


def refused(partition: EmbeddedPartition) -> NotWritten:
    return NotWritten(f"nothing was written, because the partition has failed: {partition.failure}")


def recorded_only(error: OSError, partition: EmbeddedPartition) -> str:
    return (
        f"writing to {partition} failed after it was recorded in the journal: {error}; restart the broker to recover it"
    )


def write_failed(error: OSError, partition: EmbeddedPartition) -> str:
    return f"writing to {partition} failed: {error.strerror or error}; check the disk, then restart the broker"


def refuse_unwritten(part: PartitionCommit, error: OSError) -> None:
    """Refuse a part of which nothing was written; if the disk is to blame, its partition writes no more."""
    refusal = storage_error(error, f"preparing a write to {part.partition}")
    part.refuse(part.appends, refusal)
    if not (is_full(error) or is_out_of_descriptors(error)):
        part.partition.fail(str(refusal))


def fail(part: PartitionCommit, reason: str) -> None:
    """Nobody knows whether the part is stored, so its partition refuses writes until a restart has looked. So do those of late records
    that tell of it: after anything else is written to them, a restart would not put these there."""
    part.error = part.error or OutcomeUnknown(f"whether these records are on disk is unknown: {reason}")
    part.partition.fail(reason)
    for whole in part.telling:
        for late in whole.late:
            late.partition.fail(reason)


def written_with(failed: Iterable[PartitionCommit], parts: Iterable[PartitionCommit]) -> list[PartitionCommit]:
    """Return the sound parts that share an atomic append with a failed one."""
    torn: set[AtomicAppend] = {append.whole for part in failed for append in part.appends if append.whole is not None}
    return [part for part in parts if part.error is None and any(append.whole in torn for append in part.appends)]

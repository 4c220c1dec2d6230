"""What is said of a write that failed, and which parts of a commit fail with others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import NotWritten, OutcomeUnknown
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
    """Nobody knows whether the part is stored, so its partition refuses writes until a restart has looked."""
    part.error = part.error or OutcomeUnknown(f"whether these records are on disk is unknown: {reason}")
    part.partition.fail(reason)
    for append in part.appends:
        if append.whole is not None:
            append.whole.failure = append.whole.failure or reason


def failed_with(part: PartitionCommit) -> str | None:
    """Return why another part of an atomic append that this one shares has failed; None if none has."""
    wholes = [append.whole for append in part.appends if append.whole is not None]
    return next((whole.failure for whole in wholes if whole.failure is not None), None)

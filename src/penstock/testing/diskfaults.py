"""Faults that the disk of a broker process can be started with, as values that travel on a command line.

`BrokerProcess.start(disk=Crash("commit write segment:3:half"))` runs `python -m penstock.testing.serving`, which makes the disk here.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec

from penstock.log.embedded.disk import Disk
from penstock.testing.crashing import CRASHED, CrashAt, CrashDisk
from penstock.testing.powercut import PowerCutDisk
from penstock.testing.unreliable import FlushErrorDisk, QuotaDisk, WriteBehindDisk


class Crash(msgspec.Struct, frozen=True, tag="crash"):
    """End the process at an operation (see `CrashAt.parse`), with the exit code `CRASHED`."""

    at: str


class CountOperations(msgspec.Struct, frozen=True, tag="count"):
    """Write the number of operations by kind to a file, as JSON, when the broker has stopped cleanly."""

    file: str


class PowerCut(msgspec.Struct, frozen=True, tag="power-cut"):
    """Cut the power at the n-th operation: lay out what a machine may find afterwards as a new directory, `image`, and end the process."""

    cut_at: int
    image: str
    loss: float
    seed: int
    flushes_ignored: bool = False


class FlushErrors(msgspec.Struct, frozen=True, tag="flush-errors"):
    """The flushes with these numbers fail and lose their data, without an error if `silent`."""

    failing: list[int]
    silent: bool = False


class Quota(msgspec.Struct, frozen=True, tag="quota"):
    """The data directory may have this many bytes."""

    quota_bytes: int


class WriteBehind(msgspec.Struct, frozen=True, tag="write-behind"):
    """Report writes and flushes as done, and write this much later."""

    delay_s: float


DiskFault = Crash | CountOperations | PowerCut | FlushErrors | Quota | WriteBehind


class _PowerCutProcessDisk(PowerCutDisk):
    """Take the machine away together with the power."""

    def __init__(self, root: Path, fault: PowerCut) -> None:
        super().__init__(root, fault.cut_at, flushes_ignored=fault.flushes_ignored)
        self._fault = fault

    def cut(self) -> None:
        super().cut()
        chance = random.Random(self._fault.seed)  # noqa: S311 - guards no secret
        self.image(Path(self._fault.image), chance, self._fault.loss)
        os._exit(CRASHED)


def make_disk(fault: DiskFault, data_dir: Path) -> Disk:
    """Return a disk with this fault, for the broker of this data directory."""
    match fault:
        case Crash(at):
            return CrashDisk(CrashAt.parse(at))
        case CountOperations():
            return CrashDisk()
        case PowerCut():
            return _PowerCutProcessDisk(data_dir, fault)
        case FlushErrors(failing, silent):
            return FlushErrorDisk(frozenset(failing), silent=silent)
        case Quota(quota_bytes):
            return QuotaDisk(data_dir, quota_bytes)
        case WriteBehind(delay_s):
            return WriteBehindDisk(delay_s)

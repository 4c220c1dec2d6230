"""End the log at each operation of its disk: `python -m tests.crash.every_operation` does it at all of them.

A workload runs once to count its operations by kind. Then a process of its own runs it again for each, and ends there: before the
operation, after it, or half way. The test takes a few of each kind.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock import logs
from penstock.log.embedded import EmbeddedEngine
from penstock.testing.crashing import CRASHED, CrashAt, CrashDisk
from tests.crash.engine_load import OPTIONS, EngineLoad, use_everything

SEED = 5
TURNS = 12
HALVES = ("write", "remove")
"""What can be done by half."""
CERTAIN = 0.8
"""Threads take turns differently in each run, so the last operations of a kind may not come; those up to here must."""
RUN_S_MAX = 60.0

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.crash.engine_load"])


def _run(directory: str, at: CrashAt | None) -> None:
    logs.configure("error")
    data_dir, witness = Path(directory, "data"), Path(directory, "witness")
    asyncio.run(use_everything(data_dir, CrashDisk(at), EngineLoad(random.Random(SEED), witness), TURNS))


def _recover(directory: str, at: CrashAt | None) -> None:
    logs.configure("error")
    asyncio.run(_open_and_close(Path(directory, "data"), CrashDisk(at)))


async def _open_and_close(data_dir: Path, disk: CrashDisk) -> None:
    engine = EmbeddedEngine(data_dir, disk=disk, options=OPTIONS)
    await engine.start()
    await engine.close()


def count_operations(directory: Path) -> Counter[str]:
    """Run the workload to its end, and return how many operations of each kind it had."""
    disk = CrashDisk()
    directory.mkdir()
    asyncio.run(use_everything(directory / "data", disk, EngineLoad(random.Random(SEED)), TURNS))
    return disk.operations


def count_recovery(crashed: Path, directory: Path) -> Counter[str]:
    """Open a copy of a crashed directory, and return how many operations of each kind that took."""
    shutil.copytree(crashed, directory)
    disk = CrashDisk()
    asyncio.run(_open_and_close(directory / "data", disk))
    return disk.operations


def targets(operations: Mapping[str, int], per_kind: int | None) -> Iterator[CrashAt]:
    """Yield the operations to end at: this many of each kind, evenly spread over those that are certain to come, or all."""
    for kind, count in sorted(operations.items()):
        certain = max(1, int(count * CERTAIN))
        if per_kind is None:
            numbers = set(range(1, count + 1))
        else:
            numbers = {1 + (certain - 1) * part // per_kind for part in range(1, per_kind + 1)}
        for nth in sorted(numbers):
            yield CrashAt(kind, nth)
            yield CrashAt(kind, nth, "half" if kind.split()[1] in HALVES else "after")


def end_at(at: CrashAt, directory: Path, operations: Mapping[str, int], *, recovering: bool = False) -> bool:
    """Run in a process that ends at an operation, and check what it leaves; False if the operation did not come."""
    if not recovering:
        directory.mkdir()
    process = _processes.Process(target=_recover if recovering else _run, args=(str(directory), at))
    process.start()
    process.join(RUN_S_MAX)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    process.close()
    if code == 0 and at.nth > int(operations[at.kind] * CERTAIN):
        return False
    assert code == CRASHED, f"{at}: the process ended with {code}"
    witness = directory / "witness"
    load = EngineLoad.as_told_by(witness) if witness.exists() else EngineLoad(random.Random())
    asyncio.run(load.check(directory / "data"))
    shutil.rmtree(directory)
    return True


def main() -> None:
    logs.configure("error")  # what recovery has to say of each crash would hide the count
    with tempfile.TemporaryDirectory(prefix="every-operation-") as name:
        operations = count_operations(Path(name, "counted"))
        every = list(targets(operations, None))
        reached = 0
        for number, at in enumerate(every):
            reached += end_at(at, Path(name, "crashed"), operations)
            shutil.rmtree(Path(name, "crashed"), ignore_errors=True)
            sys.stderr.write(f"\r{number + 1} of {len(every)}, {reached} reached")
        sys.stderr.write(f"\n{len(operations)} kinds of operation; nothing was lost\n")


if __name__ == "__main__":
    main()

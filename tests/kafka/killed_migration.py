"""A migration in a process of its own that is killed at a step of it: `python -m tests.kafka.killed_migration STEP AFTER JSON`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.log.api import Engine
from penstock.log.embedded import EmbeddedEngine
from penstock.log.kafka.engine import KafkaEngine
from penstock.log.kafka.settings import KafkaSettings
from penstock.log.migration import migration
from penstock.log.migration.source import EngineSource
from penstock.log.migration.state import StateFile

TOMBSTONE_MS = 24 * 3600 * 1000
STEPS = ("begin", "place", "skip_to", "finish")


class Move(msgspec.Struct):
    """What is moved where. A source or target without a directory is in Kafka."""

    bootstrap: str
    prefix: str
    source: str | None
    target: str | None
    state: str

    def engine(self, directory: str | None, role: str) -> Engine:
        if directory is not None:
            return EmbeddedEngine(Path(directory))
        settings = KafkaSettings(bootstrap=[self.bootstrap], topic_prefix=self.prefix)
        return KafkaEngine(settings, role=role)  # type: ignore[arg-type]


class Killer:
    """Ends the process before or after the n-th step."""

    def __init__(self, step: int, *, after: bool) -> None:
        self._left = step
        self._after = after

    def wrap(self, step: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(*args: Any) -> Any:
            self._left -= 1
            if not self._left and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = await step(*args)
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped


async def run(move: Move, killer: Killer) -> None:
    vars(migration)["JOINED_BYTES"] = 1  # for more steps
    source, target = move.engine(move.source, "serve"), move.engine(move.target, "import")
    await source.start()
    await target.start()
    importing = target.importing()
    for name in STEPS:
        setattr(importing, name, killer.wrap(getattr(importing, name)))
    target.importing = lambda: importing  # type: ignore[method-assign]
    state = StateFile(Path(move.state), "kafka" if move.target is None else "embedded")
    await migration.Migration(target, state, tombstone_ms=TOMBSTONE_MS).finish(EngineSource(source))
    await target.close()
    await source.close()


if __name__ == "__main__":
    _, number, after, described = sys.argv
    asyncio.run(run(msgspec.json.decode(described, type=Move), Killer(int(number), after=after == "after")))

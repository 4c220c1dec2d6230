"""Numbered places where a test may end the process as `kill -9` would.

`PENSTOCK_CRASH_AT=<site>:<n>` ends it at the n-th pass of that site. In production the variable is not set and a pass costs one
attribute test. `tests/crash` asserts that every site here is passed and survived.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from penstock.errors import ConfigError

VARIABLE: Final = "PENSTOCK_CRASH_AT"


class Site(StrEnum):
    APPEND_HALF_WRITTEN = "append.half_written"
    APPEND_WRITTEN = "append.written"
    APPEND_SYNCED = "append.synced"
    JOURNAL_HALF_WRITTEN = "journal.half_written"
    JOURNAL_WRITTEN = "journal.written"
    JOURNAL_SYNCED = "journal.synced"
    JOURNAL_APPLIED_ONE = "journal.applied_one"
    JOURNAL_APPLIED = "journal.applied"
    CHECKPOINT_SYNCED = "checkpoint.synced"
    CHECKPOINT_DONE = "checkpoint.done"
    ROLL_SYNCED = "roll.synced"
    ROLL_SEALED = "roll.sealed"
    ROLL_CREATED = "roll.created"
    INDEX_WRITTEN = "index.written"
    INDEX_RENAMED = "index.renamed"
    REWRITE_WRITTEN = "rewrite.written"
    REWRITE_SWAPPED = "rewrite.swapped"
    REWRITE_REMOVED = "rewrite.removed"
    REWRITE_DONE = "rewrite.done"
    RETENTION_RENAMED = "retention.renamed"
    RETENTION_REMOVED = "retention.removed"
    TOPIC_LAID_OUT = "topic.laid_out"
    TOPIC_CREATED = "topic.created"
    TOPIC_RENAMED = "topic.renamed"
    TOPIC_REMOVED = "topic.removed"
    RECOVERY_REDONE = "recovery.redone"
    RECOVERY_TAIL_KEPT = "recovery.tail_kept"
    RECOVERY_CUT = "recovery.cut"
    CLOSE_SYNCED = "close.synced"
    CLOSE_MARKED = "close.marked"


class CrashPoints:
    """Counts passes of the one armed site, if any."""

    __slots__ = ("_left", "_site")

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._site: Site | None = None
        self._left = 0
        text = environment.get(VARIABLE)
        if text:
            name, _, passes = text.partition(":")
            try:
                self._site, self._left = Site(name), int(passes or "1")
            except ValueError:
                raise ConfigError(f"{VARIABLE}={text} is not <site>:<n>; sites are {', '.join(Site)}") from None

    def due(self, site: Site) -> bool:
        """Whether the process is to end at this pass."""
        if site is not self._site:
            return False
        self._left -= 1
        return self._left == 0

    def crash(self) -> None:
        os._exit(9)

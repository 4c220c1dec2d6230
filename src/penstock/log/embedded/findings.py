"""What a check of a data directory reports: findings, and counts for each topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

FINDINGS_MAX: Final = 1000
"""Kept with their texts; all are counted."""


class Severity(StrEnum):
    DAMAGE = "damage"
    """Something that was written is missing or has changed."""
    NOTE = "note"
    """What a crash leaves behind, which the next start deals with, or a file that nothing needs."""


class Kind(StrEnum):
    SEGMENT = "segment"
    INDEX = "index"
    METADATA = "metadata"
    JOURNAL = "journal"
    TABLE = "table"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    kind: Kind
    path: str
    """From the data directory."""
    position: int | None
    """The byte at which it begins, if it has a place in the file."""
    text: str
    topic: str | None = None


@dataclass(slots=True)
class TopicReport:
    topic: str
    partitions: int = 0
    segments: int = 0
    blocks: int = 0
    records: int = 0
    bytes: int = 0
    damage: int = 0
    ends: list[int] = field(default_factory=list)
    """The offset after the last record of each partition."""


@dataclass(slots=True)
class Report:
    """The result of a check."""

    directory: str
    moment_ms: int | None = None
    """When a snapshot or backup was taken; None for a data directory itself."""
    topics: list[TopicReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    damage: int = 0
    notes: int = 0

    def add(self, finding: Finding) -> None:
        if finding.severity is Severity.DAMAGE:
            self.damage += 1
        else:
            self.notes += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


OnProgress = Callable[[int, int], None]
"""Called with the bytes and records that were checked since the last call."""

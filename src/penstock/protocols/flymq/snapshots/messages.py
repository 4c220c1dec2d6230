"""Requests about snapshots, and what they find out. Not in the contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class SnapshotCreate:
    pass


@dataclass(slots=True)
class SnapshotRelease:
    id: str


SnapshotBody = SnapshotCreate | SnapshotRelease


class SnapshotDescription(NamedTuple):
    """A snapshot that the broker has made in its data directory."""

    id: str
    directory: str
    """On the machine of the broker."""

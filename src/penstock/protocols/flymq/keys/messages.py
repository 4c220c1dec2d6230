"""Requests about the API keys of protocols whose clients present one, and what they find out. Not in the contract."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(slots=True)
class KeyCreate:
    name: str
    roles: list[str]
    """None: those that may publish and read."""


@dataclass(slots=True)
class KeyList:
    pass


@dataclass(slots=True)
class KeyRevoke:
    name: str


KeyBody = KeyCreate | KeyList | KeyRevoke


class KeyDescription(msgspec.Struct, frozen=True):
    """A key without its secret."""

    name: str
    roles: list[str]
    created_ms: int
    created_by: str

"""What differs between two definitions of a schema, line by line, and what each kind of compatibility has against it.

Compatibility is judged by the functions with which the broker judges it when a version is registered.
"""

from __future__ import annotations

import difflib
import json
from typing import NamedTuple

MODES = ("backward", "forward", "full")
CONTEXT_LINES = 3


class Side(NamedTuple):
    """A definition and what to call it."""

    label: str
    type: str
    definition: str


class Comparison(NamedTuple):
    lines: list[str]
    """A unified diff; empty if the definitions are the same."""
    problems: dict[str, list[str]]
    """By compatibility: what speaks against the newer one."""


def compare(older: Side, newer: Side) -> Comparison:
    """Raises SchemaInvalid if one of them is no definition of its type."""
    from penstock.broker.schemas.kinds import KINDS, problems_between

    lines = difflib.unified_diff(
        _readable(older), _readable(newer), older.label, newer.label, lineterm="", n=CONTEXT_LINES
    )
    if older.type != newer.type:
        changed = [f"the type changes from {older.type} to {newer.type}"]
        return Comparison(list(lines), dict.fromkeys(MODES, changed))
    kind = KINDS[older.type]
    first, second = kind.parse(older.definition), kind.parse(newer.definition)
    return Comparison(list(lines), {mode: problems_between(second, first, mode) for mode in MODES})


def _readable(side: Side) -> list[str]:
    """The lines of a definition; those of JSON one member each, so that spaces make no difference."""
    if side.type in ("json", "avro"):
        try:
            return json.dumps(json.loads(side.definition), indent=2, ensure_ascii=False).splitlines()
        except ValueError:
            pass  # the parser of the type says what is wrong with it
    return side.definition.splitlines()

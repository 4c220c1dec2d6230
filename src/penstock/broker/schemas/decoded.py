"""What became of a value that was read with a schema; apart from `decoding`, which needs libraries that take long to import."""

from __future__ import annotations

from typing import Final, NamedTuple


class Decoded(NamedTuple):
    json: bytes | None = None
    """The value as JSON; None if there is no schema, or the value does not follow it."""
    schema: str | None = None
    fault: str | None = None
    """Why the value does not follow the schema."""


NOT_DECODED: Final = Decoded()

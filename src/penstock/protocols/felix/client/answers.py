"""What a client makes of a broker's words: its error texts as classes of `penstock.errors`.

The protocol has no error codes, so the words decide, as they do for other clients of it.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    OffsetOutOfRange,
    PenstockError,
    ServerError,
    TopicNotFound,
)

_WORDS: Final[tuple[tuple[str, type[PenstockError]], ...]] = (
    ("auth failed", AuthenticationFailed),
    ("auth required", AuthenticationRequired),
    ("authentication required", AuthenticationRequired),
    ("unauthorized", AccessDenied),
    ("forbidden", AccessDenied),
    ("tenant mismatch", AccessDenied),
    ("not found", TopicNotFound),
    ("unknown tenant", TopicNotFound),
    ("cursor", OffsetOutOfRange),
)


def error_of(text: str) -> PenstockError:
    """The first words that fit decide."""
    lowered = text.lower()
    return next((kind(text) for words, kind in _WORDS if words in lowered), ServerError(text))

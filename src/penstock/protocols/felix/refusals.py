"""Errors of the broker as the texts of this protocol, which has no codes.

Deployed clients tell errors apart by words in them: "not found" is one kind, "unauthorized" another, "cursor" a third. So each text
contains the word of its kind, whatever else it says.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import AccessDenied, AuthenticationFailed, AuthenticationRequired, PenstockError, TopicNotFound
from penstock.protocols.felix.scopes import Scope

UNAUTHORIZED = "unauthorized"
INTERNAL = "internal error: see the broker's log"
TEXT_CHARS_MAX: Final = 1024
"""Of an error's text. Ours are shorter, but some quote what the client sent, which may be as long as a frame."""
_DENIALS = (AccessDenied, AuthenticationFailed, AuthenticationRequired)


def refusal(error: PenstockError, scope: Scope | None = None) -> str:
    """What to tell the client; `scope` is the stream that was asked for."""
    if isinstance(error, TopicNotFound) and scope is not None:
        return stream_not_found(scope)
    text = str(error)
    if isinstance(error, _DENIALS) and UNAUTHORIZED not in text:
        return f"{UNAUTHORIZED}: {text}"
    return text


def shortened(text: str) -> str:
    """A text that is no longer than one may be."""
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 3] + "..."


def stream_not_found(scope: Scope) -> str:
    return f"stream not found: tenant={scope.tenant_id} namespace={scope.namespace} stream={scope.name}"

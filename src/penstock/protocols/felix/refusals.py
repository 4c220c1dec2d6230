"""Errors of the broker as the texts of this protocol, which has no codes.

Deployed clients tell errors apart by words in them: "not found" is one kind, "unauthorized" another, "cursor" a third. So each text
contains the word of its kind, whatever else it says.
"""

from __future__ import annotations

from penstock.errors import AccessDenied, AuthenticationFailed, AuthenticationRequired, PenstockError, TopicNotFound
from penstock.protocols.felix.scopes import Scope

UNAUTHORIZED = "unauthorized"
INTERNAL = "internal error: see the broker's log"
_DENIALS = (AccessDenied, AuthenticationFailed, AuthenticationRequired)


def refusal(error: PenstockError, scope: Scope | None = None) -> str:
    """What to tell the client; `scope` is the stream that was asked for."""
    if isinstance(error, TopicNotFound) and scope is not None:
        return stream_not_found(scope)
    text = str(error)
    if isinstance(error, _DENIALS) and UNAUTHORIZED not in text:
        return f"{UNAUTHORIZED}: {text}"
    return text


def stream_not_found(scope: Scope) -> str:
    return f"stream not found: tenant={scope.tenant_id} namespace={scope.namespace} stream={scope.name}"

"""The table of endpoints: each is declared once, above the function that answers it, and everything else follows from that.

`endpoint` notes the method, the path, the operation of the broker that is asked and the errors that it may answer with; the types of
`query`, `body` and of the result are those of the function. Routing, decoding, the OpenAPI document and the test of access rights read
this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal, get_type_hints

import msgspec

from penstock.admin.alerts import Alerts
from penstock.admin.api.logins import Caller, Logins
from penstock.admin.figures import Sources
from penstock.admin.history import History
from penstock.admin.inspector import Inspector
from penstock.admin.launcher import Launcher
from penstock.broker.access.checks import Declaration, Principal
from penstock.broker.broker import Broker
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.workers import Worker

PREFIX: Final = "/api/v1"
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of what clients send: a field that is not known is refused."""


class Reply(msgspec.Struct, frozen=True):
    """The base of what is sent to clients."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the configuration, as text."""

    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class AdminContext:
    """What endpoints are given besides the request."""

    broker: Broker
    clock: Clock
    sources: Sources
    configuration: Mapping[str, Setting]
    """By dotted key; secrets are hidden."""
    readiness: Callable[[], dict[str, Any]]
    version: str
    started_ms: int
    logins: Logins
    history: History
    alerts: Alerts
    inspector: Inspector
    launcher: Launcher


@dataclass(slots=True)
class NewToken:
    """The session token that an answer sets; empty if it takes the cookie away, None if it leaves it as it is."""

    value: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as the function that answers it sees it."""

    given: AdminContext
    caller: Caller
    path: Mapping[str, str]
    """The parameters of the path by name, decoded."""
    token: NewToken

    @property
    def broker(self) -> Broker:
        return self.given.broker

    @property
    def principal(self) -> Principal:
        return self.caller.principal

    def worker(self) -> Worker:
        """Return what runs work of this request that takes too long for the event loop."""
        return self.broker.workers.worker()


Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: Method
    path: str
    """Below PREFIX, as in "/topics/{topic}"."""
    name: str
    summary: str
    tag: str
    right: Declaration | None
    """What the operation of the broker asks the access policy for; None if everybody may ask."""
    errors: tuple[type[PenstockError], ...]
    status: HTTPStatus
    query: type[Request] | None
    body: type[Request] | None
    result: Any
    handler: Handler

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


ENDPOINTS: Final[list[Endpoint]] = []


def endpoint(
    method: Method,
    path: str,
    *,
    asks: Any,
    errors: tuple[type[PenstockError], ...] = (),
    status: HTTPStatus = HTTPStatus.OK,
) -> Callable[[Handler], Handler]:
    """Declare an endpoint. `asks` is the operation of the broker that is called, a Declaration of its own, or None for none."""

    def declare(handler: Handler) -> Handler:
        types = get_type_hints(handler)
        right = asks if asks is None or isinstance(asks, Declaration) else asks.declaration
        result = types["return"]
        ENDPOINTS.append(
            Endpoint(
                method,
                path,
                handler.__name__,
                (handler.__doc__ or "").strip(),
                handler.__module__.rpartition(".")[2].replace("_", " "),
                right,
                errors,
                HTTPStatus.NO_CONTENT if result is type(None) else status,
                types.get("query"),
                types.get("body"),
                result,
                handler,
            )
        )
        return handler

    return declare

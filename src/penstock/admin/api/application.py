"""Serves the table of endpoints: finds the endpoint, authenticates the caller, decodes, calls, encodes.

In this order, so that the cheap checks come first: rate, host and origin, path and method, login, size and form of the body. Parameters
of the path are percent-encoded, slashes too, because names of topics have slashes.

No page of another site can use a browser as its hand here. A request that a browser marks as coming from elsewhere is refused, and so is
one to a host name that is not this machine's where no login is required: that is what DNS rebinding looks like. Bodies must be JSON by
their content type, which no form can send, and no answer ever allows another origin.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
import structlog
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.admin.api import (
    access,
    dead_letters,
    groups,
    inspections,
    pipelines,
    records,
    schemas,
    sessions,
    status,
    topics,
)
from penstock.admin.api.logins import COOKIE, Caller, Logins
from penstock.admin.api.openapi import document
from penstock.admin.api.problems import CONTENT_TYPE, TYPE_PREFIX, HttpProblem, Problem, problem_of
from penstock.admin.api.rates import Rates
from penstock.admin.api.routing import Routes
from penstock.admin.api.table import ENDPOINTS, PREFIX, AdminContext, Call, Endpoint, NewToken, Request
from penstock.clock import Clock
from penstock.errors import InvalidRequest, PenstockError
from penstock.net.limits import AdminLimits
from penstock.units import Address, is_loopback, parse_address

MODULES: Final = (status, sessions, topics, records, groups, dead_letters, schemas, pipelines, inspections, access)
"""Importing them fills the table."""
STRANGER_BODY_BYTES_MAX: Final = 16 << 10
"""Of callers who have not said who they are: enough for a login."""
QUERY_BYTES_MAX: Final = 8 << 10
OPENAPI_PATH: Final = "/openapi.json"
SECURITY_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
JSON: Final = "application/json"
ROUTE: Final = "penstock.route"
"""In the scope of a request: its path without the names in it, for who traces requests."""

log = structlog.get_logger(__name__)


class Door:
    """Check the rate, host and origin of every request to the admin address."""

    def __init__(self, clock: Clock, logins: Logins, limits: AdminLimits, *, exposed: bool) -> None:
        """`exposed`: other machines can reach the address."""
        self.logins = logins
        self.limits = limits
        self._rates = Rates(clock, limits.request_rate_max)
        self._exposed = exposed

    async def admit(self, request: HttpRequest) -> Caller:
        """Return the caller. Raises HttpProblem, AuthenticationFailed, AccessDenied."""
        address = Address(*(request.client or ("", 0)))
        wait_s = self._rates.wait_s(address.host)
        if wait_s:
            raise HttpProblem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "rate_limited",
                f"too many requests from this address: try again in {wait_s:.2f} s",
                {"retry-after": str(math.ceil(wait_s))},
                retriable=True,
            )
        self._check_origin(request)
        if not self.logins.required and self._exposed:
            raise HttpProblem(
                HTTPStatus.FORBIDDEN,
                "login_not_configured",
                'other machines can reach this address and no login is required: set admin.auth = "required" and admin.tls, '
                "or bind admin to 127.0.0.1",
            )
        return await self.logins.caller(request.method, request.headers, str(address))

    def _check_origin(self, request: HttpRequest) -> None:
        host = request.headers.get("host", "")
        if not self.logins.required and not self._exposed and not _is_this_machine(host):
            raise HttpProblem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "wrong_host",
                f"host {host[:100]!r} is not a name of this machine: use the address that penstock serve prints",
            )
        origin = request.headers.get("origin")
        elsewhere = request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if elsewhere or (origin is not None and origin.lower().rpartition("://")[2] != host.lower()):
            raise HttpProblem(
                HTTPStatus.FORBIDDEN,
                "cross_origin",
                "a page of another origin may not use this API: open its own console",
            )


class Application(ABC):
    """An ASGI application whose responses tell browsers what pages of other origins may not do."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._respond(HttpRequest(scope, receive))
        response.headers.update(SECURITY_HEADERS)
        await response(scope, receive, send)

    @abstractmethod
    async def _respond(self, request: HttpRequest) -> Response: ...


class Api(Application):
    """The ASGI application below `/api/v1`."""

    def __init__(self, given: AdminContext, door: Door, *, secure: bool) -> None:
        """`secure`: the address has TLS, so cookies travel over TLS only."""
        self._given = given
        self._door = door
        self._secure = secure
        self._routes = Routes((each.method, each.path, each) for each in ENDPOINTS)
        self._document = msgspec.json.encode(document(given.version))

    async def _respond(self, request: HttpRequest) -> Response:
        try:
            caller = await self._door.admit(request)
            return await self._answer(request, caller)
        except HttpProblem as refusal:
            return problem_response(refusal.problem, refusal.headers)
        except PenstockError as error:
            return problem_response(problem_of(error))
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)  # which nobody reads
        except Exception:
            log.exception("api_request_failed", method=request.method, path=request.url.path)
            phrase = HTTPStatus.INTERNAL_SERVER_ERROR.phrase
            detail = "the broker could not answer because of a bug: its log has the details"
            return problem_response(Problem(TYPE_PREFIX + "internal", phrase, 500, detail, "internal"))

    async def _answer(self, request: HttpRequest, caller: Caller) -> Response:
        path = request.scope["raw_path"].decode("ascii", "replace").removeprefix(PREFIX)
        if path == OPENAPI_PATH and request.method == "GET":
            return Response(self._document, media_type=JSON)
        endpoint, parameters = self._routes.find(request.method, path)
        request.scope[ROUTE] = PREFIX + endpoint.path
        arguments: dict[str, Any] = {}
        if endpoint.query is not None:
            arguments["query"] = _decoded_query(request.url.query, endpoint.query)
        elif request.url.query:
            raise InvalidRequest(f"{endpoint.method} {endpoint.path} has no query parameters: leave them out")
        body = await read_body(request, caller, self._door.limits)
        if endpoint.body is not None:
            arguments["body"] = _decoded_body(request, body, endpoint.body)
        elif body:
            raise InvalidRequest(f"{endpoint.method} {endpoint.path} takes no body: leave it out")
        token = NewToken()
        result = await endpoint.handler(Call(self._given, caller, parameters, token), **arguments)
        return self._encoded(endpoint, result, token)

    def _encoded(self, endpoint: Endpoint, result: Any, token: NewToken) -> Response:
        content = b"" if result is None else msgspec.json.encode(result)
        response = Response(content, endpoint.status, media_type=None if result is None else JSON)
        cookie: dict[str, Any] = {"httponly": True, "secure": self._secure, "samesite": "strict"}
        if token.value:
            response.set_cookie(COOKIE, token.value, max_age=int(self._door.limits.session_s_max), **cookie)
        elif token.value is not None:
            response.delete_cookie(COOKIE, **cookie)
        return response


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    sent = dict(headers or {})
    if problem.status == HTTPStatus.UNAUTHORIZED:
        # Not Basic, although that is accepted: a browser would ask for it, and then send it from other sites' pages too.
        sent["www-authenticate"] = "Bearer"
    return Response(msgspec.json.encode(problem), problem.status, sent, media_type=CONTENT_TYPE)


async def read_body(request: HttpRequest, caller: Caller, limits: AdminLimits) -> bytes:
    """Return the body. Raises HttpProblem for one that is too large, without reading all of it."""
    bytes_max = limits.body_bytes_max if caller.principal.name else STRANGER_BODY_BYTES_MAX
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > bytes_max:
            raise HttpProblem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "body_too_large",
                f"the body has more than {bytes_max} bytes: send less at a time",
                {"connection": "close"},
            )
        chunks.append(chunk)
    return b"".join(chunks)


def _decoded_body(request: HttpRequest, body: bytes, kind: type[Request]) -> Request:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON:
        raise HttpProblem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not_json", f"the body must be JSON: send it with content-type: {JSON}"
        )
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body cannot be read: {error}") from None


def _decoded_query(text: str, kind: type[Request]) -> Request:
    if len(text) > QUERY_BYTES_MAX:
        raise InvalidRequest(f"the query has {len(text)} bytes: at most {QUERY_BYTES_MAX} are allowed")
    if not _is_utf8(text):
        raise InvalidRequest("the query is not valid UTF-8")
    given: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name in given:
            raise InvalidRequest(f"query parameter {name!r} is given twice: give it once")
        given[name] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"a query parameter cannot be read: {error}") from None


def _is_utf8(quoted: str) -> bool:
    try:
        unquote_to_bytes(quoted).decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_this_machine(host: str) -> bool:
    try:
        return is_loopback(parse_address(host if host.rpartition(":")[2].isdigit() else f"{host}:0").host)
    except ValueError:
        return False

"""Sessions: logging in and out, and who one is."""

from __future__ import annotations

from http import HTTPStatus

from penstock.admin.api.logins import Caller
from penstock.admin.api.table import Call, Reply, Request, endpoint
from penstock.broker.access.directory import PERMISSIONS
from penstock.errors import AuthenticationFailed, InvalidRequest, LimitExceeded


class LogIn(Request, frozen=True):
    """A user with its password, or an API key."""

    user: str = ""
    password: str = ""
    key: str = ""


class SessionState(Reply, frozen=True):
    principal: str
    """Empty if nobody is logged in."""
    roles: list[str]
    permissions: list[str]
    """What the roles allow everywhere."""
    login_required: bool
    csrf_token: str
    """What writes of this session send in `x-csrf-token`; empty without a session."""
    version: str


@endpoint("GET", "/session", asks=None)
async def get_session(call: Call) -> SessionState:
    """Return the authenticated principal and its global permissions."""
    return _state(call, call.caller)


@endpoint(
    "POST",
    "/session",
    asks=None,
    status=HTTPStatus.CREATED,
    errors=(InvalidRequest, AuthenticationFailed, LimitExceeded),
)
async def log_in(call: Call, body: LogIn) -> SessionState:
    """Log in with a password or an API key, and begin a session that a cookie names. The session before ends."""
    if bool(body.key) == bool(body.user):
        raise InvalidRequest("name a user with its password, or give an API key")
    caller = await call.given.logins.log_in(body.user, body.password, body.key, call.principal.address)
    call.given.logins.log_out(call.caller.token)
    call.token.value = caller.token
    return _state(call, caller)


@endpoint("DELETE", "/session", asks=None)
async def log_out(call: Call) -> None:
    """Log out. Without a session this changes nothing."""
    call.given.logins.log_out(call.caller.token)
    call.token.value = ""


def _state(call: Call, caller: Caller) -> SessionState:
    version, required = call.given.version, call.given.logins.required
    if caller.principal.trusted:
        return SessionState(caller.principal.name, [], list(PERMISSIONS), required, "", version)
    name, roles, permissions = call.broker.users.standing(caller.principal)
    return SessionState(name, list(roles), list(permissions), required, caller.csrf, version)

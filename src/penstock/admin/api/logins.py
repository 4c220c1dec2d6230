"""Who is asking: an API key or a password that comes with each request, or a session that a login began.

A session is for browsers. Its token is in a cookie that scripts cannot read and that other sites' requests do not carry (HttpOnly,
SameSite=Strict); a write also needs the session's CSRF token in a header. A session ends with a logout, after a while without requests,
after half a day, and when its credentials are revoked: the API key, or the password of a user who may log in. So a user who is disabled
or deleted is logged out, and a new user of the same name does not inherit a session. Sessions are in memory only: a restart ends them.

Without authentication, everybody who reaches the address is trusted; `application.py` sees to it that those are people on
this machine, and no pages of other sites in their browsers.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http.cookies import CookieError, SimpleCookie
from typing import Final

from penstock.broker.access.api_keys import Login, digest_of
from penstock.broker.access.checks import ANONYMOUS, UNAUTHENTICATED, Principal
from penstock.broker.broker import Broker
from penstock.clock import Clock
from penstock.errors import AccessDenied, AuthenticationFailed, AuthenticationRequired
from penstock.net.limits import AdminLimits

COOKIE: Final = "penstock_session"
CSRF_HEADER: Final = "x-csrf-token"
TOKEN_BYTES: Final = 32
KEYS_KNOWN_MAX: Final = 1_000
"""Keys whose requests do not each count as a login."""
KEY_KNOWN_S: Final = 300.0
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


@dataclass(slots=True)
class Session:
    login: Login
    basis: object
    """What of a user the login rests on (`Users.login_basis`)."""
    csrf: str
    started_s: float
    used_s: float


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and by which session if it came with one."""

    principal: Principal
    token: str = ""
    csrf: str = ""


class Logins:
    def __init__(self, broker: Broker, clock: Clock, limits: AdminLimits, *, required: bool) -> None:
        self.required = required
        self.limits = limits
        self._broker = broker
        self._clock = clock
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        """By the digest of the token, the one used last at the end."""
        self._keys: OrderedDict[bytes, tuple[Login, float]] = OrderedDict()

    async def caller(self, method: str, headers: Mapping[str, str], address: str) -> Caller:
        """Return the caller. Raises AuthenticationFailed, AccessDenied for a write without its CSRF token."""
        if not self.required:
            return Caller(ANONYMOUS.seen_at(address, None))
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return Caller(self._by_key(credentials.strip(), address).principal)
        if scheme.lower() == "basic":
            return Caller(await self._broker.users.authenticate(*_basic(credentials), address))
        if scheme:
            raise AuthenticationFailed(f"authorization scheme {scheme[:20]!r} is not known: use Bearer with an API key")
        token = _cookie(headers)
        session = None if token is None else self._session(token)
        if token is None or session is None:
            return Caller(replace(UNAUTHENTICATED, address=address))
        if method not in SAFE_METHODS and not hmac.compare_digest(
            headers.get(CSRF_HEADER, "").encode(), session.csrf.encode()
        ):
            raise AccessDenied(f"the session's CSRF token is missing or wrong: send it in the header {CSRF_HEADER}")
        return Caller(replace(session.login.principal, address=address), token, session.csrf)

    # -- sessions ---------------------------------------------------------------------------------------------------------

    async def log_in(self, user: str, password: str, key: str, address: str) -> Caller:
        """Begin a session, by a user's password or by an API key. Raises AuthenticationFailed."""
        if not self.required:
            raise AuthenticationFailed("no login is required here: the admin address trusts everybody on this machine")
        if key:
            login = self._by_key(key, address)
        else:
            login = Login(await self._broker.users.authenticate(user, password, address))
        token, csrf = secrets.token_urlsafe(TOKEN_BYTES), secrets.token_urlsafe(TOKEN_BYTES)
        now_s = self._clock.monotonic()
        basis = self._broker.users.login_basis(login.principal.name)
        self._sessions[digest_of(token)] = Session(login, basis, csrf, now_s, now_s)
        self._make_room(login.principal.name)
        return Caller(login.principal, token, csrf)

    def _make_room(self, name: str) -> None:
        own = [digest for digest, session in self._sessions.items() if session.login.principal.name == name]
        if len(own) > self.limits.sessions_per_user_max:
            del self._sessions[own[0]]
        if len(self._sessions) > self.limits.sessions_max:
            self._sessions.popitem(last=False)

    def log_out(self, token: str) -> None:
        self._sessions.pop(digest_of(token), None)

    def _session(self, token: str) -> Session | None:
        digest = digest_of(token)
        session = self._sessions.get(digest)
        if session is None:
            return None
        now_s = self._clock.monotonic()
        if (
            not self._is_valid(session)
            or now_s - session.used_s > self.limits.session_idle_s_max
            or now_s - session.started_s > self.limits.session_s_max
        ):
            del self._sessions[digest]
            return None
        session.used_s = now_s
        self._sessions.move_to_end(digest)
        return session

    def _is_valid(self, session: Session) -> bool:
        """Whether what the session began with would still begin one."""
        login = session.login
        if login.key_digest is not None:
            return self._broker.api_keys.is_valid(login.key_digest)
        return self._broker.users.login_basis(login.principal.name) == session.basis

    # -- credentials ------------------------------------------------------------------------------------------------------

    def _by_key(self, key: str, address: str) -> Login:
        digest = digest_of(key)
        login, until_s = self._keys.get(digest, (None, 0.0))
        if login is not None and self._clock.monotonic() < until_s and self._broker.api_keys.is_valid(digest):
            return login._replace(principal=replace(login.principal, address=address))
        login = self._broker.api_keys.authenticate(key, address)
        if login is None:
            raise AuthenticationFailed("the API key is not known: it may have been revoked")
        self._keys[digest] = login, self._clock.monotonic() + KEY_KNOWN_S
        self._keys.move_to_end(digest)
        if len(self._keys) > KEYS_KNOWN_MAX:
            self._keys.popitem(last=False)
        return login


def require(caller: Caller) -> None:
    """Raises AuthenticationRequired for a caller that has not said who it is."""
    if not caller.principal.name:
        raise AuthenticationRequired("authentication required: log in, or send an API key as a bearer token")


def _cookie(headers: Mapping[str, str]) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return None if found is None else found.value


def _basic(credentials: str) -> tuple[str, str]:
    try:
        name, colon, password = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = name = password = ""
    if not colon:
        raise AuthenticationFailed("the Basic credentials are not base64 of name:password")
    return name, password

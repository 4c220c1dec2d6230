"""Users and roles: logging in, and what administrators do with them.

A login costs an argon2 verification once; after that the same password of the same user is recognised by a keyed digest that lives
in memory only, so that a thousand connections coming back after a restart of their network do not queue for a thousand of those.
Rights are looked up with every request, not at login: disabling or deleting a user, or removing a role, affects open connections.

Until there is an administrator, nobody could create one. `open_setup` makes a secret for that moment: a client that presents it logs in as
`setup:` and may do everything until an administrator exists; then the secret and everyone who used it are worth nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.background import Background, run_to_completion
from penstock.broker.access.audit import Audit
from penstock.broker.access.checks import AccessPolicy, Operation, Principal, on_broker
from penstock.broker.access.directory import (
    ADMIN_ROLE,
    BUILT_IN_ROLES,
    PERMISSIONS,
    ROLE_BYTES_MAX,
    Directory,
    Role,
    User,
    check_name,
)
from penstock.broker.access.logins import Logins
from penstock.broker.access.passwords import Passwords
from penstock.broker.access.policy import SETUP_NAME
from penstock.clock import Clock
from penstock.errors import AuthenticationFailed, InvalidRequest, UserExists, UserNotFound

DESCRIPTION_BYTES_MAX: Final = 1024
TOKEN_BYTES: Final = 32
WRONG: Final = "invalid username or password"


class UserInfo(NamedTuple):
    name: str
    roles: tuple[str, ...]
    permissions: tuple[str, ...]
    enabled: bool
    created_ms: int
    updated_ms: int


class RoleInfo(NamedTuple):
    name: str
    permissions: tuple[str, ...]
    description: str


class Standing(NamedTuple):
    """Who a principal is, for itself to know."""

    name: str
    roles: tuple[str, ...]
    permissions: tuple[str, ...]


class Users:
    def __init__(
        self,
        directory: Directory,
        passwords: Passwords,
        logins: Logins,
        clock: Clock,
        access: AccessPolicy,
        audit: Audit,
        background: Background,
        *,
        development: Mapping[str, str] | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.access = access
        self.background = background
        self._directory = directory
        self._passwords = passwords
        self._logins = logins
        self._clock = clock
        self._audit = audit
        self._development = development or {}
        """Names and passwords that are administrators of this run and are stored nowhere."""
        self._random_bytes = random_bytes
        self._digest_key = random_bytes(TOKEN_BYTES)
        self._proved: dict[str, tuple[str, bytes]] = {}
        self._setup_token: str | None = None
        self._changing = directory.changing

    def close(self) -> None:
        self._passwords.close()

    # -- logging in -------------------------------------------------------------------------------------------------------

    async def authenticate(self, name: str, password: str, address: str) -> Principal:
        """The principal that these credentials prove. Raises AuthenticationFailed, or LimitExceeded where too many log in at once."""
        granted = await self._logins.prove(name, address, lambda: self._granted(name, password))
        if granted is None:
            raise AuthenticationFailed(WRONG)
        principal = Principal(name, granted, address=address)
        user = self._directory.users.get(name)
        if user is not None and not user.enabled:
            self._audit.note_refusal(principal, "auth.failure", name, "login", "disabled")
            raise AuthenticationFailed("user account is disabled")
        self._logins.succeeded(principal, name)
        return principal

    async def _granted(self, name: str, password: str) -> frozenset[str] | None:
        """The roles that come with a login itself, None if the password is wrong."""
        if name == SETUP_NAME:
            token = self._setup_token
            if token is not None and not self._directory.has_admin() and _equal(token, password):
                return frozenset({ADMIN_ROLE})
            return None
        if name in self._development and _equal(self._development[name], password):
            return frozenset({ADMIN_ROLE})
        user = self._directory.users.get(name)
        stored = None if user is None else user.password_hash
        if stored is not None and self._is_proved(name, stored, password):
            return frozenset()
        if not await self._passwords.verify(stored, password):
            return None
        after = self._directory.users.get(name)
        if after is None or after.password_hash != stored:
            return None  # changed while it was being verified
        self._proved[name] = (after.password_hash, self._digest(password))
        return frozenset()

    def _is_proved(self, name: str, stored: str, password: str) -> bool:
        known = self._proved.get(name)
        return known is not None and known[0] == stored and hmac.compare_digest(known[1], self._digest(password))

    def _digest(self, password: str) -> bytes:
        return hashlib.blake2b(password.encode(), key=self._digest_key, digest_size=32).digest()

    def open_setup(self) -> str | None:
        """The secret that lets the first administrator be made; None if there is one."""
        if self._development or self._directory.has_admin():
            return None
        self._setup_token = self._random_bytes(TOKEN_BYTES).hex()
        return self._setup_token

    def login_basis(self, name: str) -> object:
        """Return what a login of a user rests on. It is another once the password has changed, the user may not log in, or is another."""
        user = self._directory.users.get(name)
        return None if user is None else (user.password_hash, user.enabled)

    def standing(self, principal: Principal) -> Standing:
        """What a principal is and may do everywhere. Every principal may ask this of itself."""
        user = self._directory.users.get(principal.name)
        roles = principal.roles if user is None else principal.roles.union(user.roles)
        return Standing(principal.name, tuple(sorted(roles)), self._permissions_of(roles))

    def _permissions_of(self, roles: Sequence[str] | frozenset[str]) -> tuple[str, ...]:
        named = {name for role in map(self._directory.role, roles) if role is not None for name in role.permissions}
        return tuple(name for name in PERMISSIONS if name in named)

    # -- users ------------------------------------------------------------------------------------------------------------

    @on_broker(Operation.ADMIN)
    @run_to_completion
    async def create_user(self, principal: Principal, name: str, password: str, roles: Sequence[str]) -> UserInfo:
        """Raises UserExists."""
        if not name or not password:
            raise InvalidRequest("username and password are required")
        check_name("user name", name)
        roles = self._directory.checked_roles(roles, "user")
        password_hash = await self._passwords.hash(password)
        async with self._changing:
            if self._directory.users.get(name) is not None:
                raise UserExists(f'user "{name}" already exists')
            now_ms = self._clock.now_ms()
            await self._directory.users.put(name, User(password_hash, roles, True, now_ms, now_ms))
        self._logins.forget(name)
        self._audit.note(principal, "user.create", name, details={"roles": ",".join(roles)})
        return self._info(name)

    @on_broker(Operation.ADMIN)
    @run_to_completion
    async def delete_user(self, principal: Principal, name: str) -> None:
        """Raises UserNotFound, and InvalidRequest for one's own account."""
        if principal.name == name and not principal.trusted:
            raise InvalidRequest("cannot delete your own account")
        async with self._changing:
            self._check_admin_stays(name, self._user(name), None)
            await self._directory.users.delete(name)
        self._forget(name)
        self._audit.note(principal, "user.delete", name)

    @on_broker(Operation.ADMIN)
    @run_to_completion
    async def update_user(
        self, principal: Principal, name: str, roles: Sequence[str] = (), enabled: bool | None = None
    ) -> None:
        """Change roles (none: unchanged) and whether the user may log in (None: unchanged). Raises UserNotFound."""
        roles = self._directory.checked_roles(roles, "user")
        async with self._changing:
            before = self._user(name)
            after = User(
                before.password_hash,
                roles or before.roles,
                before.enabled if enabled is None else enabled,
                before.created_ms,
                self._clock.now_ms(),
            )
            self._check_admin_stays(name, before, after)
            await self._directory.users.put(name, after)
        details = {"roles": ",".join(after.roles), "enabled": str(after.enabled).lower()}
        self._audit.note(principal, "user.update", name, details=details)

    @on_broker(Operation.ADMIN)
    def list_users(self, principal: Principal) -> list[UserInfo]:
        """By name."""
        return [self._info(name) for name, _ in sorted(self._directory.users.items())]

    @on_broker(Operation.ADMIN)
    def get_user(self, principal: Principal, name: str) -> UserInfo:
        """Raises UserNotFound."""
        return self._info(name)

    @on_broker(Operation.ADMIN)
    @run_to_completion
    async def set_password(self, principal: Principal, name: str, password: str) -> None:
        """Somebody else's. Raises UserNotFound."""
        self._user(name)
        await self._store_password(principal, name, await self._passwords.hash(password))

    @on_broker(Operation.DESCRIBE)
    @run_to_completion
    async def change_own_password(self, principal: Principal, old: str, new: str) -> None:
        """One's own, for which the old one is needed. Raises AuthenticationFailed."""
        self._user(principal.name)
        if (
            await self._logins.prove(principal.name, principal.address, lambda: self._granted(principal.name, old))
            is None
        ):
            raise AuthenticationFailed("invalid current password")
        await self._store_password(principal, principal.name, await self._passwords.hash(new))

    async def _store_password(self, principal: Principal, name: str, password_hash: str) -> None:
        async with self._changing:
            user = self._user(name)
            after = User(password_hash, user.roles, user.enabled, user.created_ms, self._clock.now_ms())
            await self._directory.users.put(name, after)
        self._forget(name)
        self._audit.note(principal, "user.password", name)

    def _forget(self, name: str) -> None:
        self._proved.pop(name, None)
        self._logins.forget(name)

    def _check_admin_stays(self, name: str, before: User, after: User | None) -> None:
        directory = self._directory
        loses = directory.is_admin(before) and (after is None or not directory.is_admin(after))
        if loses and not directory.has_admin(besides=name):
            raise InvalidRequest(f"{name} is the only administrator: make another user one first")

    def _user(self, name: str) -> User:
        user = self._directory.users.get(name)
        if user is None:
            raise UserNotFound(f'user "{name}" not found')
        return user

    def _info(self, name: str) -> UserInfo:
        user = self._user(name)
        permissions = self._permissions_of(user.roles)
        return UserInfo(name, user.roles, permissions, user.enabled, user.created_ms, user.updated_ms)

    # -- roles ------------------------------------------------------------------------------------------------------------

    @on_broker(Operation.DESCRIBE)
    def list_roles(self, principal: Principal) -> list[RoleInfo]:
        """The built-in ones first, then the others by name."""
        return [
            RoleInfo(name, role.permissions, role.description) for name, role in self._directory.all_roles().items()
        ]

    @on_broker(Operation.ADMIN)
    @run_to_completion
    async def set_role(
        self, principal: Principal, name: str, permissions: Sequence[str], description: str = ""
    ) -> None:
        """Make a role or put another meaning in the place of one that is not built in. A role without permissions is a name for ACLs."""
        check_name("role name", name, ROLE_BYTES_MAX)
        if name in BUILT_IN_ROLES:
            raise InvalidRequest(f"role {name} is built in: choose another name")
        unknown = [each for each in permissions if each not in PERMISSIONS]
        if unknown:
            raise InvalidRequest(f"unknown permission {unknown[0]!r}: use some of {', '.join(PERMISSIONS)}")
        if len(description.encode()) > DESCRIPTION_BYTES_MAX:
            raise InvalidRequest(f"a description has at most {DESCRIPTION_BYTES_MAX} bytes")
        async with self._changing:
            await self._directory.roles.put(name, Role(tuple(dict.fromkeys(permissions)), description))
        self._audit.note(principal, "role.set", name, details={"permissions": ",".join(permissions)})

    @on_broker(Operation.ADMIN)
    @run_to_completion
    async def delete_role(self, principal: Principal, name: str) -> None:
        """One that is not there is no error; one in use is not deleted."""
        if name in BUILT_IN_ROLES:
            raise InvalidRequest(f"role {name} is built in and stays")
        async with self._changing:
            in_use = next(self._directory.holders_of(name), None)
            if in_use is not None:
                raise InvalidRequest(f"role {name} is in use by {in_use}: remove it there first")
            if self._directory.roles.get(name) is None:
                return
            await self._directory.roles.delete(name)
        self._audit.note(principal, "role.delete", name)


def _equal(secret: str, given: str) -> bool:
    return hmac.compare_digest(secret.encode(), given.encode())

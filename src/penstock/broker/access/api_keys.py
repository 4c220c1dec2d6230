"""API keys: secrets that stand for a name and its roles, for protocols whose clients present one instead of a user and a password.

A key is made here from 256 random bits, shown once, and kept as its SHA-256 in the table `__keys`: with so much randomness a slow hash
would protect nothing more. A presented key is looked up by its digest, so the time that takes says nothing about the keys there are.

Names are unique; a key that is revoked is forgotten, and sessions that used it are turned away at their next request.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.background import run_to_completion
from penstock.broker.access.checks import Operation, Principal, on_broker
from penstock.broker.access.directory import KEY_PRINCIPAL_PREFIX, Directory
from penstock.broker.access.logins import Logins
from penstock.broker.part import Context, Part
from penstock.broker.table import Table
from penstock.errors import EntryNotFound, InvalidRequest
from penstock.names import NAME_BYTES_MAX, validate_name

KEYS_TOPIC: Final = "__keys"
KEY_PREFIX: Final = "pk_"
"""So that a key is recognised where it should not be: in a log, in a repository."""
SECRET_BYTES: Final = 32
CONFIGURED_KEY: Final = KEY_PRINCIPAL_PREFIX + "configured"
"""The principal of every key of the configuration."""
UNKNOWN_KEY: Final = KEY_PRINCIPAL_PREFIX + "unknown"
"""What the audit trail calls someone who presents a key that nobody has."""
DEFAULT_ROLES: Final = ("producer", "consumer")


class ApiKey(msgspec.Struct, frozen=True, array_like=True):
    digest: bytes
    roles: tuple[str, ...]
    created_ms: int
    created_by: str = ""


class ApiKeyInfo(NamedTuple):
    name: str
    roles: tuple[str, ...]
    created_ms: int
    created_by: str


class Login(NamedTuple):
    principal: Principal
    key_digest: bytes | None = None
    """Of the API key that proved it, if that can be revoked."""


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


class ApiKeys(Part):
    def __init__(self, context: Context, directory: Directory, logins: Logins) -> None:
        super().__init__(context)
        self._directory = directory
        directory.role_holders.append(self._holders_of)
        self._logins = logins
        self._names: dict[bytes, str] = {}
        """By digest."""
        self._digests: dict[str, bytes] = {}
        """By name."""
        self._table = Table(
            self._engine,
            KEYS_TOPIC,
            str,
            ApiKey,
            entries_max=self._limits.api_keys_max,
            limit="limits.api_keys_max",
            background=self.background,
            on_change=self._changed,
        )

    async def start(self) -> None:
        await self._table.load()

    async def catch_up(self) -> None:
        await self._table.catch_up()

    async def close(self) -> None:
        await self._table.close()

    # -- operations -------------------------------------------------------------------------------------------------------

    @on_broker(Operation.ADMIN)
    @run_to_completion
    async def create(self, principal: Principal, name: str, roles: Sequence[str] = DEFAULT_ROLES) -> str:
        """Create a key and return it; it cannot be shown again."""
        validate_name(name, "key name", NAME_BYTES_MAX - len(KEY_PRINCIPAL_PREFIX))
        if KEY_PRINCIPAL_PREFIX + name in (CONFIGURED_KEY, UNKNOWN_KEY):
            raise InvalidRequest(f"key name {name} is reserved: choose another name")
        if not roles:
            raise InvalidRequest("a key without a role may do nothing: give it one, such as consumer")
        key = KEY_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        async with self._directory.changing:
            roles = self._directory.checked_roles(roles, "key")
            if self._table.get(name) is not None:
                raise InvalidRequest(f"there is a key {name} already: revoke it first, or choose another name")
            await self._table.put(name, ApiKey(digest_of(key), roles, self._clock.now_ms(), principal.name))
        self._audit.note(principal, "key.create", name, details={"roles": ",".join(roles)})
        return key

    @on_broker(Operation.ADMIN)
    def names(self, principal: Principal) -> list[ApiKeyInfo]:
        """Every key by name, without its secret."""
        return [
            ApiKeyInfo(name, key.roles, key.created_ms, key.created_by) for name, key in sorted(self._table.items())
        ]

    @on_broker(Operation.ADMIN)
    @run_to_completion
    async def revoke(self, principal: Principal, name: str) -> None:
        """Forget a key. Raises EntryNotFound."""
        async with self._directory.changing:
            if self._table.get(name) is None:
                raise EntryNotFound(f"there is no key {name}; list the keys with: penstock key list")
            await self._table.delete(name)
        self._audit.note(principal, "key.revoke", name)

    # -- logging in -------------------------------------------------------------------------------------------------------

    def authenticate(
        self,
        secret: str,
        address: str = "",
        find_configured: Callable[[bytes], Principal | None] = lambda digest: None,
        claimed: str | None = None,
    ) -> Login | None:
        """Return who presents a secret: an API key, or one of the configuration, which `find_configured` finds by its digest.

        Returns None if it is wrong; raises AuthenticationFailed if it is too soon after failures. `claimed` is the principal that the
        client says to be, if it does. The order of the checks is that of `logins`.
        """
        digest = digest_of(secret)
        name = self._names.get(digest)
        if name is not None:
            stored = self._table.get(name)
            assert stored is not None
            principal = Principal(KEY_PRINCIPAL_PREFIX + name, frozenset(stored.roles), address=address)
            self._logins.succeeded(principal, None)
            return Login(principal, digest)
        self._logins.check(claimed, address)
        configured = find_configured(digest)
        if configured is None:
            self._logins.failed(Principal(claimed or UNKNOWN_KEY, address=address), claimed)
            return None
        self._logins.succeeded(configured, claimed if configured.name == claimed else None)
        return Login(configured)

    def is_valid(self, digest: bytes) -> bool:
        """Whether a key that was accepted still is."""
        return digest in self._names

    def roles_of(self, name: str) -> tuple[str, ...] | None:
        """The roles of a key, None if there is none of this name."""
        key = self._table.get(name)
        return None if key is None else key.roles

    def __len__(self) -> int:
        return len(self._table)

    def _holders_of(self, role: str) -> Iterator[str]:
        return (f"key {name}" for name, key in self._table.items() if role in key.roles)

    def _changed(self, name: str, key: ApiKey | None) -> None:
        before = self._digests.pop(name, None)
        if before is not None:
            del self._names[before]
        if key is not None:
            self._names[key.digest] = name
            self._digests[name] = key.digest

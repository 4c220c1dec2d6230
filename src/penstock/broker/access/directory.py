"""Users, roles and ACLs as they are stored, and the answers the access policy needs of them; no rights are checked here.

Three tables (`__users`, `__roles`, `__acls`) hold them. What follows from them, the checks that are passed, the permissions of a set of
roles and the ACLs that cover a topic, is computed once and kept until one of them changes, because it is needed with every request.

An ACL stands for one topic or, where its name ends in `*`, for every topic that begins with what is before it. Its entries are names
of users or roles; `name` may read and write, `name:read` and `name:write` only the one. Among the users may be API keys (`key:worker`) and
tenants (`tenant:t1`). Several ACLs may cover a topic: each of them
adds people, none takes anyone away.

An ACL whose name begins with `group://`, which no topic's name does, stands for groups in the same way: the users and roles that it
names may commit to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from penstock.background import Background
from penstock.broker.access.checks import Grants, Operation
from penstock.broker.limits import BrokerLimits
from penstock.broker.table import Table
from penstock.errors import InvalidRequest
from penstock.log.api import Engine
from penstock.names import NAME_BYTES_MAX, validate_name

USERS_TOPIC: Final = "__users"
ROLES_TOPIC: Final = "__roles"
ACLS_TOPIC: Final = "__acls"
ROLE_BYTES_MAX: Final = 64
"""Deployed clients read a role's name behind a one-byte length."""
CACHED_MAX: Final = 10_000
"""Answers that are kept; above it all of them are worked out again."""

PERMISSIONS: Final = tuple(operation.value for operation in Operation)
ADMIN_ROLE: Final = "admin"
KEY_PRINCIPAL_PREFIX: Final = "key:"
TENANT_PRINCIPAL_PREFIX: Final = "tenant:"
PRINCIPAL_PREFIXES: Final = (KEY_PRINCIPAL_PREFIX, TENANT_PRINCIPAL_PREFIX)
"""Of principals that are no users. A user's name has no colon."""
GROUP_ACL_PREFIX: Final = "group://"
"""Of the names of ACLs on groups. A topic's name has no empty level, so it cannot begin like this."""


class User(msgspec.Struct, frozen=True, array_like=True):
    password_hash: str
    roles: tuple[str, ...]
    enabled: bool
    created_ms: int
    updated_ms: int


class Role(msgspec.Struct, frozen=True, array_like=True):
    permissions: tuple[str, ...]
    """Of `PERMISSIONS`."""
    description: str = ""


class Acl(msgspec.Struct, frozen=True, array_like=True):
    public: bool
    users: tuple[str, ...]
    roles: tuple[str, ...]


BUILT_IN_ROLES: Final[Mapping[str, Role]] = {
    ADMIN_ROLE: Role(("read", "write", "admin"), "Everything"),
    "producer": Role(("write",), "Writes to every topic"),
    "consumer": Role(("read",), "Reads every topic"),
    "guest": Role((), "Nothing beyond what ACLs give"),
}

_Operations = frozenset[Operation]
_READ_AND_WRITE: Final = frozenset({Operation.READ, Operation.WRITE, Operation.DESCRIBE})
_COMMIT: Final = frozenset({Operation.COMMIT})
_ENTRY_OPERATIONS: Final = {
    "read": frozenset({Operation.READ, Operation.DESCRIBE}),
    "write": frozenset({Operation.WRITE, Operation.DESCRIBE}),
}


class CompiledAcl:
    """An ACL with its entries taken apart."""

    __slots__ = ("public", "roles", "users")

    def __init__(self, acl: Acl, *, of_group: bool = False) -> None:
        self.public = acl.public
        self.users = dict.fromkeys(acl.users, _COMMIT) if of_group else _compiled(acl.users)
        self.roles = dict.fromkeys(acl.roles, _COMMIT) if of_group else _compiled(acl.roles)

    def allows(self, user: str, roles: Iterable[str], operation: Operation) -> bool:
        return operation in self.users.get(user, ()) or any(operation in self.roles.get(role, ()) for role in roles)


def _compiled(entries: Iterable[str]) -> dict[str, _Operations]:
    compiled: dict[str, _Operations] = {}
    for entry in entries:
        name, operations = parse_entry(entry)
        compiled[name] = compiled.get(name, frozenset()) | operations
    return compiled


def parse_entry(entry: str) -> tuple[str, _Operations]:
    """Return the name in `bob`, `bob:read` or `bob:write` and what it may do. `key:read` is the key called read."""
    name, colon, right = entry.rpartition(":")
    if name + colon not in PRINCIPAL_PREFIXES and right in _ENTRY_OPERATIONS:
        return name, _ENTRY_OPERATIONS[right]
    return entry, _READ_AND_WRITE


class _Coverage:
    """ACLs by what they cover: one name, or every name with a prefix."""

    def __init__(self) -> None:
        self._exact: dict[str, CompiledAcl] = {}
        self._by_prefix: dict[str, CompiledAcl] = {}
        self._covering: dict[str, tuple[CompiledAcl, ...]] = {}

    def put(self, pattern: str, acl: CompiledAcl | None) -> None:
        self._covering.clear()
        home, key = (self._by_prefix, pattern[:-1]) if pattern.endswith("*") else (self._exact, pattern)
        if acl is None:
            home.pop(key, None)
        else:
            home[key] = acl

    def of(self, name: str) -> tuple[CompiledAcl, ...]:
        known = self._covering.get(name)
        if known is None:
            exact = self._exact.get(name)
            patterns = [acl for prefix, acl in self._by_prefix.items() if name.startswith(prefix)]
            known = tuple(patterns if exact is None else [exact, *patterns])
            _keep(self._covering, name, known)
        return known

    def __iter__(self) -> Iterator[CompiledAcl]:
        return chain(self._exact.values(), self._by_prefix.values())


class Directory:
    def __init__(self, engine: Engine, limits: BrokerLimits, background: Background | None = None) -> None:
        self._limits = limits
        self.users = Table(
            engine,
            USERS_TOPIC,
            str,
            User,
            entries_max=limits.users_max,
            limit="limits.users_max",
            background=background,
            on_change=self._user_changed,
        )
        self.roles = Table(
            engine,
            ROLES_TOPIC,
            str,
            Role,
            entries_max=limits.roles_max,
            limit="limits.roles_max",
            background=background,
            on_change=self._role_changed,
        )
        self.acls = Table(
            engine,
            ACLS_TOPIC,
            str,
            Acl,
            entries_max=limits.acls_max,
            limit="limits.acls_max",
            background=background,
            on_change=self._acl_changed,
        )
        self.changing = asyncio.Lock()
        """Held while users, roles or API keys change: what one change checks, no other undoes meanwhile."""
        self.role_holders: list[Callable[[str], Iterator[str]]] = []
        """What has roles besides users and ACLs: each finds the holders of a role, in words."""
        self.granted = Grants()
        """Checks that were passed with the users, roles and ACLs as they are."""
        self._topic_acls = _Coverage()
        self._group_acls = _Coverage()
        self._permissions: dict[frozenset[str], _Operations] = {}
        self._anywhere: dict[tuple[str, frozenset[str], Operation], bool] = {}

    async def start(self) -> None:
        for table in (self.users, self.roles, self.acls):
            await table.load()

    async def catch_up(self) -> None:
        await asyncio.gather(*(table.catch_up() for table in (self.users, self.roles, self.acls)))

    async def close(self) -> None:
        for table in (self.users, self.roles, self.acls):
            await table.close()

    def role(self, name: str) -> Role | None:
        return BUILT_IN_ROLES.get(name) or self.roles.get(name)

    def all_roles(self) -> dict[str, Role]:
        """The built-in ones first, then the others by name."""
        return {**BUILT_IN_ROLES, **dict(sorted(self.roles.items()))}

    def checked_roles(self, roles: Sequence[str], what: str) -> tuple[str, ...]:
        """Return roles, each once, that a user or key may have. Raises InvalidRequest."""
        most = self._limits.roles_per_principal_max
        if len(roles) > most:
            raise InvalidRequest(
                f"{len(roles)} roles are too many for one {what}: use at most {most}, or raise limits.roles_per_principal_max"
            )
        self.check_roles(roles)
        return tuple(dict.fromkeys(roles))

    def holders_of(self, role: str) -> Iterator[str]:
        """Everything that has a role, in words."""
        for name, user in self.users.items():
            if role in user.roles:
                yield f"user {name}"
        for topic, acl in self.acls.items():
            if any(parse_entry(entry)[0] == role for entry in acl.roles):
                yield f"the ACL of {topic}"
        for find in self.role_holders:
            yield from find(role)

    def check_roles(self, names: Iterable[str]) -> None:
        for name in names:
            if self.role(name) is None:
                raise InvalidRequest(f"there is no role {name}: use one of {', '.join(self.all_roles())}")

    def permissions(self, roles: frozenset[str]) -> _Operations:
        """What roles allow everywhere. Who may read or write may also describe; who may admin may do everything."""
        known = self._permissions.get(roles)
        if known is None:
            allowed = {
                Operation(name) for role in map(self.role, roles) if role is not None for name in role.permissions
            }
            if allowed & {Operation.READ, Operation.WRITE}:
                allowed.add(Operation.DESCRIBE)
            known = frozenset(Operation) if Operation.ADMIN in allowed else frozenset(allowed)
            _keep(self._permissions, roles, known)
        return known

    def covering(self, topic: str) -> tuple[CompiledAcl, ...]:
        """Every ACL that speaks of a topic."""
        return self._topic_acls.of(topic)

    def covering_group(self, group: str) -> tuple[CompiledAcl, ...]:
        """Every ACL that speaks of a group."""
        return self._group_acls.of(group)

    def granted_anywhere(self, user: str, roles: frozenset[str], operation: Operation) -> bool:
        """Whether some ACL allows it on some topic."""
        key = (user, roles, operation)
        known = self._anywhere.get(key)
        if known is None:
            known = any(acl.allows(user, roles, operation) for acl in self._topic_acls)
            _keep(self._anywhere, key, known)
        return known

    def is_admin(self, user: User) -> bool:
        return user.enabled and Operation.ADMIN in self.permissions(frozenset(user.roles))

    def has_admin(self, *, besides: str = "") -> bool:
        return any(self.is_admin(user) for name, user in self.users.items() if name != besides)

    def _user_changed(self, name: str, user: User | None) -> None:
        self.granted.clear()

    def _role_changed(self, name: str, role: Role | None) -> None:
        self.granted.clear()
        self._permissions.clear()

    def _acl_changed(self, name: str, acl: Acl | None) -> None:
        self.granted.clear()
        self._anywhere.clear()
        of_group = name.startswith(GROUP_ACL_PREFIX)
        coverage = self._group_acls if of_group else self._topic_acls
        compiled = None if acl is None else CompiledAcl(acl, of_group=of_group)
        coverage.put(name.removeprefix(GROUP_ACL_PREFIX), compiled)


def _keep(cache: dict[Any, Any], key: object, answer: object) -> None:
    if len(cache) >= CACHED_MAX:
        cache.clear()
    cache[key] = answer


def check_principal_name(name: str) -> None:
    """Check the name of a user, or of an API key or tenant with its prefix."""
    prefix = next((each for each in PRINCIPAL_PREFIXES if name.startswith(each)), None)
    if prefix is None:
        check_name("user name", name)
    else:
        validate_name(name.removeprefix(prefix), f"{prefix.rstrip(':')} name", NAME_BYTES_MAX - len(prefix))


def check_name(what: str, name: str, bytes_max: int = NAME_BYTES_MAX) -> None:
    """Names of users and roles: no colon, which sets principals that are no users apart, and nothing that a terminal would obey."""
    size = len(name.encode())
    if not 1 <= size <= bytes_max:
        raise InvalidRequest(f"a {what} has 1 to {bytes_max} bytes, this one has {size}")
    if ":" in name or not name.isprintable() or name != name.strip():
        raise InvalidRequest(f"{what} {name!r} is not allowed: no colons, control characters or spaces at its ends")

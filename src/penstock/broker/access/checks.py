"""Who may do what, and the one check that every operation of the broker passes.

`on_topic`, `on_group`, `on_topic_group`, `on_group_topics`, `on_schema` and `on_broker` declare an operation: they wrap a method whose
first argument is the principal, ask the access policy, and only then run it. A method of a part of the broker without such a declaration
fails a test, so there is no way around the check and no place where it can be forgotten.

A check that was passed is not made again until a user, a role or an ACL changes (`AccessPolicy.granted`): a connection writes to the
same topics all the time. Refusals are not kept.

What each operation stands for:

    READ      records of a topic, and where a group is in it: committed offset, lag
    COMMIT    a group's position in a topic that may be read: commit, seek, reset; reading as a member of a group that shares records
    WRITE     records of a topic; a writer also creates the topic it writes to, with the defaults
    DESCRIBE  that a topic exists and how it is stored; a schema, and whether a record fits it
    CREATE    a topic with settings of one's own, among them its schema; altering them, adding partitions; a version of a schema
    DELETE    a topic with its records, or its oldest records; a schema
    ADMIN     somebody else's groups; users, roles and ACLs; the audit trail; snapshots of the whole log; starting pipelines

A principal is a user, proved by a password or a certificate, or a client to which a listener grants roles itself. One whose listener
requires no authentication is `trusted`: it may do everything. An anonymous one has no name.

Topics whose names begin with "__" hold the broker's own state. They are refused to everyone but SYSTEM before any policy is asked,
so no policy can open them. SYSTEM is the broker itself and is recognised by identity: no name a client may claim is equal to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, wraps
from inspect import signature
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import ReferenceType

from penstock.errors import AccessDenied, PenstockError
from penstock.names import INTERNAL_PREFIX, is_internal


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Principal:
    """Who is asking."""

    name: str
    """A user's name; those of principals that are no users contain a colon, which no user's does. Empty: not known yet."""
    roles: frozenset[str] = frozenset()
    """Granted by the listener itself, besides those that a user of this name has."""
    trusted: bool = False
    address: str = field(default="", compare=False)
    """Where the request comes from, for the audit trail."""

    def seen_at(self, address: str, subject: str | None) -> Principal:
        """Who is asking there, where this is the listener's principal: the subject of a certificate that TLS has verified, if any."""
        if subject is None:
            return replace(self, address=address)
        return Principal(subject, trusted=self.trusted, address=address)


ANONYMOUS: Final = Principal("anonymous", trusted=True)
UNAUTHENTICATED: Final = Principal("")
SYSTEM: Final = Principal("system")


class Operation(Enum):
    READ = "read"
    WRITE = "write"
    COMMIT = "commit"
    DESCRIBE = "describe"
    CREATE = "create"
    DELETE = "delete"
    ADMIN = "admin"


class ResourceKind(Enum):
    TOPIC = "topic"
    GROUP = "group"
    SCHEMA = "schema"
    BROKER = "broker"


class Resource(NamedTuple):
    """The resource of a request. The broker as a whole has no name."""

    kind: ResourceKind
    name: str = ""
    topic: str = ""
    """For a group: the topic in which it reads, where one is concerned."""


BROKER: Final = Resource(ResourceKind.BROKER)


class Declaration(NamedTuple):
    """What a method of the broker asks the policy for; found on the method as `declaration`."""

    operation: Operation
    kind: ResourceKind


Grant = tuple[int, str, str, str]
"""A check: the `id` of the principal, the operation and the kind of resource, and the name and topic of the resource."""
GRANTED_MAX: Final = 50_000
"""Checks that are kept; above it all of them are made again."""


class _Holder(ReferenceType["Principal"]):
    """A principal that has passed checks, until it is gone."""

    __slots__ = ("grants", "place")

    grants: list[Grant]
    place: int
    """The `id` that the principal has or had."""


class Grants(set[Grant]):
    """Checks that were passed. Those of a principal are forgotten with it, which is when its connection is closed, and before another
    object can have its id."""

    def __init__(self) -> None:
        super().__init__()
        self._holders: dict[int, _Holder] = {}
        """By the `id` of the principal."""
        self._on_gone = self._forget

    def keep(self, principal: Principal, grant: Grant) -> None:
        if grant in self:
            return
        if len(self) >= GRANTED_MAX:
            self.clear()
        place = id(principal)
        holder = self._holders.get(place)
        if holder is None:
            holder = self._holders[place] = _Holder(principal, self._on_gone)
            holder.place, holder.grants = place, []
        holder.grants.append(grant)
        self.add(grant)

    def clear(self) -> None:
        super().clear()
        self._holders.clear()

    def _forget(self, holder: ReferenceType[Principal]) -> None:
        assert isinstance(holder, _Holder)
        del self._holders[holder.place]
        self.difference_update(holder.grants)


class AccessRules(Protocol):
    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        """Raises AccessDenied, or AuthenticationRequired where a principal that has not said who it is might be allowed."""


class AccessPolicy(AccessRules, Protocol):
    """Rules as the broker's parts see them."""

    @property
    def granted(self) -> Grants:
        """Checks that were passed and that the rules would let pass again."""


def authorize(policy: AccessRules, principal: Principal, operation: Operation, resource: Resource) -> None:
    """The one check. Raises AccessDenied or AuthenticationRequired."""
    if principal is SYSTEM:
        return
    topic = resource.name if resource.kind is ResourceKind.TOPIC else resource.topic
    if is_internal(topic):
        raise AccessDenied(
            f"topic {topic} is internal: names beginning with {INTERNAL_PREFIX} belong to the broker, choose another name"
        )
    policy.check(principal, operation, resource)


def is_allowed(policy: AccessRules, principal: Principal, operation: Operation, resource: Resource) -> bool:
    """Whether the check would pass, for lists that show what a principal may know of."""
    try:
        authorize(policy, principal, operation, resource)
    except PenstockError:
        return False
    return True


def grant_of(principal: Principal, operation: Operation, resource: Resource) -> Grant:
    """Return the key under which a check that was passed is kept."""
    return id(principal), _what(operation, resource.kind), resource.name, resource.topic


@cache  # one text for all connections
def _what(operation: Operation, kind: ResourceKind) -> str:
    return f"{operation.value} {kind.value}"


class Guarded(Protocol):
    """A class whose methods are declared operations."""

    @property
    def access(self) -> AccessPolicy: ...


_Self = TypeVar("_Self", bound=Guarded)
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_OnNamed = Callable[Concatenate[_Self, Principal, str, _Args], _Result]
_OnBroker = Callable[Concatenate[_Self, Principal, _Args], _Result]
_READ_TOPIC: Final = _what(Operation.READ, ResourceKind.TOPIC)


def on_topic(operation: Operation) -> Callable[[_OnNamed[_Self, _Args, _Result]], _OnNamed[_Self, _Args, _Result]]:
    """Declares an operation on the topic that the second argument names."""
    return _on_named(operation, ResourceKind.TOPIC)


def on_group(operation: Operation) -> Callable[[_OnNamed[_Self, _Args, _Result]], _OnNamed[_Self, _Args, _Result]]:
    """Declares an operation on the group that the second argument names."""
    return _on_named(operation, ResourceKind.GROUP)


def on_topic_group(
    operation: Operation, argument: str = "group", name_of: Callable[[Any], str] = str
) -> Callable[[_OnNamed[_Self, _Args, _Result]], _OnNamed[_Self, _Args, _Result]]:
    """Declares an operation on the group that `argument` names, in the topic that the second argument names.

    `name_of` gets the group's name from the argument. Without a group (an empty name) the operation is a READ of the topic.
    """

    def declare(method: _OnNamed[_Self, _Args, _Result]) -> _OnNamed[_Self, _Args, _Result]:
        place = list(signature(method).parameters).index(argument) - 3  # after self, the principal and the topic
        what = _what(operation, ResourceKind.GROUP)

        @wraps(method)
        def checked(
            self: _Self, principal: Principal, topic: str, /, *args: _Args.args, **kwargs: _Args.kwargs
        ) -> _Result:
            named = kwargs.get(argument, args[place] if place < len(args) else None)
            group = "" if named is None else name_of(named)
            access = self.access
            if group:
                if (id(principal), what, group, topic) not in access.granted:
                    authorize(access, principal, operation, Resource(ResourceKind.GROUP, group, topic))
            elif (id(principal), _READ_TOPIC, topic, "") not in access.granted:
                authorize(access, principal, Operation.READ, Resource(ResourceKind.TOPIC, topic))
            return method(self, principal, topic, *args, **kwargs)

        checked.declaration = Declaration(operation, ResourceKind.GROUP)  # type: ignore[attr-defined]
        return checked

    return declare


def on_group_topics(
    operation: Operation, argument: str = "topics", topics_of: Callable[[Any], Iterable[str]] = iter
) -> Callable[[_OnNamed[_Self, _Args, _Result]], _OnNamed[_Self, _Args, _Result]]:
    """Declares an operation on the group that the second argument names, in each of the topics that `argument` names."""

    def declare(method: _OnNamed[_Self, _Args, _Result]) -> _OnNamed[_Self, _Args, _Result]:
        place = list(signature(method).parameters).index(argument) - 3  # after self, the principal and the group

        @wraps(method)
        def checked(
            self: _Self, principal: Principal, group: str, /, *args: _Args.args, **kwargs: _Args.kwargs
        ) -> _Result:
            named = kwargs.get(argument, args[place] if place < len(args) else ())
            for topic in sorted(set(topics_of(named))) or [""]:
                authorize(self.access, principal, operation, Resource(ResourceKind.GROUP, group, topic))
            return method(self, principal, group, *args, **kwargs)

        checked.declaration = Declaration(operation, ResourceKind.GROUP)  # type: ignore[attr-defined]
        return checked

    return declare


def on_schema(operation: Operation) -> Callable[[_OnNamed[_Self, _Args, _Result]], _OnNamed[_Self, _Args, _Result]]:
    """Declares an operation on the schema that the second argument names."""
    return _on_named(operation, ResourceKind.SCHEMA)


def _on_named(
    operation: Operation, kind: ResourceKind
) -> Callable[[_OnNamed[_Self, _Args, _Result]], _OnNamed[_Self, _Args, _Result]]:
    def declare(method: _OnNamed[_Self, _Args, _Result]) -> _OnNamed[_Self, _Args, _Result]:
        what = _what(operation, kind)

        # The check runs when the operation is called, before a coroutine of it exists.
        @wraps(method)
        def checked(
            self: _Self, principal: Principal, name: str, /, *args: _Args.args, **kwargs: _Args.kwargs
        ) -> _Result:
            access = self.access
            if (id(principal), what, name, "") not in access.granted:
                authorize(access, principal, operation, Resource(kind, name))
            return method(self, principal, name, *args, **kwargs)

        checked.declaration = Declaration(operation, kind)  # type: ignore[attr-defined]
        return checked

    return declare


def on_broker(operation: Operation) -> Callable[[_OnBroker[_Self, _Args, _Result]], _OnBroker[_Self, _Args, _Result]]:
    """Declares an operation on the broker as a whole."""

    def declare(method: _OnBroker[_Self, _Args, _Result]) -> _OnBroker[_Self, _Args, _Result]:
        @wraps(method)
        def checked(self: _Self, principal: Principal, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            authorize(self.access, principal, operation, BROKER)
            return method(self, principal, *args, **kwargs)

        checked.declaration = Declaration(operation, ResourceKind.BROKER)  # type: ignore[attr-defined]
        return checked

    return declare

"""What one principal may do, and why: the access policy's answers in words.

The policy decides; here is only looked up which role or ACL its answer follows from. So an explanation never allows what the policy does
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from penstock.broker.access.checks import (
    BROKER,
    AccessPolicy,
    AccessRules,
    Operation,
    Principal,
    Resource,
    ResourceKind,
    authorize,
    on_broker,
)
from penstock.broker.access.directory import GROUP_ACL_PREFIX, KEY_PRINCIPAL_PREFIX, CompiledAcl, Directory
from penstock.errors import PenstockError, UserNotFound


class Right(NamedTuple):
    operation: Operation
    allowed: bool
    why: str


class Rights(NamedTuple):
    principal: str
    roles: tuple[str, ...]
    rights: list[Right]


class Explaining:
    def __init__(
        self,
        directory: Directory,
        *,
        rules: AccessRules,
        access: AccessPolicy,
        roles_of_key: Callable[[str], tuple[str, ...] | None],
    ) -> None:
        """`rules` answer what `access` would, without noting refusals in the audit trail."""
        self.access = access
        self._directory = directory
        self._rules = rules
        self._roles_of_key = roles_of_key

    @on_broker(Operation.ADMIN)
    def rights(self, principal: Principal, name: str, topic: str = "", group: str = "") -> Rights:
        """What a user, or an API key (`key:NAME`), may do on a topic or, without one, on the broker. Raises UserNotFound."""
        asked = self._principal(name)
        user = self._directory.users.get(name)
        roles = asked.roles if user is None else asked.roles.union(user.roles)
        rights = []
        for operation in Operation:
            resource = BROKER if not topic else Resource(ResourceKind.TOPIC, topic)
            if operation is Operation.COMMIT and topic:
                resource = Resource(ResourceKind.GROUP, group, topic)
            try:
                authorize(self._rules, asked, operation, resource)
            except PenstockError as error:
                rights.append(Right(operation, False, str(error)))
            else:
                rights.append(Right(operation, True, self._why(asked.name, roles, operation, resource)))
        return Rights(name, tuple(sorted(roles)), rights)

    def _principal(self, name: str) -> Principal:
        if name.startswith(KEY_PRINCIPAL_PREFIX):
            roles = self._roles_of_key(name.removeprefix(KEY_PRINCIPAL_PREFIX))
            if roles is None:
                raise UserNotFound(f"no API key is called {name.removeprefix(KEY_PRINCIPAL_PREFIX)}")
            return Principal(name, frozenset(roles))
        if self._directory.users.get(name) is None:
            raise UserNotFound(f'user "{name}" not found')
        return Principal(name)

    def _why(self, name: str, roles: Iterable[str], operation: Operation, resource: Resource) -> str:
        by_role = sorted(role for role in roles if operation in self._directory.permissions(frozenset({role})))
        if by_role:
            return f"role {by_role[0]}"
        if resource.kind is ResourceKind.GROUP:
            named = [pattern for pattern, acl in self._acls(resource) if acl.allows(name, roles, operation)]
            return f"ACL {named[0]}" if named else "who may read the topic may commit: no ACL covers the group"
        for pattern, acl in self._acls(resource):
            if acl.allows(name, roles, operation):
                return f"ACL {pattern}"
            if acl.public and resource.kind is ResourceKind.TOPIC:
                return f"ACL {pattern} makes the topic public"
        if resource.kind is ResourceKind.BROKER:
            return "every user may ask, and sees only what else is allowed"
        return "topics without an ACL are public here"

    def _acls(self, resource: Resource) -> Iterator[tuple[str, CompiledAcl]]:
        """The ACLs that cover a topic or a group, by name; of the broker, every ACL of a topic."""
        of_group = resource.kind is ResourceKind.GROUP
        for pattern, acl in sorted(self._directory.acls.items()):
            if pattern.startswith(GROUP_ACL_PREFIX) is of_group and (
                resource.kind is ResourceKind.BROKER or _covers(pattern.removeprefix(GROUP_ACL_PREFIX), resource.name)
            ):
                yield pattern, CompiledAcl(acl, of_group=of_group)


def _covers(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern

"""The access policy of a broker with users: who may do what, decided by roles and ACLs.

In this order, and the first that applies decides:

1. a trusted principal (its listener requires no authentication) may do everything;
2. a topic that is public may be read and written by every user, and without a login where anonymous access is allowed;
3. anonymous clients may do nothing else; neither may disabled or deleted users;
4. what the principal's roles allow, it may do on every topic;
5. what an ACL that covers the topic allows the user or one of its roles, it may do on that topic;
6. the rest is refused.

Committing to a group is a right of its own: readers of the topic may commit, unless ACLs cover the group; then only those may that one
of them names, and those whose role allows `commit` or `admin`. So groups are open to every reader until an ACL closes them.

So an ACL adds people and never shuts anyone out whose role suffices, which is what users of deployed FlyMQ brokers know. Creating and
deleting topics, other people's groups, users, roles and ACLs need a role that says so; no ACL gives them.

Where a request is about no topic (listing topics, beginning a transaction), being allowed the like on some topic is enough: what it
then does with topics is checked for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pydantic import Field

from penstock.broker.access.checks import (
    AccessRules,
    Grants,
    Operation,
    Principal,
    Resource,
    ResourceKind,
    grant_of,
)
from penstock.broker.access.defaults import AccessDefaults
from penstock.broker.access.directory import Directory
from penstock.broker.access.passwords import Argon2Cost
from penstock.errors import AccessDenied, AuthenticationFailed, AuthenticationRequired, PenstockError

SETUP_NAME: Final = "setup:"
"""The principal that may do everything while there is no administrator; see `Users.open_setup`."""

_BY_ACL: Final = frozenset({Operation.READ, Operation.WRITE, Operation.DESCRIBE})

OnDenied = Callable[[Principal, Operation, Resource], None]


class AccessSettings(AccessDefaults):
    development: Mapping[str, str] = Field({}, repr=False)
    """Names and passwords of administrators that are stored nowhere."""
    password_cost: Argon2Cost = Argon2Cost()
    node: str = ""
    """What the audit trail calls this broker."""


class RolePolicy:
    def __init__(self, directory: Directory, settings: AccessSettings) -> None:
        self._directory = directory
        self._settings = settings

    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        if principal.trusted:
            return
        if operation is Operation.COMMIT and resource.kind is ResourceKind.GROUP:
            self._check_commit(principal, resource)
            return
        if not principal.name:
            if self._settings.allow_anonymous and self._open_to_all(operation, resource):
                return
            raise AuthenticationRequired(f"authentication required: log in to {_what(operation, resource)}")
        roles = self.roles_of(principal)
        if operation in self._directory.permissions(roles):
            return
        if operation in _BY_ACL and self._granted(principal.name, roles, operation, resource):
            return
        raise AccessDenied(f"unauthorized: {principal.name} may not {_what(operation, resource)}")

    def _check_commit(self, principal: Principal, group: Resource) -> None:
        self.check(principal, Operation.READ, Resource(ResourceKind.TOPIC, group.topic))
        acls = self._directory.covering_group(group.name)
        if not acls:
            return
        if not principal.name:
            raise AuthenticationRequired(f"authentication required: log in to {_what(Operation.COMMIT, group)}")
        roles = self.roles_of(principal)
        if Operation.COMMIT in self._directory.permissions(roles):
            return
        if not any(acl.allows(principal.name, roles, Operation.COMMIT) for acl in acls):
            raise AccessDenied(
                f"unauthorized: {principal.name} may not commit to group {group.name}: no ACL of the group names them"
            )

    def roles_of(self, principal: Principal) -> frozenset[str]:
        """Raises where the principal is no user, or one that is disabled, and its listener grants it nothing either."""
        user = self._directory.users.get(principal.name)
        if principal.name == SETUP_NAME and self._directory.has_admin():
            raise AuthenticationRequired("authentication required: there is an administrator now, log in as one")
        if user is None:
            if not principal.roles:
                raise AuthenticationRequired(
                    f"authentication required: there is no user {principal.name}; an administrator can create it"
                )
            return principal.roles
        if not user.enabled:
            raise AuthenticationFailed("user account is disabled")
        return principal.roles.union(user.roles)

    def _open_to_all(self, operation: Operation, resource: Resource) -> bool:
        if resource.kind is ResourceKind.TOPIC:
            return operation in _BY_ACL and self._public(resource.name)
        return operation is Operation.DESCRIBE and resource.kind is ResourceKind.BROKER

    def _granted(self, user: str, roles: frozenset[str], operation: Operation, resource: Resource) -> bool:
        if resource.kind is not ResourceKind.TOPIC:
            return operation is Operation.DESCRIBE or self._directory.granted_anywhere(user, roles, operation)
        return self._public(resource.name) or any(
            acl.allows(user, roles, operation) for acl in self._directory.covering(resource.name)
        )

    def _public(self, topic: str) -> bool:
        acls = self._directory.covering(topic)
        return any(acl.public for acl in acls) if acls else self._settings.default_public


class AuditedAccess:
    """Rules whose refusals are passed to `on_denied`, once it is set, and whose grants are cached where that is allowed."""

    def __init__(self, rules: AccessRules, granted: Grants | None = None) -> None:
        """`granted` is cleared when what the rules depend on changes; without it every check is made."""
        self._rules = rules
        self._is_kept = granted is not None
        self.granted = Grants() if granted is None else granted
        self.on_denied: OnDenied | None = None

    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        try:
            self._rules.check(principal, operation, resource)
        except PenstockError:
            if self.on_denied is not None:
                self.on_denied(principal, operation, resource)
            raise
        if self._is_kept:
            self.granted.keep(principal, grant_of(principal, operation, resource))


def _what(operation: Operation, resource: Resource) -> str:
    if operation is Operation.COMMIT:
        return f"commit to group {resource.name}"
    if resource.kind is ResourceKind.BROKER:
        return f"{operation.value} this broker"
    return f"{operation.value} {resource.kind.value} {resource.name}"

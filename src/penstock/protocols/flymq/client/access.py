"""`client.access` and `client.keys`: users, roles, ACLs, the audit trail, the cluster, and API keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.protocols.flymq.client.exchanges import Channel
from penstock.protocols.flymq.operations.access import (
    AclDelete,
    AclDescription,
    AclGet,
    AclList,
    AclSet,
    AuditExport,
    AuditQuery,
    AuditRecords,
    KeyCreate,
    KeyDescription,
    KeyList,
    KeyRevoke,
    PasswordChange,
    RoleDelete,
    RoleDescription,
    RoleList,
    RoleSet,
    UserCreate,
    UserDelete,
    UserDescription,
    UserGet,
    UserList,
    UserUpdate,
    Whoami,
)
from penstock.protocols.flymq.operations.topics import ClusterState, ClusterStatus


@dataclass(frozen=True, slots=True)
class Identity:
    """The authenticated user of a connection."""

    user: str
    roles: list[str]
    permissions: list[str]


class AsyncAccess:
    """`client.access` of the async client."""

    def __init__(self, channel: Channel) -> None:
        self._ask = channel.ask

    async def whoami(self) -> Identity | None:
        """Return the authenticated user, or None if the client is anonymous."""
        reply = await self._ask(Whoami())
        return (
            Identity(reply.user, [role for role in reply.roles if role], reply.permissions)
            if reply.authenticated
            else None
        )

    # -- users -----------------------------------------------------------------------------------------------------------

    async def create_user(self, user: str, password: str, roles: Sequence[str] = ()) -> None:
        """Create a user. Raises UserExists."""
        await self._ask(UserCreate(user, password, roles=list(roles), enabled=True))

    async def update_user(self, user: str, roles: Sequence[str] = (), enabled: bool | None = None) -> None:
        """Replace the roles of a user (if any are given), and enable or disable it (unless None). Raises UserNotFound."""
        await self._ask(UserUpdate(user, roles=list(roles), enabled=enabled))

    async def delete_user(self, user: str) -> None:
        """Delete a user. Raises UserNotFound."""
        await self._ask(UserDelete(user))

    async def users(self) -> list[UserDescription]:
        """Return all users, without their permissions."""
        return [*await self._ask(UserList())]

    async def user(self, user: str) -> UserDescription:
        """Return one user. Raises UserNotFound."""
        return await self._ask(UserGet(user))

    async def set_password(self, user: str, password: str, old_password: str = "") -> None:
        """Change your own password, which requires the old one, or, as an administrator, that of another user."""
        await self._ask(PasswordChange(user, password, old_password))

    # -- roles -----------------------------------------------------------------------------------------------------------

    async def roles(self) -> list[RoleDescription]:
        """Return all roles, the built-in ones first."""
        return [*await self._ask(RoleList())]

    async def set_role(self, role: str, permissions: Sequence[str], description: str = "") -> None:
        """Create a role, or replace a custom one. Permissions: read, write, commit, describe, create, delete, admin."""
        await self._ask(RoleSet(role, list(permissions), description))

    async def delete_role(self, role: str) -> None:
        """Delete a custom role that no user has and no ACL names."""
        await self._ask(RoleDelete(role))

    # -- ACLs ------------------------------------------------------------------------------------------------------------

    async def set_acl(
        self, topic: str, users: Sequence[str] = (), roles: Sequence[str] = (), *, public: bool = False
    ) -> None:
        """Set the ACL of a topic, replacing any other. `topic` may end in `*`; an entry may end in `:read` or `:write`."""
        await self._ask(AclSet(topic, public, list(users), list(roles)))

    async def acl(self, topic: str) -> AclDescription:
        """Return the ACL with exactly this name; `exists` is false if there is none."""
        return await self._ask(AclGet(topic))

    async def delete_acl(self, topic: str) -> None:
        """Delete an ACL, if it exists."""
        await self._ask(AclDelete(topic))

    async def acls(self) -> list[AclDescription]:
        """Return all ACLs, by topic."""
        entries = (await self._ask(AclList())).acls
        return [AclDescription(each.topic, each.exists, each.public, False, each.users, each.roles) for each in entries]

    # -- the audit trail -------------------------------------------------------------------------------------------------

    async def audit(self, query: AuditQuery | None = None) -> AuditRecords:
        """Return events of the audit trail, newest first."""
        return await self._ask(query or AuditQuery())

    async def export_audit(self, form: Literal["json", "csv"], query: AuditQuery | None = None) -> bytes:
        """Return events as the bytes of a JSON or CSV file."""
        exported = await self._ask(AuditExport(query or AuditQuery(), form, own_client=True))
        return exported.data

    # -- the cluster -----------------------------------------------------------------------------------------------------

    async def cluster_status(self) -> ClusterState:
        """Return the nodes of the cluster, and which one leads."""
        return await self._ask(ClusterStatus())


class AsyncKeys:
    """`client.keys` of the async client."""

    def __init__(self, channel: Channel) -> None:
        self._ask = channel.ask

    async def create(self, name: str, roles: Sequence[str] = ()) -> str:
        """Create an API key and return its secret, which cannot be shown again. Without roles it may publish and read."""
        return await self._ask(KeyCreate(name, list(roles)))

    async def list(self) -> list[KeyDescription]:
        """Return all keys by name, without their secrets."""
        return [*await self._ask(KeyList())]

    async def revoke(self, name: str) -> None:
        """Revoke a key, also for connections that are authenticated with it. Raises EntryNotFound."""
        await self._ask(KeyRevoke(name))

"""Users, roles, ACLs, the audit trail, the cluster, and API keys, as clients ask for them."""

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
    """Who the broker takes a connection for."""

    user: str
    roles: list[str]
    permissions: list[str]


class AsyncAccess:
    """`client.access` of the async client."""

    def __init__(self, channel: Channel) -> None:
        self._ask = channel.ask

    async def whoami(self) -> Identity | None:
        """Whom the broker takes this client for; None where nobody has logged in."""
        reply = await self._ask(Whoami())
        return (
            Identity(reply.user, [role for role in reply.roles if role], reply.permissions)
            if reply.authenticated
            else None
        )

    # -- users -----------------------------------------------------------------------------------------------------------

    async def create_user(self, user: str, password: str, roles: Sequence[str] = ()) -> None:
        """Raises UserExists."""
        await self._ask(UserCreate(user, password, roles=list(roles), enabled=True))

    async def update_user(self, user: str, roles: Sequence[str] = (), enabled: bool | None = None) -> None:
        """Give a user other roles (none: unchanged), or let it log in or not (None: unchanged). Raises UserNotFound."""
        await self._ask(UserUpdate(user, roles=list(roles), enabled=enabled))

    async def delete_user(self, user: str) -> None:
        """Raises UserNotFound."""
        await self._ask(UserDelete(user))

    async def users(self) -> list[UserDescription]:
        """Every user, without permissions."""
        return [*await self._ask(UserList())]

    async def user(self, user: str) -> UserDescription:
        """Raises UserNotFound."""
        return await self._ask(UserGet(user))

    async def set_password(self, user: str, password: str, old_password: str = "") -> None:
        """One's own, for which the old one is needed, or, as an administrator, somebody else's."""
        await self._ask(PasswordChange(user, password, old_password))

    # -- roles -----------------------------------------------------------------------------------------------------------

    async def roles(self) -> list[RoleDescription]:
        """Every role, the built-in ones first."""
        return [*await self._ask(RoleList())]

    async def set_role(self, role: str, permissions: Sequence[str], description: str = "") -> None:
        """Make a role, or change one that is not built in. Permissions: read, write, describe, create, delete, admin."""
        await self._ask(RoleSet(role, list(permissions), description))

    async def delete_role(self, role: str) -> None:
        """One that nobody has any more."""
        await self._ask(RoleDelete(role))

    # -- ACLs ------------------------------------------------------------------------------------------------------------

    async def set_acl(
        self, topic: str, users: Sequence[str] = (), roles: Sequence[str] = (), *, public: bool = False
    ) -> None:
        """Put an ACL in the place of the one there may be. `topic` may end in `*`; an entry may end in `:read` or `:write`."""
        await self._ask(AclSet(topic, public, list(users), list(roles)))

    async def acl(self, topic: str) -> AclDescription:
        """The ACL of this very name; `exists` is false where there is none."""
        return await self._ask(AclGet(topic))

    async def delete_acl(self, topic: str) -> None:
        """One that does not exist is no error."""
        await self._ask(AclDelete(topic))

    async def acls(self) -> list[AclDescription]:
        entries = (await self._ask(AclList())).acls
        return [AclDescription(each.topic, each.exists, each.public, False, each.users, each.roles) for each in entries]

    # -- the audit trail -------------------------------------------------------------------------------------------------

    async def audit(self, query: AuditQuery | None = None) -> AuditRecords:
        """Events of the audit trail, newest first."""
        return await self._ask(query or AuditQuery())

    async def export_audit(self, form: Literal["json", "csv"], query: AuditQuery | None = None) -> bytes:
        """The same as a file."""
        exported = await self._ask(AuditExport(query or AuditQuery(), form, own_client=True))
        return exported.data

    # -- the cluster -----------------------------------------------------------------------------------------------------

    async def cluster_status(self) -> ClusterState:
        return await self._ask(ClusterStatus())


class AsyncKeys:
    """`client.keys` of the async client."""

    def __init__(self, channel: Channel) -> None:
        self._ask = channel.ask

    async def create(self, name: str, roles: Sequence[str] = ()) -> str:
        """Make a key; returns it, and nobody can see it again. Without roles it may publish and read."""
        return await self._ask(KeyCreate(name, list(roles)))

    async def list(self) -> list[KeyDescription]:
        """Every key by name, without its secret."""
        return [*await self._ask(KeyList())]

    async def revoke(self, name: str) -> None:
        """Forget a key; who is logged in with it is turned away. Raises EntryNotFound."""
        await self._ask(KeyRevoke(name))

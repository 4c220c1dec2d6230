"""Users, roles, ACLs, the audit trail and the cluster, as clients ask for them: `client.access` of the async client and of its twin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from penstock.clients.loop_thread import LoopThread
from penstock.protocols.flymq.access import replies, requests
from penstock.protocols.flymq.access.messages import (
    AclDescription,
    AuditQueryRequest,
    AuditRecords,
    ClusterState,
    Identity,
    RoleDescription,
    UserDescription,
)
from penstock.protocols.flymq.request_encoding import encode_whoami
from penstock.protocols.flymq.wire import Opcode, frame

Ask = Callable[[bytes], Awaitable[bytes]]


class AsyncAccess:
    """`read` may be sent again where a connection was lost, `write` may not."""

    def __init__(self, read: Ask, write: Ask) -> None:
        self._read = read
        self._write = write

    async def whoami(self) -> Identity | None:
        """Whom the broker takes this client for; None where nobody has logged in."""
        return replies.decode_identity(await self._read(encode_whoami()))

    # -- users -----------------------------------------------------------------------------------------------------------

    async def create_user(self, user: str, password: str, roles: Sequence[str] = ()) -> None:
        """Raises UserExists."""
        await self._write(requests.encode_user_request(Opcode.USER_CREATE, user, password, roles=roles, enabled=True))

    async def update_user(self, user: str, roles: Sequence[str] = (), enabled: bool | None = None) -> None:
        """Give a user other roles (none: unchanged), or let it log in or not (None: unchanged). Raises UserNotFound."""
        await self._read(requests.encode_user_request(Opcode.USER_UPDATE, user, roles=roles, enabled=enabled))

    async def delete_user(self, user: str) -> None:
        """Raises UserNotFound."""
        await self._write(requests.encode_named(Opcode.USER_DELETE, user))

    async def users(self) -> list[UserDescription]:
        """Every user, without permissions."""
        return replies.decode_users(await self._read(frame(Opcode.USER_LIST)))

    async def user(self, user: str) -> UserDescription:
        """Raises UserNotFound."""
        return replies.decode_user(await self._read(requests.encode_named(Opcode.USER_GET, user)))

    async def set_password(self, user: str, password: str, old_password: str = "") -> None:
        """One's own, for which the old one is needed, or, as an administrator, somebody else's."""
        await self._write(requests.encode_user_request(Opcode.PASSWORD_CHANGE, user, password, old_password))

    # -- roles -----------------------------------------------------------------------------------------------------------

    async def roles(self) -> list[RoleDescription]:
        """Every role, the built-in ones first."""
        return replies.decode_roles(await self._read(frame(Opcode.ROLE_LIST)))

    async def set_role(self, role: str, permissions: Sequence[str], description: str = "") -> None:
        """Make a role, or change one that is not built in. Permissions: read, write, describe, create, delete, admin."""
        await self._read(requests.encode_role_set(role, permissions, description))

    async def delete_role(self, role: str) -> None:
        """One that nobody has any more."""
        await self._read(requests.encode_named(Opcode.ROLE_DELETE, role))

    # -- ACLs ------------------------------------------------------------------------------------------------------------

    async def set_acl(
        self, topic: str, users: Sequence[str] = (), roles: Sequence[str] = (), *, public: bool = False
    ) -> None:
        """Put an ACL in the place of the one there may be. `topic` may end in `*`; an entry may end in `:read` or `:write`."""
        await self._read(requests.encode_acl_set(topic, public, users, roles))

    async def acl(self, topic: str) -> AclDescription:
        """The ACL of this very name; `exists` is false where there is none."""
        return replies.decode_acl(await self._read(requests.encode_named(Opcode.ACL_GET, topic)))

    async def delete_acl(self, topic: str) -> None:
        """One that does not exist is no error."""
        await self._read(requests.encode_named(Opcode.ACL_DELETE, topic))

    async def acls(self) -> list[AclDescription]:
        return replies.decode_acls(await self._read(frame(Opcode.ACL_LIST)))

    # -- the audit trail -------------------------------------------------------------------------------------------------

    async def audit(self, query: AuditQueryRequest | None = None) -> AuditRecords:
        """Events of the audit trail, newest first."""
        return replies.decode_audit(await self._read(requests.encode_audit_query(query or AuditQueryRequest())))

    async def export_audit(self, form: Literal["json", "csv"], query: AuditQueryRequest | None = None) -> bytes:
        """The same as a file."""
        data = requests.encode_audit_export(query or AuditQueryRequest(), form)
        return replies.decode_audit_exported(await self._read(data))

    # -- the cluster -----------------------------------------------------------------------------------------------------

    async def cluster_status(self) -> ClusterState:
        return replies.decode_cluster_status(await self._read(frame(Opcode.CLUSTER_STATUS)))


class Access:
    """The same calls as `AsyncAccess`, each waiting for its answer."""

    def __init__(self, thread: LoopThread, access: AsyncAccess) -> None:
        self._thread = thread
        self._access = access

    def whoami(self) -> Identity | None:
        """Whom the broker takes this client for; None where nobody has logged in."""
        return self._thread.run(self._access.whoami())

    def create_user(self, user: str, password: str, roles: Sequence[str] = ()) -> None:
        """Raises UserExists."""
        self._thread.run(self._access.create_user(user, password, roles))

    def update_user(self, user: str, roles: Sequence[str] = (), enabled: bool | None = None) -> None:
        """Give a user other roles (none: unchanged), or let it log in or not (None: unchanged). Raises UserNotFound."""
        self._thread.run(self._access.update_user(user, roles, enabled))

    def delete_user(self, user: str) -> None:
        """Raises UserNotFound."""
        self._thread.run(self._access.delete_user(user))

    def users(self) -> list[UserDescription]:
        """Every user, without permissions."""
        return self._thread.run(self._access.users())

    def user(self, user: str) -> UserDescription:
        """Raises UserNotFound."""
        return self._thread.run(self._access.user(user))

    def set_password(self, user: str, password: str, old_password: str = "") -> None:
        """One's own, for which the old one is needed, or, as an administrator, somebody else's."""
        self._thread.run(self._access.set_password(user, password, old_password))

    def roles(self) -> list[RoleDescription]:
        """Every role, the built-in ones first."""
        return self._thread.run(self._access.roles())

    def set_role(self, role: str, permissions: Sequence[str], description: str = "") -> None:
        """Make a role, or change one that is not built in."""
        self._thread.run(self._access.set_role(role, permissions, description))

    def delete_role(self, role: str) -> None:
        """One that nobody has any more."""
        self._thread.run(self._access.delete_role(role))

    def set_acl(
        self, topic: str, users: Sequence[str] = (), roles: Sequence[str] = (), *, public: bool = False
    ) -> None:
        """Put an ACL in the place of the one there may be."""
        self._thread.run(self._access.set_acl(topic, users, roles, public=public))

    def acl(self, topic: str) -> AclDescription:
        """The ACL of this very name; `exists` is false where there is none."""
        return self._thread.run(self._access.acl(topic))

    def delete_acl(self, topic: str) -> None:
        """One that does not exist is no error."""
        self._thread.run(self._access.delete_acl(topic))

    def acls(self) -> list[AclDescription]:
        return self._thread.run(self._access.acls())

    def audit(self, query: AuditQueryRequest | None = None) -> AuditRecords:
        """Events of the audit trail, newest first."""
        return self._thread.run(self._access.audit(query))

    def export_audit(self, form: Literal["json", "csv"], query: AuditQueryRequest | None = None) -> bytes:
        """The same as a file."""
        return self._thread.run(self._access.export_audit(form, query))

    def cluster_status(self) -> ClusterState:
        return self._thread.run(self._access.cluster_status())

"""FlyMQ requests about users, roles, ACLs, the audit trail and the cluster, both ways. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from penstock.protocols.bytes import I32, I64, ByteReader, blob32, text16, texts16
from penstock.protocols.flymq.access.messages import (
    AccessBody,
    AclDelete,
    AclGet,
    AclList,
    AclSet,
    AuditExport,
    AuditQueryRequest,
    ClusterJoin,
    ClusterLeave,
    ClusterStatusRequest,
    PasswordChange,
    RoleDelete,
    RoleList,
    RoleSet,
    UserCreate,
    UserDelete,
    UserGet,
    UserList,
    UserRequest,
    UserUpdate,
)
from penstock.protocols.flymq.limits import ACL_USERS_MAX, AUDIT_TYPES_MAX, PERMISSIONS_MAX, ROLES_MAX
from penstock.protocols.flymq.wire import Opcode, frame

# --- the server's side ---

_User = TypeVar("_User", bound=UserRequest)


def _user_request(kind: type[_User]) -> Callable[[ByteReader], _User]:
    def read(reader: ByteReader) -> _User:
        user, password, old_password = reader.text16("user"), reader.text16("password"), reader.text16("old password")
        roles = reader.texts16("roles", ROLES_MAX)
        enabled = reader.boolean("enabled") if reader.remaining else None
        reader.finish("enabled")
        return kind(user, password, old_password, roles, enabled)

    return read


_Named = TypeVar("_Named", UserDelete, UserGet, AclGet, AclDelete, RoleDelete)


def _named(kind: Callable[[str], _Named], field: str) -> Callable[[ByteReader], _Named]:
    def read(reader: ByteReader) -> _Named:
        body = kind(reader.text16(field))
        reader.finish(field)
        return body

    return read


_Empty = TypeVar("_Empty", UserList, AclList, RoleList, ClusterLeave, ClusterStatusRequest)


def _empty(kind: Callable[[], _Empty], opcode: Opcode) -> Callable[[ByteReader], _Empty]:
    def read(reader: ByteReader) -> _Empty:
        reader.finish(f"the header of {opcode.name}, which has no payload")
        return kind()

    return read


def _acl_set(reader: ByteReader) -> AclSet:
    body = AclSet(
        reader.text16("topic"),
        reader.boolean("public"),
        reader.texts16("users", ACL_USERS_MAX),
        reader.texts16("roles", ROLES_MAX),
    )
    reader.finish("roles")
    return body


def _role_set(reader: ByteReader) -> RoleSet:
    body = RoleSet(reader.text16("role"), reader.texts16("permissions", PERMISSIONS_MAX), reader.text16("description"))
    reader.finish("description")
    return body


def _cluster_join(reader: ByteReader) -> ClusterJoin:
    peer = reader.text16("peer") if reader.remaining else ""
    reader.finish("peer")
    return ClusterJoin(peer)


def _audit_query(reader: ByteReader) -> AuditQueryRequest:
    body = AuditQueryRequest(
        reader.i64("start"),
        reader.i64("end"),
        reader.texts16("types", AUDIT_TYPES_MAX),
        reader.text16("user"),
        reader.text16("resource"),
        reader.text16("result"),
        reader.text16("search"),
        reader.i32("limit"),
        reader.i32("offset"),
    )
    reader.finish("offset")
    return body


def _audit_export(reader: ByteReader) -> AuditExport:
    body = AuditExport(_audit_query(ByteReader(reader.blob32("query"))), reader.text16("format"))
    if reader.remaining:
        body.own_client = reader.boolean("own client")
    reader.finish("own client")
    return body


READERS: Mapping[int, Callable[[ByteReader], AccessBody]] = {
    Opcode.CLUSTER_JOIN: _cluster_join,
    Opcode.CLUSTER_LEAVE: _empty(ClusterLeave, Opcode.CLUSTER_LEAVE),
    Opcode.CLUSTER_STATUS: _empty(ClusterStatusRequest, Opcode.CLUSTER_STATUS),
    Opcode.USER_CREATE: _user_request(UserCreate),
    Opcode.USER_DELETE: _named(UserDelete, "user"),
    Opcode.USER_UPDATE: _user_request(UserUpdate),
    Opcode.USER_LIST: _empty(UserList, Opcode.USER_LIST),
    Opcode.USER_GET: _named(UserGet, "user"),
    Opcode.ACL_SET: _acl_set,
    Opcode.ACL_GET: _named(AclGet, "topic"),
    Opcode.ACL_DELETE: _named(AclDelete, "topic"),
    Opcode.ACL_LIST: _empty(AclList, Opcode.ACL_LIST),
    Opcode.PASSWORD_CHANGE: _user_request(PasswordChange),
    Opcode.ROLE_LIST: _empty(RoleList, Opcode.ROLE_LIST),
    Opcode.ROLE_SET: _role_set,
    Opcode.ROLE_DELETE: _named(RoleDelete, "role"),
    Opcode.AUDIT_QUERY: _audit_query,
    Opcode.AUDIT_EXPORT: _audit_export,
}

# --- the client's side ---


def encode_user_request(
    opcode: Opcode,
    user: str,
    password: str = "",
    old_password: str = "",
    roles: Sequence[str] = (),
    enabled: bool | None = None,
) -> bytes:
    tail = b"" if enabled is None else bytes((enabled,))
    return frame(opcode, text16(user) + text16(password) + text16(old_password) + texts16(roles) + tail)


def encode_named(opcode: Opcode, name: str) -> bytes:
    """Requests that are one string: USER_DELETE, USER_GET, ACL_GET, ACL_DELETE, ROLE_DELETE, CLUSTER_JOIN."""
    return frame(opcode, text16(name))


def encode_acl_set(topic: str, public: bool, users: Sequence[str], roles: Sequence[str]) -> bytes:
    return frame(Opcode.ACL_SET, text16(topic) + bytes((public,)) + texts16(users) + texts16(roles))


def encode_role_set(role: str, permissions: Sequence[str], description: str) -> bytes:
    return frame(Opcode.ROLE_SET, text16(role) + texts16(permissions) + text16(description))


def encode_audit_query(query: AuditQueryRequest) -> bytes:
    return frame(Opcode.AUDIT_QUERY, _query_payload(query))


def encode_audit_export(query: AuditQueryRequest, form: str) -> bytes:
    return frame(Opcode.AUDIT_EXPORT, blob32(_query_payload(query)) + text16(form) + b"\x01")


def _query_payload(query: AuditQueryRequest) -> bytes:
    texts = (query.user, query.resource, query.result, query.search)
    return b"".join(
        (
            I64.pack(query.start_s),
            I64.pack(query.end_s),
            texts16(query.types),
            *map(text16, texts),
            I32.pack(query.limit),
            I32.pack(query.offset),
        )
    )

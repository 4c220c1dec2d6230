"""FlyMQ replies about users, roles, ACLs, the audit trail and the cluster, both ways. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.protocols.bytes import I32, I64, U32, ByteReader, blob32, text8, text16, texts16
from penstock.protocols.flymq.access.messages import (
    AclDescription,
    AuditRecord,
    AuditRecords,
    ClusterState,
    Identity,
    RoleDescription,
    UserDescription,
)
from penstock.protocols.flymq.wire import Opcode, frame

IDENTITY_BYTES_MIN = 4096
"""Zeros fill a WHOAMI reply up to this: a deployed Go client misreads role names and then wants that many bytes to be there."""

# --- who is asking ---


def encode_authenticated(user: str, roles: Sequence[str], *, native: bool) -> bytes:
    if native:
        payload = b"\x01" + text16(user) + U32.pack(len(roles)) + b"".join(map(text8, roles)) + text16("")
    else:
        payload = b"\x01" + text16("") + text16(user) + texts16(roles)
    return frame(Opcode.AUTH_RESPONSE, payload)


def encode_not_authenticated(reason: str, *, native: bool) -> bytes:
    nobody = text16("") + U32.pack(0)
    payload = nobody + text16(reason) if native else text16(reason) + nobody
    return frame(Opcode.AUTH_RESPONSE, b"\x00" + payload)


def decode_authenticated(payload: bytes) -> bool:
    """Whether the credentials were taken; that is where both layouts agree."""
    return ByteReader(payload).boolean("success")


def decode_refusal(payload: bytes) -> str:
    """Why credentials were not taken, in either layout: one begins with an empty user and no roles, the other with the reason."""
    reader = ByteReader(payload)
    reader.take(1, "success")
    first = reader.text16("user or reason")
    if first or not reader.remaining:
        return first
    reader.take(4, "roles")
    return reader.text16("reason") if reader.remaining else ""


def encode_identity(user: str, roles: Sequence[str], permissions: Sequence[str]) -> bytes:
    """The WHOAMI reply. No user: nobody has logged in."""
    payload = bytes((bool(user),)) + text16(user) + texts16(roles) + texts16(permissions)
    if roles:
        payload = payload.ljust(
            max(IDENTITY_BYTES_MIN, _bytes_wanted_by_narrow_readers(payload, user, len(roles))), b"\0"
        )
    return frame(Opcode.WHOAMI, payload)


def _bytes_wanted_by_narrow_readers(payload: bytes, user: str, roles: int) -> int:
    """How long the reply must be for readers that take role names for one-byte lengths and an error text behind them."""
    position = 1 + len(text16(user)) + 4
    for _ in range(roles):
        position += 1 + (payload[position] if position < len(payload) else 0)
    return position + 2 + int.from_bytes(payload[position : position + 2].ljust(2, b"\0"))


def decode_identity(payload: bytes) -> Identity | None:
    """None when nobody has logged in."""
    reader = ByteReader(payload)
    authenticated = reader.boolean("authenticated")
    identity = Identity(reader.text16("user"), reader.texts16("roles"), reader.texts16("permissions"))
    return identity if authenticated else None


# --- users and roles ---


def encode_changed(opcode: int, name: str) -> bytes:
    """What was asked for is done: a bool and the name of what it was done to."""
    return frame(opcode, b"\x01" + text16(name))


def encode_user(opcode: int, user: UserDescription) -> bytes:
    return frame(opcode, _user(user))


def encode_users(users: Sequence[UserDescription]) -> bytes:
    return frame(Opcode.USER_LIST, U32.pack(len(users)) + b"".join(map(_user, users)))


def _user(user: UserDescription) -> bytes:
    return b"".join(
        (
            text16(user.user),
            texts16(user.roles),
            texts16(user.permissions),
            bytes((user.enabled,)),
            I64.pack(user.created_s),
            I64.pack(user.updated_s),
        )
    )


def decode_user(payload: bytes) -> UserDescription:
    return _read_user(ByteReader(payload))


def decode_users(payload: bytes) -> list[UserDescription]:
    reader = ByteReader(payload)
    return [_read_user(reader) for _ in range(reader.count32("users", 27))]


def _read_user(reader: ByteReader) -> UserDescription:
    return UserDescription(
        reader.text16("user"),
        reader.texts16("roles"),
        reader.texts16("permissions"),
        reader.boolean("enabled"),
        reader.i64("created"),
        reader.i64("updated"),
    )


def encode_roles(roles: Sequence[RoleDescription]) -> bytes:
    encoded = [text16(each.role) + texts16(each.permissions) + text16(each.description) for each in roles]
    return frame(Opcode.ROLE_LIST, U32.pack(len(roles)) + b"".join(encoded))


def decode_roles(payload: bytes) -> list[RoleDescription]:
    reader = ByteReader(payload)
    return [
        RoleDescription(reader.text16("role"), reader.texts16("permissions"), reader.text16("description"))
        for _ in range(reader.count32("roles", 8))
    ]


# --- ACLs ---


def encode_acl(acl: AclDescription) -> bytes:
    flags = bytes((acl.exists, acl.public, acl.default_public))
    return frame(Opcode.ACL_GET, text16(acl.topic) + flags + texts16(acl.users) + texts16(acl.roles))


def decode_acl(payload: bytes) -> AclDescription:
    reader = ByteReader(payload)
    topic, exists, public = reader.text16("topic"), reader.boolean("exists"), reader.boolean("public")
    default_public = reader.boolean("default public")
    return AclDescription(topic, exists, public, reader.texts16("users"), reader.texts16("roles"), default_public)


def encode_acls(acls: Sequence[AclDescription], default_public: bool) -> bytes:
    encoded = [
        text16(acl.topic) + bytes((acl.exists, acl.public)) + texts16(acl.users) + texts16(acl.roles) for acl in acls
    ]
    return frame(Opcode.ACL_LIST, U32.pack(len(acls)) + b"".join(encoded) + bytes((default_public,)))


def decode_acls(payload: bytes) -> list[AclDescription]:
    reader = ByteReader(payload)
    return [
        AclDescription(
            reader.text16("topic"),
            reader.boolean("exists"),
            reader.boolean("public"),
            reader.texts16("users"),
            reader.texts16("roles"),
        )
        for _ in range(reader.count32("ACLs", 12))
    ]


# --- the audit trail ---


def encode_audit(events: Sequence[AuditRecord], total: int, more: bool) -> bytes:
    encoded = [blob32(_event(event)) for event in events]
    return frame(Opcode.AUDIT_QUERY, U32.pack(len(events)) + b"".join(encoded) + I32.pack(total) + bytes((more,)))


def _event(event: AuditRecord) -> bytes:
    texts = (event.type, event.user, event.client_ip, event.resource, event.action, event.result, event.node)
    details = [text16(name) + text16(value) for name, value in event.details.items()]
    return b"".join((text16(event.id), I64.pack(event.ts_ms), *map(text16, texts), U32.pack(len(details)), *details))


def decode_audit(payload: bytes) -> AuditRecords:
    reader = ByteReader(payload)
    events = [_read_event(ByteReader(reader.blob32("event"))) for _ in range(reader.count32("events", 4))]
    return AuditRecords(events, reader.i32("total"), reader.boolean("more"))


def _read_event(reader: ByteReader) -> AuditRecord:
    event_id, ts_ms = reader.text16("id"), reader.i64("time")
    texts = [reader.text16(name) for name in ("type", "user", "client", "resource", "action", "result", "node")]
    details = {}
    for _ in range(reader.count32("details", 4)):
        name = reader.text16("name")
        details[name] = reader.text16("value")
    kind, user, client_ip, resource, action, result, node = texts
    return AuditRecord(event_id, ts_ms, kind, user, client_ip, resource, action, result, node, details)


def encode_audit_exported(form: str, data: bytes) -> bytes:
    return frame(Opcode.AUDIT_EXPORT, text16(form) + blob32(data))


def decode_audit_exported(payload: bytes) -> bytes:
    reader = ByteReader(payload)
    reader.text16("format")
    return reader.blob32("events")


# --- the cluster ---


def encode_cluster_status(state: ClusterState) -> bytes:
    nodes = [text16(node) + text16(address) + text16(condition) for node, address, condition in state.nodes]
    counts = (state.topics, state.partitions, state.partitions_failed)
    return frame(
        Opcode.CLUSTER_STATUS,
        b"".join((text16(state.name), text16(state.leader), U32.pack(len(nodes)), *nodes, *map(U32.pack, counts))),
    )


def decode_cluster_status(payload: bytes) -> ClusterState:
    reader = ByteReader(payload)
    name, leader = reader.text16("cluster"), reader.text16("leader")
    nodes = [
        (reader.text16("node"), reader.text16("address"), reader.text16("state"))
        for _ in range(reader.count32("nodes", 6))
    ]
    return ClusterState(
        name, leader, nodes, reader.u32("topics"), reader.u32("partitions"), reader.u32("failed partitions")
    )

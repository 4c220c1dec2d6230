"""FlyMQ replies about users, roles, ACLs, the audit trail and the cluster, both ways. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.protocols.bytes import I32, I64, U16, U32, ByteReader, blob32, text8, text16, texts16
from penstock.protocols.flymq.access.messages import (
    AclDescription,
    AuditRecord,
    AuditRecords,
    ClusterState,
    Identity,
    RoleDescription,
    UserDescription,
)
from penstock.protocols.flymq.limits import REPLY_ITEMS_MAX
from penstock.protocols.flymq.wire import Opcode, counted_rows, frame

_REFUSAL_INDENT = b"  "
"""Begins the reason of a refused login where deployed clients read it, if the peer's dialect is not known. The contract's reader takes
it for the length of a role."""

# --- who is asking ---


def encode_authenticated(user: str, roles: Sequence[str], *, native: bool | None) -> bytes:
    """Encode an accepted login in the deployed layout, in the contract's, or (None) so that readers of both take it for success.

    The last is the contract's layout without the user's name, which the client knows. Deployed clients read an empty name, no roles,
    and an error text as long as there are roles, which they ignore but decode as UTF-8; so only ASCII roles are listed.
    """
    if native is None:
        user, roles = "", [role for role in roles if role.isascii()]
    if native:
        payload = b"\x01" + text16(user) + U32.pack(len(roles)) + b"".join(map(text8, roles)) + text16("")
    else:
        payload = b"\x01" + text16("") + text16(user) + texts16(roles)
    return frame(Opcode.AUTH_RESPONSE, payload)


def encode_not_authenticated(reason: str, *, native: bool | None) -> bytes:
    """Encode a refused login in the deployed layout, in the contract's, or (None) so that readers of both find the reason."""
    nobody = text16("") + U32.pack(0)
    if native is None:
        payload = text16(reason) + U32.pack(0) + _refusal_tail(reason)
    else:
        payload = nobody + text16(reason) if native else text16(reason) + nobody
    return frame(Opcode.AUTH_RESPONSE, b"\x00" + payload)


def _refusal_tail(reason: str) -> bytes:
    """Encode the end of a refused login that both layouts read: an indented reason, or a number of roles and that many roles.

    The indent is the length of the first role, which zeros fill up; more zeros are the other roles, all empty.
    """
    text = _REFUSAL_INDENT + reason.encode()
    first_role_bytes = int.from_bytes(_REFUSAL_INDENT)
    roles_bytes = len(_REFUSAL_INDENT) + first_role_bytes + U16.size * (len(text) - 1)
    return U16.pack(len(text)) + text.ljust(roles_bytes, b"\0")


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
    """Encode the WHOAMI reply. No user: nobody has logged in.

    As many empty roles follow as there are roles, because deployed Go clients read one-byte lengths and an error text after the roles:
    to them each role is an empty one (the upper half of its length) and the role, and the first of the empty roles is no error.
    """
    padded = [*roles, *[""] * len(roles)]
    return frame(Opcode.WHOAMI, bytes((bool(user),)) + text16(user) + texts16(padded) + texts16(permissions))


def decode_identity(payload: bytes) -> Identity | None:
    """Return None if nobody has logged in."""
    reader = ByteReader(payload)
    authenticated = reader.boolean("authenticated")
    user, roles = reader.text16("user"), [role for role in reader.texts16("roles", REPLY_ITEMS_MAX) if role]
    identity = Identity(user, roles, reader.texts16("permissions", REPLY_ITEMS_MAX))
    return identity if authenticated else None


# --- users and roles ---


def encode_changed(opcode: int, name: str) -> bytes:
    """What was asked for is done: a bool and the name of what it was done to."""
    return frame(opcode, b"\x01" + text16(name))


def encode_user(opcode: int, user: UserDescription) -> bytes:
    return frame(opcode, _user(user))


def encode_users(users: Iterable[UserDescription]) -> bytes:
    return frame(Opcode.USER_LIST, counted_rows(Opcode.USER_LIST, map(_user, users)))


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
    return [_read_user(reader) for _ in range(reader.count32("users", 27, REPLY_ITEMS_MAX))]


def _read_user(reader: ByteReader) -> UserDescription:
    return UserDescription(
        reader.text16("user"),
        reader.texts16("roles", REPLY_ITEMS_MAX),
        reader.texts16("permissions", REPLY_ITEMS_MAX),
        reader.boolean("enabled"),
        reader.i64("created"),
        reader.i64("updated"),
    )


def encode_roles(roles: Iterable[RoleDescription]) -> bytes:
    rows = (text16(each.role) + texts16(each.permissions) + text16(each.description) for each in roles)
    return frame(Opcode.ROLE_LIST, counted_rows(Opcode.ROLE_LIST, rows))


def decode_roles(payload: bytes) -> list[RoleDescription]:
    reader = ByteReader(payload)
    return [
        RoleDescription(
            reader.text16("role"), reader.texts16("permissions", REPLY_ITEMS_MAX), reader.text16("description")
        )
        for _ in range(reader.count32("roles", 8, REPLY_ITEMS_MAX))
    ]


# --- ACLs ---


def encode_acl(acl: AclDescription) -> bytes:
    flags = bytes((acl.exists, acl.public, acl.default_public))
    return frame(Opcode.ACL_GET, text16(acl.topic) + flags + texts16(acl.users) + texts16(acl.roles))


def decode_acl(payload: bytes) -> AclDescription:
    reader = ByteReader(payload)
    topic, exists, public = reader.text16("topic"), reader.boolean("exists"), reader.boolean("public")
    default_public = reader.boolean("default public")
    return AclDescription(
        topic,
        exists,
        public,
        reader.texts16("users", REPLY_ITEMS_MAX),
        reader.texts16("roles", REPLY_ITEMS_MAX),
        default_public,
    )


def encode_acls(acls: Iterable[AclDescription], default_public: bool) -> bytes:
    rows = (
        text16(acl.topic) + bytes((acl.exists, acl.public)) + texts16(acl.users) + texts16(acl.roles) for acl in acls
    )
    return frame(Opcode.ACL_LIST, counted_rows(Opcode.ACL_LIST, rows) + bytes((default_public,)))


def decode_acls(payload: bytes) -> list[AclDescription]:
    reader = ByteReader(payload)
    return [
        AclDescription(
            reader.text16("topic"),
            reader.boolean("exists"),
            reader.boolean("public"),
            reader.texts16("users", REPLY_ITEMS_MAX),
            reader.texts16("roles", REPLY_ITEMS_MAX),
        )
        for _ in range(reader.count32("ACLs", 12, REPLY_ITEMS_MAX))
    ]


# --- the audit trail ---


def encode_audit(events: Iterable[AuditRecord], total: int, more: bool) -> bytes:
    rows = counted_rows(Opcode.AUDIT_QUERY, (blob32(_event(event)) for event in events))
    return frame(Opcode.AUDIT_QUERY, rows + I32.pack(total) + bytes((more,)))


def _event(event: AuditRecord) -> bytes:
    texts = (event.type, event.user, event.client_ip, event.resource, event.action, event.result, event.node)
    details = [text16(name) + text16(value) for name, value in event.details.items()]
    return b"".join((text16(event.id), I64.pack(event.ts_ms), *map(text16, texts), U32.pack(len(details)), *details))


def decode_audit(payload: bytes) -> AuditRecords:
    reader = ByteReader(payload)
    events = [
        _read_event(ByteReader(reader.blob32("event"))) for _ in range(reader.count32("events", 4, REPLY_ITEMS_MAX))
    ]
    return AuditRecords(events, reader.i32("total"), reader.boolean("more"))


def _read_event(reader: ByteReader) -> AuditRecord:
    event_id, ts_ms = reader.text16("id"), reader.i64("time")
    texts = [reader.text16(name) for name in ("type", "user", "client", "resource", "action", "result", "node")]
    details = {}
    for _ in range(reader.count32("details", 4, REPLY_ITEMS_MAX)):
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
        for _ in range(reader.count32("nodes", 6, REPLY_ITEMS_MAX))
    ]
    return ClusterState(
        name, leader, nodes, reader.u32("topics"), reader.u32("partitions"), reader.u32("failed partitions")
    )

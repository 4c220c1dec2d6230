"""What FlyMQ requests about users, roles, ACLs, the audit trail and the cluster do. The rest is in `operations`, which this extends."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.broker.access import Principal
from penstock.broker.acls import AclInfo
from penstock.broker.audit import EVENTS_MAX, LIMIT_DEFAULT, AuditEvent, AuditPage, AuditQuery
from penstock.broker.users import UserInfo
from penstock.errors import InvalidRequest
from penstock.protocols.flymq.access.messages import (
    AclDelete,
    AclDescription,
    AclGet,
    AclList,
    AclSet,
    AuditExport,
    AuditQueryRequest,
    AuditRecord,
    ClusterJoin,
    ClusterLeave,
    ClusterState,
    ClusterStatusRequest,
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
)
from penstock.protocols.flymq.access.replies import (
    encode_acl,
    encode_acls,
    encode_audit,
    encode_audit_exported,
    encode_changed,
    encode_cluster_status,
    encode_roles,
    encode_user,
    encode_users,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.protocols.flymq.operations import Node
    from penstock.workers import Worker

REPLY_BYTES_MAX: Final = 16 << 20
"""Of the events in one reply: half of what a frame holds, because an exported event takes more than a stored one."""
EVENT_FIXED_BYTES: Final = 256
INT32_MAX: Final = (1 << 31) - 1
_CSV_COLUMNS: Final = ("id", "ts_ms", "type", "user", "client_ip", "resource", "action", "result", "node", "details")
_DEPLOYED_CSV_HEADER: Final = [
    "ID",
    "Timestamp",
    "Type",
    "User",
    "ClientIP",
    "Resource",
    "Action",
    "Result",
    "NodeID",
    "Details",
]


class Caller(NamedTuple):
    """Who asks whom, and what this node is called."""

    broker: Broker
    principal: Principal
    node: Node
    native: bool | None
    """Whether the peer is a deployed client; None while nothing it sent tells."""
    worker: Worker
    """Runs what takes too long for the event loop."""


# --- users and roles ---


async def _create_user(caller: Caller, opcode: int, body: UserCreate) -> bytes:
    created = await caller.broker.users.create_user(caller.principal, body.user, body.password, body.roles)
    return encode_user(opcode, UserDescription(created.name, list(created.roles), [], created.enabled, 0, 0))


async def _update_user(caller: Caller, opcode: int, body: UserUpdate) -> bytes:
    if body.password:
        raise InvalidRequest(
            "USER_UPDATE changes roles and whether a user is enabled; PASSWORD_CHANGE changes a password"
        )
    await caller.broker.users.update_user(caller.principal, body.user, body.roles, body.enabled)
    return encode_changed(opcode, body.user)


async def _delete_user(caller: Caller, opcode: int, body: UserDelete) -> bytes:
    await caller.broker.users.delete_user(caller.principal, body.user)
    return encode_changed(opcode, body.user)


def _list_users(caller: Caller, opcode: int, body: UserList) -> bytes:
    users = caller.broker.users.list_users(caller.principal)
    return encode_users(_described(user, permissions=()) for user in users)


def _get_user(caller: Caller, opcode: int, body: UserGet) -> bytes:
    user = caller.broker.users.get_user(caller.principal, body.user)
    return encode_user(opcode, _described(user, permissions=user.permissions))


def _described(user: UserInfo, permissions: Sequence[str]) -> UserDescription:
    times_s = (user.created_ms // 1000, user.updated_ms // 1000)
    return UserDescription(user.name, list(user.roles), list(permissions), user.enabled, *times_s)


async def _change_password(caller: Caller, opcode: int, body: PasswordChange) -> bytes:
    users, principal = caller.broker.users, caller.principal
    if body.user in ("", principal.name) and not principal.trusted:
        await users.change_own_password(principal, body.old_password, body.password)
    else:
        await users.set_password(principal, body.user, body.password)
    return encode_changed(opcode, body.user)


def _list_roles(caller: Caller, opcode: int, body: RoleList) -> bytes:
    roles = caller.broker.users.list_roles(caller.principal)
    return encode_roles(RoleDescription(role.name, list(role.permissions), role.description) for role in roles)


async def _set_role(caller: Caller, opcode: int, body: RoleSet) -> bytes:
    await caller.broker.users.set_role(caller.principal, body.role, body.permissions, body.description)
    return encode_changed(opcode, body.role)


async def _delete_role(caller: Caller, opcode: int, body: RoleDelete) -> bytes:
    await caller.broker.users.delete_role(caller.principal, body.role)
    return encode_changed(opcode, body.role)


# --- ACLs ---


async def _set_acl(caller: Caller, opcode: int, body: AclSet) -> bytes:
    acls = caller.broker.acls
    await acls.set_acl(caller.principal, body.topic, public=body.public, users=body.users, roles=body.roles)
    return encode_changed(opcode, body.topic)


def _get_acl(caller: Caller, opcode: int, body: AclGet) -> bytes:
    acl = caller.broker.acls.get_acl(caller.principal, body.topic)
    return encode_acl(_acl(acl, default_public=not acl.exists and caller.broker.acls.default_public))


async def _delete_acl(caller: Caller, opcode: int, body: AclDelete) -> bytes:
    await caller.broker.acls.delete_acl(caller.principal, body.topic)
    return encode_changed(opcode, body.topic)


def _list_acls(caller: Caller, opcode: int, body: AclList) -> bytes:
    acls = caller.broker.acls.list_acls(caller.principal)
    return encode_acls(map(_acl, acls), caller.broker.acls.default_public)


def _acl(acl: AclInfo, *, default_public: bool = False) -> AclDescription:
    return AclDescription(acl.topic, acl.exists, acl.public, list(acl.users), list(acl.roles), default_public)


# --- the audit trail ---


async def _query_audit(caller: Caller, opcode: int, body: AuditQueryRequest) -> bytes:
    page = await caller.broker.audit.query(caller.principal, _query(body, LIMIT_DEFAULT), caller.worker)
    events = _fitting(page)
    more = max(body.offset, 0) + len(events) < page.total
    return encode_audit(map(_record, events), min(page.total, INT32_MAX), more)


async def _export_audit(caller: Caller, opcode: int, body: AuditExport) -> bytes:
    if body.form not in ("json", "csv"):
        raise InvalidRequest(f"events are exported as json or csv, not as {body.form!r}")
    page = await caller.broker.audit.query(caller.principal, _query(body.query, EVENTS_MAX), caller.worker)
    events = _fitting(page)
    # The contract has no audit trail: who asks for it and is not one of ours is a deployed client.
    native = not body.own_client if caller.native is None else caller.native
    if body.form == "csv":
        data = _csv(events, native=native)
    elif native:
        data = msgspec.json.format(msgspec.json.encode([_deployed_event(event) for event in events]), indent=2)
    else:
        data = msgspec.json.encode([_record(event) for event in events])
    return encode_audit_exported(body.form, data)


def _query(body: AuditQueryRequest, limit_default: int) -> AuditQuery:
    return AuditQuery(
        start_ms=body.start_s * 1000,
        # To the end of that second.
        end_ms=body.end_s * 1000 + 999 if body.end_s else 0,
        types=body.types,
        user=body.user,
        resource=body.resource,
        result=body.result,
        search=body.search,
        limit=body.limit if body.limit > 0 else limit_default,
        skip=max(body.offset, 0),
    )


def _fitting(page: AuditPage) -> list[AuditEvent]:
    """The newest events that a reply holds."""
    size = 0
    for row, event in enumerate(page.events):
        texts = (event.type, event.user, event.client_ip, event.resource, event.action, *event.details.values())
        size += EVENT_FIXED_BYTES + 2 * sum(len(text.encode()) for text in texts)
        if size > REPLY_BYTES_MAX:
            return page.events[:row]
    return page.events


def _record(event: AuditEvent) -> AuditRecord:
    return AuditRecord(
        event.id,
        event.ts_ms,
        event.type,
        event.user,
        event.client_ip,
        event.resource,
        event.action,
        event.result,
        event.node,
        event.details,
    )


def _deployed_event(event: AuditEvent) -> dict[str, object]:
    """Name and order the fields of an exported event as deployed brokers do."""
    return {
        "id": event.id,
        "timestamp": _time(event),
        "type": event.type,
        "user": event.user,
        "client_ip": event.client_ip,
        "resource": event.resource,
        "action": event.action,
        "result": event.result,
        "details": event.details,
        "node_id": event.node,
    }


def _time(event: AuditEvent) -> datetime:
    return datetime.fromtimestamp(event.ts_ms / 1000, UTC)


def _csv(events: Sequence[AuditEvent], *, native: bool) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_DEPLOYED_CSV_HEADER if native else _CSV_COLUMNS)
    for event in events:
        row = {name: getattr(event, name) for name in _CSV_COLUMNS}
        row["details"] = msgspec.json.encode(event.details).decode()
        if native:
            row["ts_ms"] = f"{_time(event):%Y-%m-%dT%H:%M:%SZ}"
        writer.writerow(map(_harmless, row.values()))
    return text.getvalue().encode()


def _harmless(cell: object) -> object:
    """A spreadsheet takes a text that begins like this for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


# --- the cluster ---


def _join_cluster(caller: Caller, opcode: int, body: ClusterJoin) -> bytes:
    caller.broker.cluster.join(caller.principal, body.peer)


def _leave_cluster(caller: Caller, opcode: int, body: ClusterLeave) -> bytes:
    caller.broker.cluster.leave(caller.principal)


def _cluster_status(caller: Caller, opcode: int, body: ClusterStatusRequest) -> bytes:
    status = caller.broker.cluster.status(caller.principal)
    node = (caller.node.id, caller.node.address(), "degraded" if status.partitions_failed else "online")
    return encode_cluster_status(
        ClusterState(status.name, caller.node.id, [node], status.topics, status.partitions, status.partitions_failed)
    )


METHODS: Mapping[type, Callable[[Caller, int, Any], bytes | Coroutine[Any, Any, bytes]]] = {
    UserCreate: _create_user,
    UserUpdate: _update_user,
    UserDelete: _delete_user,
    UserList: _list_users,
    UserGet: _get_user,
    PasswordChange: _change_password,
    RoleList: _list_roles,
    RoleSet: _set_role,
    RoleDelete: _delete_role,
    AclSet: _set_acl,
    AclGet: _get_acl,
    AclDelete: _delete_acl,
    AclList: _list_acls,
    AuditQueryRequest: _query_audit,
    AuditExport: _export_audit,
    ClusterJoin: _join_cluster,
    ClusterLeave: _leave_cluster,
    ClusterStatusRequest: _cluster_status,
}

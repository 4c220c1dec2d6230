"""Handlers of logins, users, roles, ACLs, the audit trail and API keys."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock.broker.access.api_keys import DEFAULT_ROLES
from penstock.broker.access.audit import EVENTS_MAX, LIMIT_DEFAULT, AuditEvent, AuditPage
from penstock.broker.access.audit import AuditQuery as BrokerQuery
from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.access.users import UserInfo
from penstock.errors import AuthenticationFailed, InvalidRequest
from penstock.protocols.flymq.operations import access as op
from penstock.protocols.flymq.server.dispatch import Caller, Frame, handles

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


# --- logins ---


@handles(op.Auth, on_every_node=True)
async def authenticate(caller: Caller, request: op.Auth) -> Frame:
    native = caller.native
    if caller.principal.trusted:
        # Authentication is off here: deployed clients that have credentials send them all the same and need a yes.
        return op.encode_authenticated(request.user, [], native=native)
    users = caller.broker.users
    try:
        caller.principal = await users.authenticate(request.user, request.password, caller.principal.address)
    except AuthenticationFailed as error:
        return op.encode_not_authenticated(error.message, native=native)
    standing = users.standing(caller.principal)
    return op.encode_authenticated(standing.name, standing.roles, native=native)


@handles(op.Whoami, on_every_node=True)
def whoami(caller: Caller, request: op.Whoami) -> op.LoginState:
    if caller.principal == ANONYMOUS:
        return op.LoginState.of("", [], [])
    return op.LoginState.of(*caller.broker.users.standing(caller.principal))


# --- users and roles ---


@handles(op.UserCreate)
async def create_user(caller: Caller, request: op.UserCreate) -> op.UserDescription:
    created = await caller.broker.users.create_user(caller.principal, request.user, request.password, request.roles)
    return op.UserDescription(created.name, list(created.roles), [], created.enabled, 0, 0)


@handles(op.UserUpdate)
async def update_user(caller: Caller, request: op.UserUpdate) -> op.Changed:
    if request.password:
        raise InvalidRequest(
            "USER_UPDATE changes roles and whether a user is enabled; PASSWORD_CHANGE changes a password"
        )
    await caller.broker.users.update_user(caller.principal, request.user, request.roles, request.enabled)
    return op.Changed(True, request.user)


@handles(op.UserDelete)
async def delete_user(caller: Caller, request: op.UserDelete) -> op.Changed:
    await caller.broker.users.delete_user(caller.principal, request.user)
    return op.Changed(True, request.user)


@handles(op.UserList)
def list_users(caller: Caller, request: op.UserList) -> Iterable[op.UserDescription]:
    return (_described(user, permissions=()) for user in caller.broker.users.list_users(caller.principal))


@handles(op.UserGet)
def get_user(caller: Caller, request: op.UserGet) -> op.UserDescription:
    user = caller.broker.users.get_user(caller.principal, request.user)
    return _described(user, permissions=user.permissions)


def _described(user: UserInfo, permissions: Sequence[str]) -> op.UserDescription:
    times_s = (user.created_ms // 1000, user.updated_ms // 1000)
    return op.UserDescription(user.name, list(user.roles), list(permissions), user.enabled, *times_s)


@handles(op.PasswordChange)
async def change_password(caller: Caller, request: op.PasswordChange) -> op.Changed:
    users, principal = caller.broker.users, caller.principal
    if request.user in ("", principal.name) and not principal.trusted:
        await users.change_own_password(principal, request.old_password, request.password)
    else:
        await users.set_password(principal, request.user, request.password)
    return op.Changed(True, request.user)


@handles(op.RoleList)
def list_roles(caller: Caller, request: op.RoleList) -> Iterable[op.RoleDescription]:
    roles = caller.broker.users.list_roles(caller.principal)
    return (op.RoleDescription(role.name, list(role.permissions), role.description) for role in roles)


@handles(op.RoleSet)
async def set_role(caller: Caller, request: op.RoleSet) -> op.Changed:
    await caller.broker.users.set_role(caller.principal, request.role, request.permissions, request.description)
    return op.Changed(True, request.role)


@handles(op.RoleDelete)
async def delete_role(caller: Caller, request: op.RoleDelete) -> op.Changed:
    await caller.broker.users.delete_role(caller.principal, request.role)
    return op.Changed(True, request.role)


# --- ACLs ---


@handles(op.AclSet)
async def set_acl(caller: Caller, request: op.AclSet) -> op.Changed:
    await caller.broker.acls.set_acl(
        caller.principal, request.topic, public=request.public, users=request.users, roles=request.roles
    )
    return op.Changed(True, request.topic)


@handles(op.AclGet)
def get_acl(caller: Caller, request: op.AclGet) -> op.AclDescription:
    acl = caller.broker.acls.get_acl(caller.principal, request.topic)
    default_public = not acl.exists and caller.broker.acls.default_public
    return op.AclDescription(acl.topic, acl.exists, acl.public, default_public, list(acl.users), list(acl.roles))


@handles(op.AclDelete)
async def delete_acl(caller: Caller, request: op.AclDelete) -> op.Changed:
    await caller.broker.acls.delete_acl(caller.principal, request.topic)
    return op.Changed(True, request.topic)


@handles(op.AclList)
def list_acls(caller: Caller, request: op.AclList) -> op.Acls:
    acls = caller.broker.acls
    entries = (
        op.AclEntry(each.topic, each.exists, each.public, list(each.users), list(each.roles))
        for each in acls.list_acls(caller.principal)
    )
    return op.Acls(entries, acls.default_public)


# --- API keys ---


@handles(op.KeyCreate)
async def create_key(caller: Caller, request: op.KeyCreate) -> str:
    return await caller.broker.api_keys.create(caller.principal, request.name, request.roles or DEFAULT_ROLES)


@handles(op.KeyList)
def list_keys(caller: Caller, request: op.KeyList) -> Iterable[op.KeyDescription]:
    keys = caller.broker.api_keys.names(caller.principal)
    return (op.KeyDescription(key.name, list(key.roles), key.created_ms, key.created_by) for key in keys)


@handles(op.KeyRevoke)
async def revoke_key(caller: Caller, request: op.KeyRevoke) -> bool:
    await caller.broker.api_keys.revoke(caller.principal, request.name)
    return True


# --- the audit trail ---


@handles(op.AuditQuery, large_read=True)
async def query_audit(caller: Caller, request: op.AuditQuery) -> op.AuditRecords:
    page = await caller.broker.audit.query(caller.principal, _query(request, LIMIT_DEFAULT), caller.worker)
    events = _fitting(page)
    more = max(request.offset, 0) + len(events) < page.total
    return op.AuditRecords([_record(event) for event in events], min(page.total, INT32_MAX), more)


@handles(op.AuditExport, large_read=True)
async def export_audit(caller: Caller, request: op.AuditExport) -> op.ExportedEvents:
    if request.form not in ("json", "csv"):
        raise InvalidRequest(f"events are exported as json or csv, not as {request.form!r}")
    page = await caller.broker.audit.query(caller.principal, _query(request.query, EVENTS_MAX), caller.worker)
    events = _fitting(page)
    # The contract has no audit trail: a client that asks for it and is not Penstock's is a deployed one.
    native = not request.own_client if caller.native is None else caller.native
    if request.form == "csv":
        data = _csv(events, native=native)
    elif native:
        data = msgspec.json.format(msgspec.json.encode([_deployed_event(event) for event in events]), indent=2)
    else:
        data = msgspec.json.encode([_record(event) for event in events])
    return op.ExportedEvents(request.form, data)


def _query(query: op.AuditQuery, limit_default: int) -> BrokerQuery:
    return BrokerQuery(
        start_ms=query.start_s * 1000,
        # To the end of that second.
        end_ms=query.end_s * 1000 + 999 if query.end_s else 0,
        types=query.types,
        user=query.user,
        resource=query.resource,
        result=query.result,
        search=query.search,
        limit=query.limit if query.limit > 0 else limit_default,
        skip=max(query.offset, 0),
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


def _record(event: AuditEvent) -> op.AuditRecord:
    return op.AuditRecord(**msgspec.structs.asdict(event))


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

"""Users, roles, ACLs, API keys, the audit trail, and what one principal may do and why."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final, Literal

import msgspec

from penstock.admin.api.records import TIME_MS_MAX
from penstock.admin.api.table import Call, Reply, Request, endpoint
from penstock.broker.access.acls import AclInfo, Acls
from penstock.broker.access.api_keys import DEFAULT_ROLES, ApiKeys
from penstock.broker.access.audit import SKIP_MAX, Audit, AuditQuery
from penstock.broker.access.directory import BUILT_IN_ROLES, PERMISSIONS
from penstock.broker.access.explaining import Explaining
from penstock.broker.access.users import UserInfo, Users
from penstock.broker.limits import ROLES_PER_PRINCIPAL_CEILING
from penstock.errors import (
    AuthenticationFailed,
    EntryNotFound,
    InvalidRequest,
    LimitExceeded,
    UserExists,
    UserNotFound,
)
from penstock.frame_bounds import ROLES_MAX

AUDIT_PAGE_MAX: Final = 1_000

Roles = Annotated[tuple[str, ...], msgspec.Meta(max_length=ROLES_PER_PRINCIPAL_CEILING)]
Entries = Annotated[tuple[str, ...], msgspec.Meta(max_length=ROLES_MAX)]
Permission = Literal["read", "write", "commit", "describe", "create", "delete", "admin"]


class User(Reply, frozen=True):
    name: str
    roles: list[str]
    permissions: list[str]
    enabled: bool
    created_ms: int
    updated_ms: int


class NewUser(Request, frozen=True):
    name: str
    password: str
    roles: Roles = ()


class UserChange(Request, frozen=True):
    roles: Roles | None = None
    """As they are if left out; a user has one role at least."""
    enabled: bool | None = None


class NewPassword(Request, frozen=True):
    password: str
    current_password: str = ""
    """Needed by users who change their own."""


class Role(Reply, frozen=True):
    name: str
    permissions: list[str]
    description: str
    built_in: bool
    """Neither changed nor deleted."""


class RoleDefinition(Request, frozen=True):
    permissions: Annotated[list[Permission], msgspec.Meta(max_length=len(PERMISSIONS))]
    description: str = ""


class Acl(Reply, frozen=True):
    pattern: str
    """A topic, or the beginning of names followed by `*`; groups after `group://`."""
    public: bool
    users: list[str]
    roles: list[str]


class AclDefinition(Request, frozen=True):
    public: bool = False
    users: Entries = ()
    """`name` may read and write; `name:read` and `name:write` only the one."""
    roles: Entries = ()


class Key(Reply, frozen=True):
    name: str
    roles: list[str]
    created_ms: int
    created_by: str


class NewKey(Request, frozen=True):
    name: str
    roles: Roles = DEFAULT_ROLES


class KeySecret(Reply, frozen=True):
    name: str
    key: str
    """Shown this once."""


class AuditFilter(Request, frozen=True):
    user: str = ""
    type: str = ""
    resource: str = ""
    result: str = ""
    search: str = ""
    start_ms: Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)] = 0
    end_ms: Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=AUDIT_PAGE_MAX)] = 100
    skip: Annotated[int, msgspec.Meta(ge=0, le=SKIP_MAX)] = 0


class Event(Reply, frozen=True):
    id: str
    ts_ms: int
    type: str
    user: str
    client_ip: str
    resource: str
    action: str
    result: str
    details: dict[str, str]


class EventPage(Reply, frozen=True):
    events: list[Event]
    """Newest first."""
    total: int


class RightsQuery(Request, frozen=True):
    topic: str = ""
    group: str = ""
    """With a topic: whether the principal may commit to this group in it."""


class Right(Reply, frozen=True):
    operation: Permission
    allowed: bool
    why: str


class Rights(Reply, frozen=True):
    principal: str
    roles: list[str]
    rights: list[Right]


# --- users ---


@endpoint("GET", "/users", asks=Users.list_users)
async def list_users(call: Call) -> list[User]:
    """List users, by name."""
    return [_user(each) for each in call.broker.users.list_users(call.principal)]


@endpoint(
    "POST",
    "/users",
    asks=Users.create_user,
    status=HTTPStatus.CREATED,
    errors=(InvalidRequest, UserExists, LimitExceeded),
)
async def create_user(call: Call, body: NewUser) -> User:
    """Create a user."""
    return _user(await call.broker.users.create_user(call.principal, body.name, body.password, body.roles))


@endpoint("GET", "/users/{user}", asks=Users.get_user, errors=(UserNotFound,))
async def get_user(call: Call) -> User:
    """Return one user."""
    return _user(call.broker.users.get_user(call.principal, call.path["user"]))


@endpoint("PATCH", "/users/{user}", asks=Users.update_user, errors=(InvalidRequest, UserNotFound))
async def update_user(call: Call, body: UserChange) -> User:
    """Change the roles of a user, or whether it may log in."""
    name = call.path["user"]
    await call.broker.users.update_user(call.principal, name, body.roles or (), body.enabled)
    return _user(call.broker.users.get_user(call.principal, name))


@endpoint(
    "PUT",
    "/users/{user}/password",
    asks=Users.set_password,
    errors=(InvalidRequest, UserNotFound, AuthenticationFailed),
)
async def set_password(call: Call, body: NewPassword) -> None:
    """Set a user's password. One's own needs the current one, and no other right."""
    users, principal, name = call.broker.users, call.principal, call.path["user"]
    if name == principal.name and not principal.trusted:
        await users.change_own_password(principal, body.current_password, body.password)
    else:
        await users.set_password(principal, name, body.password)


@endpoint("DELETE", "/users/{user}", asks=Users.delete_user, errors=(InvalidRequest, UserNotFound))
async def delete_user(call: Call) -> None:
    """Delete a user: not your own, nor the last administrator."""
    await call.broker.users.delete_user(call.principal, call.path["user"])


def _user(info: UserInfo) -> User:
    return User(info.name, list(info.roles), list(info.permissions), info.enabled, info.created_ms, info.updated_ms)


# --- roles ---


@endpoint("GET", "/roles", asks=Users.list_roles)
async def list_roles(call: Call) -> list[Role]:
    """List roles, the built-in ones first."""
    roles = call.broker.users.list_roles(call.principal)
    return [Role(each.name, list(each.permissions), each.description, each.name in BUILT_IN_ROLES) for each in roles]


@endpoint("PUT", "/roles/{role}", asks=Users.set_role, errors=(InvalidRequest, LimitExceeded))
async def set_role(call: Call, body: RoleDefinition) -> None:
    """Create a role, or replace one that is not built in."""
    await call.broker.users.set_role(call.principal, call.path["role"], body.permissions, body.description)


@endpoint("DELETE", "/roles/{role}", asks=Users.delete_role, errors=(InvalidRequest,))
async def delete_role(call: Call) -> None:
    """Delete a role that nobody has."""
    await call.broker.users.delete_role(call.principal, call.path["role"])


# --- ACLs ---


@endpoint("GET", "/acls", asks=Acls.list_acls)
async def list_acls(call: Call) -> list[Acl]:
    """List ACLs, by pattern."""
    return [_acl(each) for each in call.broker.acls.list_acls(call.principal)]


@endpoint("PUT", "/acls/{pattern}", asks=Acls.set_acl, errors=(InvalidRequest, LimitExceeded))
async def set_acl(call: Call, body: AclDefinition) -> Acl:
    """Set the ACL of a topic, of topics whose names begin alike, or of groups."""
    acls, pattern = call.broker.acls, call.path["pattern"]
    await acls.set_acl(call.principal, pattern, public=body.public, users=body.users, roles=body.roles)
    return _acl(acls.get_acl(call.principal, pattern))


@endpoint("DELETE", "/acls/{pattern}", asks=Acls.delete_acl, errors=(InvalidRequest,))
async def delete_acl(call: Call) -> None:
    """Delete an ACL. One that does not exist is no error."""
    await call.broker.acls.delete_acl(call.principal, call.path["pattern"])


def _acl(info: AclInfo) -> Acl:
    return Acl(info.topic, info.public, list(info.users), list(info.roles))


# --- API keys ---


@endpoint("GET", "/keys", asks=ApiKeys.names)
async def list_keys(call: Call) -> list[Key]:
    """List API keys without their secrets, by name."""
    keys = call.broker.api_keys.names(call.principal)
    return [Key(each.name, list(each.roles), each.created_ms, each.created_by) for each in keys]


@endpoint("POST", "/keys", asks=ApiKeys.create, status=HTTPStatus.CREATED, errors=(InvalidRequest, LimitExceeded))
async def create_key(call: Call, body: NewKey) -> KeySecret:
    """Create an API key. Its secret is in the reply, and cannot be shown again."""
    return KeySecret(body.name, await call.broker.api_keys.create(call.principal, body.name, body.roles))


@endpoint("DELETE", "/keys/{key}", asks=ApiKeys.revoke, errors=(EntryNotFound,))
async def revoke_key(call: Call) -> None:
    """Revoke an API key. Sessions that it began end."""
    await call.broker.api_keys.revoke(call.principal, call.path["key"])


# --- the audit trail, and rights ---


@endpoint("GET", "/audit", asks=Audit.query, errors=(InvalidRequest,))
async def query_audit(call: Call, query: AuditFilter) -> EventPage:
    """Return events of the audit trail, newest first."""
    page = await call.broker.audit.query(
        call.principal,
        AuditQuery(
            query.start_ms,
            query.end_ms,
            (query.type,) if query.type else (),
            query.user,
            query.resource,
            query.result,
            query.search,
            query.limit,
            query.skip,
        ),
    )
    return EventPage(
        [
            Event(
                each.id,
                each.ts_ms,
                each.type,
                each.user,
                each.client_ip,
                each.resource,
                each.action,
                each.result,
                each.details,
            )
            for each in page.events
        ],
        page.total,
    )


@endpoint("GET", "/principals/{principal}/rights", asks=Explaining.rights, errors=(InvalidRequest, UserNotFound))
async def get_rights(call: Call, query: RightsQuery) -> Rights:
    """Tell what a user or an API key (key:NAME) may do, everywhere or on one topic, and why."""
    explained = call.broker.explaining.rights(call.principal, call.path["principal"], query.topic, query.group)
    rights = [Right(each.operation.value, each.allowed, each.why) for each in explained.rights]
    return Rights(explained.principal, list(explained.roles), rights)

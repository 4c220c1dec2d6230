"""What FlyMQ says about users, roles, ACLs, the audit trail and the cluster: requests and the records in their replies."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

# --- requests ---


@dataclass(slots=True)
class UserRequest:
    """The record that USER_CREATE, USER_UPDATE and PASSWORD_CHANGE share."""

    user: str
    password: str = field(default="", repr=False)
    old_password: str = field(default="", repr=False)
    roles: list[str] = field(default_factory=list)
    enabled: bool | None = None
    """None where the request ends before the field."""


@dataclass(slots=True)
class UserCreate(UserRequest):
    pass


@dataclass(slots=True)
class UserUpdate(UserRequest):
    pass


@dataclass(slots=True)
class PasswordChange(UserRequest):
    pass


@dataclass(slots=True)
class UserDelete:
    user: str


@dataclass(slots=True)
class UserList:
    pass


@dataclass(slots=True)
class UserGet:
    user: str


@dataclass(slots=True)
class AclSet:
    topic: str
    public: bool
    users: list[str]
    roles: list[str]


@dataclass(slots=True)
class AclGet:
    topic: str


@dataclass(slots=True)
class AclDelete:
    topic: str


@dataclass(slots=True)
class AclList:
    pass


@dataclass(slots=True)
class RoleList:
    pass


@dataclass(slots=True)
class RoleSet:
    role: str
    permissions: list[str]
    description: str


@dataclass(slots=True)
class RoleDelete:
    role: str


@dataclass(slots=True)
class AuditQueryRequest:
    """Times in seconds, 0 for open; empty texts and lists match everything; a limit of 0 or less is the broker's own."""

    start_s: int = 0
    end_s: int = 0
    types: list[str] = field(default_factory=list)
    user: str = ""
    resource: str = ""
    result: str = ""
    search: str = ""
    limit: int = 0
    offset: int = 0


@dataclass(slots=True)
class AuditExport:
    query: AuditQueryRequest
    form: str
    """json or csv"""
    own_client: bool = False
    """Whether the client is one of ours, which deployed clients cannot say."""


@dataclass(slots=True)
class ClusterJoin:
    peer: str


@dataclass(slots=True)
class ClusterLeave:
    pass


@dataclass(slots=True)
class ClusterStatusRequest:
    pass


AccessBody = (
    UserCreate
    | UserUpdate
    | PasswordChange
    | UserDelete
    | UserList
    | UserGet
    | AclSet
    | AclGet
    | AclDelete
    | AclList
    | RoleList
    | RoleSet
    | RoleDelete
    | AuditQueryRequest
    | AuditExport
    | ClusterJoin
    | ClusterLeave
    | ClusterStatusRequest
)

# --- replies ---


class Identity(msgspec.Struct, frozen=True):
    """Who the broker takes a connection for."""

    user: str
    roles: list[str]
    permissions: list[str]


class UserDescription(msgspec.Struct, frozen=True):
    """A user; times in seconds since 1970."""

    user: str
    roles: list[str]
    permissions: list[str]
    enabled: bool
    created_s: int
    updated_s: int


class RoleDescription(msgspec.Struct, frozen=True):
    role: str
    permissions: list[str]
    description: str


class AclDescription(msgspec.Struct, frozen=True):
    """`topic` may end in `*`. An entry is a name, or a name with `:read` or `:write`."""

    topic: str
    exists: bool
    public: bool
    users: list[str]
    roles: list[str]
    default_public: bool = False
    """Whether topics without an ACL are public; told only where this one does not exist."""


class AuditRecord(msgspec.Struct, frozen=True):
    """One event of the audit trail."""

    id: str
    ts_ms: int
    type: str
    user: str
    client_ip: str
    resource: str
    action: str
    result: str
    node: str
    details: dict[str, str]


class AuditRecords(msgspec.Struct, frozen=True):
    """A page of events, newest first; `total` matched."""

    events: list[AuditRecord]
    total: int
    more: bool


class ClusterState(msgspec.Struct, frozen=True):
    """The cluster and its nodes (id, address, state), and how many topics and partitions it has."""

    name: str
    leader: str
    nodes: list[tuple[str, str, str]]
    topics: int
    partitions: int
    partitions_failed: int

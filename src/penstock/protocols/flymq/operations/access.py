"""Logins, users, roles, ACLs, the audit trail, and the API keys of other protocols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from penstock.frame_bounds import REPLY_ITEMS_MAX, ROLES_MAX
from penstock.protocols.bytes import U16, U32, ByteReader, text8, text16, texts16
from penstock.protocols.flymq.operations.layout import (
    I32,
    I64,
    TAIL,
    AtMost,
    Bool,
    Bytes,
    Flag,
    Label,
    Opaque,
    Sized,
    Str,
    Tail,
)
from penstock.protocols.flymq.operations.limits import ACL_USERS_MAX, AUDIT_TYPES_MAX, PERMISSIONS_MAX
from penstock.protocols.flymq.operations.operation import Operation, ReplyList
from penstock.protocols.flymq.operations.topics import Names
from penstock.protocols.flymq.wire import AUTH_RESPONSE, frame

Roles = Annotated[list[Str], AtMost(ROLES_MAX)]

# --- logins ---

_REFUSAL_INDENT = b"  "
"""Begins the reason of a refused login where deployed clients read it, if the peer's dialect is not known. The contract's reader takes
it for the length of a role."""


class Auth(
    Operation[
        Annotated[
            bytes,
            Opaque(
                "bool success, str error, str user, str* roles; "
                "to deployed clients: bool success, str user, s8* roles, str error"
            ),
        ]
    ],
    opcode=0x70,
    reply_opcode=AUTH_RESPONSE,
    repeatable=False,
):
    """Log in. To a client whose dialect is not known yet, the reply is one that readers of both layouts understand."""

    user: Str
    password: Str = field(repr=False)

    @classmethod
    def refusal(cls, violation: str) -> str:
        # The words of deployed brokers; deployed clients show them.
        return f"invalid auth request: {violation}"


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
    return frame(AUTH_RESPONSE, payload)


def encode_not_authenticated(reason: str, *, native: bool | None) -> bytes:
    """Encode a refused login in the deployed layout, in the contract's, or (None) so that readers of both find the reason."""
    nobody = text16("") + U32.pack(0)
    if native is None:
        payload = text16(reason) + U32.pack(0) + _refusal_tail(reason)
    else:
        payload = nobody + text16(reason) if native else text16(reason) + nobody
    return frame(AUTH_RESPONSE, b"\x00" + payload)


def _refusal_tail(reason: str) -> bytes:
    """Encode the end of a refused login that both layouts read: an indented reason, or a number of roles and that many roles.

    The indent is the length of the first role, which zeros fill up; more zeros are the other roles, all empty.
    """
    text = _REFUSAL_INDENT + reason.encode()
    first_role_bytes = int.from_bytes(_REFUSAL_INDENT)
    roles_bytes = len(_REFUSAL_INDENT) + first_role_bytes + U16.size * (len(text) - 1)
    return U16.pack(len(text)) + text.ljust(roles_bytes, b"\0")


def decode_authenticated(payload: bytes) -> bool:
    """Whether the credentials were accepted; both layouts agree in that."""
    return ByteReader(payload).boolean("success")


def decode_refusal(payload: bytes) -> str:
    """Why credentials were refused, in either layout: one begins with an empty user and no roles, the other with the reason."""
    reader = ByteReader(payload)
    reader.take(1, "success")
    first = reader.text16("user or reason")
    if first or not reader.remaining:
        return first
    reader.take(4, "roles")
    return reader.text16("reason") if reader.remaining else ""


@dataclass(slots=True)
class LoginState:
    authenticated: Bool
    user: Str
    roles: Names
    permissions: Names

    @classmethod
    def of(cls, user: str, roles: Sequence[str], permissions: Sequence[str]) -> LoginState:
        """No user: nobody has logged in.

        As many empty roles follow as there are roles, because deployed Go clients read one-byte lengths and an error text after the
        roles: to them each role is an empty one (the upper half of its length) and the role, and the first empty role is no error.
        """
        return cls(bool(user), user, [*roles, *[""] * len(roles)], list(permissions))


class Whoami(Operation[LoginState], opcode=0x72):
    """The user that the connection belongs to. As many empty roles follow the roles as there are."""


# --- users and roles ---


@dataclass(slots=True)
class Changed:
    done: Bool
    name: Str


@dataclass(frozen=True, slots=True)
class UserDescription:
    """A user; times in seconds since 1970."""

    user: Str
    roles: Names
    permissions: Names
    enabled: Bool
    created_s: I64
    updated_s: I64


@dataclass
class UserFields:
    """The record that USER_CREATE, USER_UPDATE and PASSWORD_CHANGE share."""

    user: Str
    password: Str = field(default="", repr=False)
    old_password: Str = field(default="", repr=False)
    roles: Roles = field(default_factory=list)
    enabled: Annotated[bool | None, Flag(), TAIL] = None


class UserCreate(UserFields, Operation[UserDescription], opcode=0x73, repeatable=False):
    """Create a user. The old password is not used; the reply has no permissions and no times."""


class UserDelete(Operation[Changed], opcode=0x74, repeatable=False):
    """Delete a user."""

    user: Str


class UserUpdate(UserFields, Operation[Changed], opcode=0x75):
    """Change a user's roles (none: they stay) or whether it may log in."""


class UserList(Operation[ReplyList[UserDescription]], opcode=0x76):
    """All users, without their permissions."""


class UserGet(Operation[UserDescription], opcode=0x77):
    """One user, with the permissions of all its roles. Times are in seconds since 1970."""

    user: Str


class PasswordChange(UserFields, Operation[Changed], opcode=0x7C, repeatable=False):
    """Change one's own password, with the old one, or, as an administrator, another user's."""


@dataclass(frozen=True, slots=True)
class RoleDescription:
    role: Str
    permissions: Names
    description: Str


class RoleList(Operation[ReplyList[RoleDescription]], opcode=0x7D):
    """All roles, the built-in ones first."""


class RoleSet(Operation[Changed], opcode=0xC1):
    """Create a role, or change one that is not built in."""

    role: Str
    permissions: Annotated[list[Str], AtMost(PERMISSIONS_MAX)]
    description: Str


class RoleDelete(Operation[Changed], opcode=0xC2):
    """Delete a role that no user has."""

    role: Str


# --- ACLs ---


class AclSet(Operation[Changed], opcode=0x78):
    """Set the ACL of a topic, or of all whose names begin so if it ends in `*`. An entry may end in `:read` or `:write`."""

    topic: Str
    public: Bool
    users: Annotated[list[Str], AtMost(ACL_USERS_MAX)]
    roles: Roles


@dataclass(frozen=True, slots=True)
class AclDescription:
    """`topic` may end in `*`. An entry is a name, or a name with `:read` or `:write`."""

    topic: Str
    exists: Bool
    public: Bool
    default_public: Bool
    """Whether topics without an ACL are public; told only if this one does not exist."""
    users: Names
    roles: Names


class AclGet(Operation[AclDescription], opcode=0x79):
    """The ACL of this very name. `default_public` says whether topics without an ACL are public, and only if there is none."""

    topic: Str


class AclDelete(Operation[Changed], opcode=0x7A):
    """Delete an ACL. That there is none is no error."""

    topic: Str


@dataclass(frozen=True, slots=True)
class AclEntry:
    topic: Str
    exists: Bool
    public: Bool
    users: Names
    roles: Names


@dataclass(slots=True)
class Acls:
    acls: Annotated[ReplyList[AclEntry], Label("ACLs")]
    default_public: Annotated[Bool, Tail(always_sent=True)] = False


class AclList(Operation[Acls], opcode=0x7B):
    """All ACLs, and whether topics without one are public."""


# --- the audit trail ---


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One event of the audit trail."""

    id: Str
    ts_ms: I64
    type: Str
    user: Str
    client_ip: Str
    resource: Str
    action: Str
    result: Str
    node: Str
    details: Annotated[dict[Str, Str], AtMost(REPLY_ITEMS_MAX)]


@dataclass(frozen=True, slots=True)
class AuditRecords:
    """A page of events, newest first; `total` matched."""

    events: Annotated[Sequence[Annotated[AuditRecord, Sized(AuditRecord)]], AtMost(REPLY_ITEMS_MAX)]
    total: I32
    more: Bool


class AuditQuery(Operation[AuditRecords], opcode=0x80, smaller="set a smaller limit"):
    """Events of the audit trail. Not in the contract; deployed clients and brokers have it."""

    start_s: I64 = 0
    """0 for open."""
    end_s: I64 = 0
    """0 for open."""
    types: Annotated[list[Str], AtMost(AUDIT_TYPES_MAX)] = field(default_factory=list)
    """Empty texts and lists match everything."""
    user: Str = ""
    resource: Str = ""
    result: Str = ""
    search: Str = ""
    limit: I32 = 0
    """Zero or less: the broker's own."""
    offset: I32 = 0


@dataclass(slots=True)
class ExportedEvents:
    form: Annotated[Str, Label("format")]
    data: Bytes


class AuditExport(Operation[ExportedEvents], opcode=0x81, smaller="set a smaller limit"):
    """Events of the audit trail as a file."""

    query: Annotated[AuditQuery, Sized(AuditQuery)]
    form: Annotated[Str, Label("format")]
    """json or csv."""
    own_client: Annotated[Bool, TAIL] = False
    """Whether the client is Penstock's, which deployed clients cannot say: files for those have the names of deployed brokers."""


# --- API keys ---


class KeyCreate(Operation[Str], opcode=0xC3, repeatable=False):
    """Make an API key for protocols that have no users; the reply is the key, which is never shown again."""

    name: Str
    roles: Roles
    """None: those that may publish and read."""


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """A key without its secret."""

    name: Str
    roles: Roles
    created_ms: I64
    created_by: Str


class KeyList(Operation[ReplyList[KeyDescription]], opcode=0xC4):
    """All API keys by name, without their secrets."""


class KeyRevoke(Operation[Bool], opcode=0xC5, repeatable=False):
    """Revoke an API key; sessions that use it lose their access."""

    name: Str

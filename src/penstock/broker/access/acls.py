"""ACLs: who may read and write which topics beyond what roles allow, and who may commit to which groups.

What an ACL means is in `directory` and `policy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.background import Background, run_to_completion
from penstock.broker.access.audit import Audit
from penstock.broker.access.checks import AccessPolicy, Operation, Principal, on_broker
from penstock.broker.access.directory import GROUP_ACL_PREFIX, Acl, Directory, check_principal_name, parse_entry
from penstock.broker.access.policy import AccessSettings
from penstock.broker.limits import BrokerLimits
from penstock.errors import InvalidRequest, LimitExceeded
from penstock.names import NAME_BYTES_MAX, is_internal, validate_group_name, validate_topic_name


class AclInfo(NamedTuple):
    topic: str
    """A topic's name, or the beginning of names followed by `*`; after `group://`, those of a group."""
    exists: bool
    public: bool
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


class Acls:
    def __init__(
        self,
        directory: Directory,
        settings: AccessSettings,
        limits: BrokerLimits,
        access: AccessPolicy,
        audit: Audit,
        background: Background,
    ) -> None:
        self.access = access
        self.background = background
        self.default_public = settings.default_public
        self._settings = settings
        self._limits = limits
        self._directory = directory
        self._audit = audit

    @on_broker(Operation.ADMIN)
    @run_to_completion
    async def set_acl(
        self,
        principal: Principal,
        topic: str,
        *,
        public: bool = False,
        users: Sequence[str] = (),
        roles: Sequence[str] = (),
    ) -> None:
        """Put an ACL in the place of the one there may be. The topic or group need not exist, nor need the users."""
        _check_pattern(topic)
        if topic.startswith(GROUP_ACL_PREFIX):
            _check_group_entries(topic, public, (*users, *roles))
        if public and not self._settings.allow_anonymous:
            raise InvalidRequest(
                "cannot make topic public because anonymous access is disabled in server configuration"
            )
        users, roles = tuple(dict.fromkeys(users)), tuple(dict.fromkeys(roles))
        if len(users) + len(roles) > self._limits.acl_entries_max:
            raise LimitExceeded(
                f"{len(users) + len(roles)} entries are too many for one ACL: use at most {self._limits.acl_entries_max}, put users "
                "into a role, or raise limits.acl_entries_max"
            )
        for entry in users:
            check_principal_name(parse_entry(entry)[0])
        self._directory.check_roles(parse_entry(entry)[0] for entry in roles)
        acls = self._directory.acls
        others = sum(len(acl.users) + len(acl.roles) for name, acl in acls.items() if name != topic)
        if others + len(users) + len(roles) > self._limits.acl_entries_total_max:
            raise LimitExceeded(
                f"all ACLs together have at most {self._limits.acl_entries_total_max} entries: delete some, use roles, or raise "
                "limits.acl_entries_total_max"
            )
        await acls.put(topic, Acl(public, users, roles))
        details = {"public": str(public).lower(), "users": ",".join(users), "roles": ",".join(roles)}
        self._audit.note(principal, "acl.set", topic, details=details)

    @on_broker(Operation.ADMIN)
    def get_acl(self, principal: Principal, topic: str) -> AclInfo:
        """The ACL of this very name, not what follows from others."""
        _check_pattern(topic)
        acl = self._directory.acls.get(topic)
        return AclInfo(topic, False, False) if acl is None else _info(topic, acl)

    @on_broker(Operation.ADMIN)
    @run_to_completion
    async def delete_acl(self, principal: Principal, topic: str) -> None:
        """One that does not exist is no error."""
        _check_pattern(topic)
        if self._directory.acls.get(topic) is not None:
            await self._directory.acls.delete(topic)
            self._audit.note(principal, "acl.delete", topic)

    @on_broker(Operation.ADMIN)
    def list_acls(self, principal: Principal) -> list[AclInfo]:
        """Every ACL, by name."""
        return [_info(name, acl) for name, acl in sorted(self._directory.acls.items())]


def _info(name: str, acl: Acl) -> AclInfo:
    return AclInfo(name, True, acl.public, acl.users, acl.roles)


def _check_group_entries(group: str, public: bool, entries: Sequence[str]) -> None:
    if public:
        raise InvalidRequest(f"ACL {group} cannot be public: name the users and roles that may commit to the group")
    with_right = [entry for entry in entries if parse_entry(entry)[0] != entry]
    if with_right:
        raise InvalidRequest(f"entry {with_right[0]!r} of ACL {group} has a right: name users and roles alone")


def _check_pattern(pattern: str) -> None:
    if pattern.startswith(GROUP_ACL_PREFIX):
        name = pattern.removeprefix(GROUP_ACL_PREFIX)
        if name != "*":
            validate_group_name(name.removesuffix("*"), NAME_BYTES_MAX)
        return
    # What is before the star may end anywhere in a name, also behind a slash, so a letter stands in for what follows.
    validate_topic_name(pattern.removesuffix("*") + "x" if pattern.endswith("*") else pattern)
    if is_internal(pattern):
        raise InvalidRequest(
            f"ACL {pattern} names internal topics, which ACLs cannot open: name topics without the prefix __"
        )

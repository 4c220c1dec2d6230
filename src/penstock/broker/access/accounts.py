"""Everything about who may do what, put together: the directory, the policy, users, ACLs and the audit trail."""

from __future__ import annotations

from penstock.background import Background
from penstock.broker.access.acls import Acls
from penstock.broker.access.audit import Audit
from penstock.broker.access.checks import AccessRules
from penstock.broker.access.directory import Directory
from penstock.broker.access.logins import Logins
from penstock.broker.access.passwords import Passwords
from penstock.broker.access.policy import AccessSettings, AuditedAccess, RolePolicy
from penstock.broker.access.throttle import Throttle
from penstock.broker.access.users import Users
from penstock.broker.limits import BrokerLimits
from penstock.clock import Clock
from penstock.log.api import Engine
from penstock.workers import WorkerPool


class Accounts:
    """`rules` decide in the place of users' roles and ACLs where they are given."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        rules: AccessRules | None,
        settings: AccessSettings,
        limits: BrokerLimits,
        background: Background,
        workers: WorkerPool,
    ) -> None:
        self.directory = Directory(engine, limits, background)
        self.rules = rules or RolePolicy(self.directory, settings)
        self.access = AuditedAccess(self.rules, self.directory.granted if rules is None else None)
        """The rules, with refusals noted in the audit trail."""
        self.audit = Audit(engine, clock, limits, self.access, workers, node=settings.node)
        self.access.on_denied = self.audit.note_denied
        self.acls = Acls(self.directory, settings, limits, self.access, self.audit, background)
        self.logins = Logins(Throttle(clock, limits), self.audit, limits.logins_in_flight_max)
        self.users = Users(
            self.directory,
            Passwords(cost=settings.password_cost, waiting_max=limits.password_checks_max),
            self.logins,
            clock,
            self.access,
            self.audit,
            background,
            development=settings.development,
        )

    async def start(self) -> None:
        await self.directory.start()
        await self.audit.start()

    async def catch_up(self) -> None:
        await self.directory.catch_up()

    async def close(self) -> None:
        self.users.close()
        await self.audit.close()
        await self.directory.close()

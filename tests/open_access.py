"""An access policy for tests that are not about access."""

from __future__ import annotations

from penstock.broker.access.checks import Grants, Operation, Principal, Resource


class OpenAccess:
    """Everything is allowed to everyone. Internal topics stay closed, as always."""

    def __init__(self) -> None:
        self.granted = Grants()

    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        pass

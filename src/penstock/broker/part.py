"""The parts of a broker: classes with operations of their own, over one engine."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.background import Background
from penstock.broker.access.audit import Audit
from penstock.broker.access.checks import AccessPolicy
from penstock.broker.limits import BrokerLimits
from penstock.broker.tracing import Tracing
from penstock.clock import Clock
from penstock.log.api import Engine
from penstock.workers import WorkerPool


@dataclass(frozen=True, slots=True)
class Context:
    """What all parts of one broker share."""

    engine: Engine
    clock: Clock
    limits: BrokerLimits
    access: AccessPolicy
    audit: Audit
    background: Background
    workers: WorkerPool
    tracing: Tracing | None = None


class Part:
    """Operations that are declared with what they need of the access policy, and that complete in the background of their broker."""

    def __init__(self, context: Context) -> None:
        self.access = context.access
        self.background = context.background
        self._engine = context.engine
        self._clock = context.clock
        self._limits = context.limits
        self._audit = context.audit
        self._workers = context.workers
        self._tracing = context.tracing

"""The broker as protocols see it: its parts, each with its operations.

Every operation takes the principal first and passes the one access check: what it needs of the access policy is declared above it. A
refusal is raised at the call, also where the rest of the operation is awaited. Nothing here knows a protocol, opens a socket or reads a
file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.background import Background
from penstock.broker.access.accounts import Accounts
from penstock.broker.access.api_keys import ApiKeys
from penstock.broker.access.checks import SYSTEM, AccessPolicy, AccessRules
from penstock.broker.access.explaining import Explaining
from penstock.broker.access.policy import AccessSettings
from penstock.broker.cache.cache import Cache
from penstock.broker.cluster import Cluster
from penstock.broker.deliveries.admin import SubscriptionAdmin
from penstock.broker.deliveries.deadletters import DeadLetters
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.subscriptions import Subscriptions
from penstock.broker.groups.coordinator import Coordinator
from penstock.broker.groups.lag import Lags, RecordAges
from penstock.broker.groups.offsets import Offsets
from penstock.broker.groups.operations import Groups
from penstock.broker.idempotence.producers import IdempotentProducers
from penstock.broker.leading import Leading
from penstock.broker.limits import BrokerLimits
from penstock.broker.part import Context
from penstock.broker.pipelines import Pipelines
from penstock.broker.records.operations import Records
from penstock.broker.records.producer import Producer
from penstock.broker.schedule.schedule import Schedule
from penstock.broker.schemas.operations import Schemas
from penstock.broker.schemas.registry import Registry
from penstock.broker.schemas.validation import Validation
from penstock.broker.snapshots import Snapshots
from penstock.broker.topics.operations import Topics
from penstock.broker.topics.settings import check_topic_config
from penstock.broker.tracing import Tracing
from penstock.broker.transactions.staging import Staging
from penstock.broker.transactions.transactions import Transactions
from penstock.clock import Clock
from penstock.log.api import Engine, TopicConfig
from penstock.workers import WorkerPool


class Broker:
    """One broker over an engine that is started before it and closed after it.

    Users' roles and ACLs decide who may do what, unless another policy is given.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        limits: BrokerLimits,
        access: AccessRules | None = None,
        access_settings: AccessSettings | None = None,
        topic_defaults: TopicConfig | None = None,
        deliveries: DeliveryPolicy | None = None,
        background: Background | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.tracing = tracing
        self.background = background = background or Background()
        self.workers = WorkerPool()
        """For work of this broker and its sessions that takes too long for the event loop."""
        self._accounts = Accounts(
            engine, clock, access, access_settings or AccessSettings(), limits, background, self.workers
        )
        self.access: AccessPolicy = self._accounts.access
        self.users = self._accounts.users
        self.acls = self._accounts.acls
        self.audit = self._accounts.audit
        self.logins = self._accounts.logins
        self.limits = limits
        self._engine = engine
        self._producer = Producer(engine, limits)
        self._offsets = Offsets(engine, clock, limits, background)
        registry = Registry(engine, clock, limits, background=background)
        self._validation = Validation(registry, background)
        self._stop_watching: list[Callable[[], None]] = []

        context = Context(engine, clock, limits, self.access, self.audit, background, self.workers, tracing)
        self.cluster = Cluster(context)
        self.snapshots = Snapshots(context)
        self.topics = Topics(
            context,
            registry,
            self._validation,
            rules=self._accounts.rules,
            defaults=topic_defaults or TopicConfig(),
        )
        self.records = Records(context, self._producer, self._validation)
        self.coordinator = Coordinator(context, self._offsets)
        self.schemas = Schemas(
            context, registry, self._validation, rules=self._accounts.rules, topic_changes=self.topics.changes
        )
        self.producers = IdempotentProducers(context, self._producer, self._validation)
        self.transactions = Transactions(context, self._producer, self._validation, self._offsets)
        self.staging = Staging(context, self._validation)
        self.schedule = Schedule(context, self._producer, self._validation)
        self.dead_letters = DeadLetters(
            context,
            self._producer,
            self._validation,
            ensure_topic=partial(self.topics.ensure, SYSTEM),
            delete_topic=self.topics.remove,
        )
        self.subscriptions = Subscriptions(
            context, self.dead_letters, policy=deliveries or DeliveryPolicy(), ensure_topic=self.topics.ensure
        )
        ages = RecordAges(clock)
        self.subscription_admin = SubscriptionAdmin(context, self.subscriptions, ages)
        self.groups = Groups(
            context, self._offsets, self.coordinator, self.subscriptions, Lags(engine, self._offsets, ages)
        )
        self.topics.on_deleted = (
            self._offsets.forget_topic,
            self.subscriptions.forget_topic,
            registry.forget_topic,
        )
        self.api_keys = ApiKeys(context, self._accounts.directory, self.logins)
        self.explaining = Explaining(
            self._accounts.directory,
            rules=self._accounts.rules,
            access=self.access,
            roles_of_key=self.api_keys.roles_of,
        )
        self.pipelines = Pipelines(context)
        self.cache = Cache(clock=clock, limits=limits, access=self.access)
        self.leading = Leading(
            engine,
            background,
            followed=(self._accounts, self.api_keys),
            tidied=(self._offsets, registry),
            led=(
                self.coordinator,
                self.producers,
                self.transactions,
                self.dead_letters,  # before anything is appended to the topics of dead letters
                self.staging,
                self.schedule,
                self.pipelines,
            ),
            sharded=self.subscriptions,
        )

    async def start(self) -> None:
        """Load what the broker keeps in the log. Raises where a part of that cannot be read."""
        check_topic_config(self.topics.defaults)
        await self.leading.start()
        for changed in (self._producer.topic_changed, self.subscriptions.topic_changed):
            self._stop_watching.append(self._engine.watch_topics(changed))

    async def close(self) -> None:
        """Take no more commits and wait for those in flight. Work in threads is ended."""
        while self._stop_watching:
            self._stop_watching.pop()()
        await self.leading.stop_watching()
        self.workers.close()
        await self.background.finish()
        await self.leading.close_led()
        await self._validation.close()
        await self.leading.close_followed()

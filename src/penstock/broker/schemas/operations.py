"""Schemas as protocols see them: every operation takes the principal first and passes the access check.

CREATE    a schema: register a version, set its compatibility      a topic: choose the schema its records must follow
DESCRIBE  a schema: its definitions, and whether a record fits
DELETE    a schema: one version or all of them
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter

from penstock.background import Background, run_to_completion
from penstock.broker.access.checks import (
    AccessPolicy,
    AccessRules,
    Operation,
    Principal,
    Resource,
    ResourceKind,
    is_allowed,
    on_broker,
    on_schema,
    on_topic,
)
from penstock.broker.keyed_locks import KeyedLocks
from penstock.broker.schemas.reference import LATEST, Reference, parse_reference
from penstock.broker.schemas.registry import Registry, SchemaVersion
from penstock.broker.schemas.validation import Validation
from penstock.errors import PenstockError, TopicNotFound
from penstock.log.api import Engine, TopicInfo


class Schemas:
    def __init__(
        self,
        registry: Registry,
        validation: Validation,
        *,
        engine: Engine,
        access: AccessPolicy,
        rules: AccessRules,
        background: Background,
        topic_changes: KeyedLocks[str],
    ) -> None:
        """`rules` answer what `access` does, without noting refusals in the audit trail."""
        self.access = access
        self.background = background
        self._rules = rules
        self._registry = registry
        self._validation = validation
        self._engine = engine
        self._topic_changes = topic_changes
        self.stats = validation.stats

    def exists(self, reference: str) -> bool:
        """Whether a text names a schema that is there: for a session to decide what to ask for next, which is then checked."""
        try:
            self._registry.resolve(parse_reference(reference))
        except PenstockError:
            return False
        return True

    # -- versions ---------------------------------------------------------------------------------------------------------

    @on_schema(Operation.CREATE)
    @run_to_completion
    async def register(
        self, principal: Principal, name: str, type_name: str, definition: str, compatibility: str | None = None
    ) -> SchemaVersion:
        """The next version, or the version that has this definition already. `compatibility` is kept for those to come.

        Raises SchemaInvalid, IncompatibleSchema, LimitExceeded.
        """
        return await self._registry.register(name, type_name, definition, compatibility)

    @on_schema(Operation.DESCRIBE)
    def get(self, principal: Principal, name: str, version: int = LATEST) -> SchemaVersion:
        """Raises SchemaNotFound."""
        return self._registry.get(name, version)

    @on_broker(Operation.DESCRIBE)
    def versions(self, principal: Principal, name: str | None = None) -> Iterator[SchemaVersion]:
        """Iterate over every version of one schema, or of all that this principal may know of, by name and number.

        To be taken without waiting in between.
        """
        return (
            version
            for each, versions in groupby(self._registry.versions(name), key=attrgetter("name"))
            if is_allowed(self._rules, principal, Operation.DESCRIBE, Resource(ResourceKind.SCHEMA, each))
            for version in versions
        )

    @on_schema(Operation.DELETE)
    @run_to_completion
    async def delete(self, principal: Principal, name: str, version: int = LATEST) -> None:
        """One version or all. Raises SchemaNotFound, and InvalidRequest where a topic is bound to it."""
        await self._registry.delete(name, version)

    @on_schema(Operation.DESCRIBE)
    async def validate(
        self, principal: Principal, name: str, value: bytes, version: int = LATEST, message: str = ""
    ) -> list[str]:
        """What is wrong with a record, in a few words each; nothing where it is what the schema says. Raises SchemaNotFound."""
        return await self._validation.faults(Reference(name, version, message), value)

    # -- topics -----------------------------------------------------------------------------------------------------------

    @on_topic(Operation.CREATE)
    @run_to_completion
    async def bind(self, principal: Principal, topic: str, reference: str | None) -> None:
        """From now on records of the topic must follow a schema ("orders", "orders:3"); None lifts that. Raises SchemaNotFound."""
        async with self._topic_changes.of(topic):
            info = self._topic(topic)
            if reference is None:
                await self._registry.bind(topic, info.id, None)
                return
            schema = parse_reference(reference)
            self._validation.check_reference(schema)
            await self._registry.bind(topic, info.id, schema)

    @on_topic(Operation.DESCRIBE)
    def bound_to(self, principal: Principal, topic: str) -> str | None:
        """The schema that the topic's records must follow."""
        reference = self._registry.bound.get(self._topic(topic).name)
        return None if reference is None else str(reference)

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> TopicInfo:
        info = self._engine.topics().get(name)
        if info is None:
            raise TopicNotFound(f"topic not found: {name}")
        return info

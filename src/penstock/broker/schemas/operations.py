"""Schemas as protocols see them: every operation takes the principal first and passes the access check.

CREATE    a schema: register a version, set its compatibility      a topic: choose the schema its records must follow
DESCRIBE  a schema: its definitions, and whether a record fits
DELETE    a schema: one version or all of them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter

from penstock.background import run_to_completion
from penstock.broker.access.checks import (
    AccessRules,
    Operation,
    Principal,
    Resource,
    ResourceKind,
    authorize,
    is_allowed,
    on_broker,
    on_schema,
    on_topic,
)
from penstock.broker.keyed_locks import KeyedLocks
from penstock.broker.part import Context, Part
from penstock.broker.schemas.bundling import Link
from penstock.broker.schemas.decoded import NOT_DECODED, Decoded
from penstock.broker.schemas.marks import MarkInvalid, header_mark, read_mark, unmarked
from penstock.broker.schemas.reference import LATEST, Compatibility, Reference, parse_reference
from penstock.broker.schemas.registry import Registry, SchemaVersion
from penstock.broker.schemas.validation import Validation
from penstock.errors import CorruptBlock, PenstockError, SchemaNotFound


class Schemas(Part):
    def __init__(
        self,
        context: Context,
        registry: Registry,
        validation: Validation,
        *,
        rules: AccessRules,
        topic_changes: KeyedLocks[str],
    ) -> None:
        """`rules` answer what `access` does, without noting refusals in the audit trail."""
        super().__init__(context)
        self._rules = rules
        self._registry = registry
        self._validation = validation
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
        self,
        principal: Principal,
        name: str,
        type_name: str,
        definition: str,
        compatibility: str | None = None,
        links: tuple[Link, ...] = (),
    ) -> SchemaVersion:
        """The next version, or the version that has this definition already. `compatibility` is kept for those to come.

        Raises SchemaInvalid, IncompatibleSchema, LimitExceeded.
        """
        self._check_links(principal, links)
        return await self._registry.register(name, type_name, definition, compatibility, links)

    def _check_links(self, principal: Principal, links: Iterable[Link]) -> None:
        """Raises AccessDenied for a reference to a schema that the principal may not see: its definition would be disclosed."""
        for each in links:
            authorize(self.access, principal, Operation.DESCRIBE, Resource(ResourceKind.SCHEMA, each.schema))

    @on_schema(Operation.DESCRIBE)
    def get(self, principal: Principal, name: str, version: int = LATEST) -> SchemaVersion:
        """Return one version; a number may be that of a soft-deleted one. Raises SchemaNotFound."""
        return self._registry.get(name, version)

    @on_broker(Operation.DESCRIBE)
    def versions(
        self, principal: Principal, name: str | None = None, *, deleted: bool = False
    ) -> Iterator[SchemaVersion]:
        """Iterate over every version of one schema, or of all that this principal may know of, by name and number.

        To be taken without waiting in between. `deleted`: those that are soft-deleted too.
        """
        return (
            version
            for each, versions in groupby(self._registry.versions(name, deleted=deleted), key=attrgetter("name"))
            if is_allowed(self._rules, principal, Operation.DESCRIBE, Resource(ResourceKind.SCHEMA, each))
            for version in versions
        )

    @on_schema(Operation.DELETE)
    @run_to_completion
    async def delete(self, principal: Principal, name: str, version: int = LATEST, *, soft: bool = False) -> None:
        """One version or all, for good or softly. Raises SchemaNotFound, and InvalidRequest where a topic is bound to it."""
        await self._registry.delete(name, version, soft=soft)

    @on_schema(Operation.DESCRIBE)
    async def validate(
        self, principal: Principal, name: str, value: bytes, version: int = LATEST, message: str = ""
    ) -> list[str]:
        """What is wrong with a record, in a few words each; nothing if it is what the schema says. Raises SchemaNotFound."""
        return await self._validation.faults(Reference(name, version, message), value)

    @on_schema(Operation.DESCRIBE)
    async def check(
        self,
        principal: Principal,
        name: str,
        type_name: str,
        definition: str,
        compatibility: str | None = None,
        version: int = LATEST,
        links: tuple[Link, ...] = (),
    ) -> list[str]:
        """What keeps a definition from being the version after one, in a few words each; nothing if it could be.

        Raises SchemaInvalid if it is no definition at all, SchemaNotFound for a version that is not there.
        """
        self._check_links(principal, links)
        return await self._registry.check(name, type_name, definition, compatibility, version, links)

    @on_schema(Operation.DESCRIBE)
    async def find(
        self, principal: Principal, name: str, type_name: str, definition: str, links: tuple[Link, ...] = ()
    ) -> SchemaVersion:
        """The version of a name that has a definition. Raises SchemaNotFound, SchemaInvalid."""
        self._check_links(principal, links)
        return await self._registry.find(name, type_name, definition, links)

    @on_schema(Operation.DESCRIBE)
    def referrers(self, principal: Principal, name: str, version: int) -> list[SchemaVersion]:
        """The versions that refer to one: those that this principal may know of."""
        return [
            each
            for each in self._registry.referrers(name, version)
            if is_allowed(self._rules, principal, Operation.DESCRIBE, Resource(ResourceKind.SCHEMA, each.name))
        ]

    @on_broker(Operation.DESCRIBE)
    def with_id(self, principal: Principal, registry_id: int) -> list[SchemaVersion]:
        """The versions that have a registry id, by name: those that this principal may know of. Raises SchemaNotFound."""
        found = [
            each
            for each in self._registry.with_id(registry_id)
            if is_allowed(self._rules, principal, Operation.DESCRIBE, Resource(ResourceKind.SCHEMA, each.name))
        ]
        if not found:
            raise SchemaNotFound(f"no schema has the id {registry_id}")
        return found

    @on_schema(Operation.DESCRIBE)
    def form(self, principal: Principal, name: str, version: int) -> bytes:
        """What is stored with a definition: of Protobuf, its descriptor. Raises SchemaNotFound."""
        return self._registry.resolve(Reference(name, version))[1].form

    @on_schema(Operation.DESCRIBE)
    def compatibility(self, principal: Principal, name: str) -> Compatibility | None:
        """The compatibility of later versions of a name, None if it was never set and there is no version."""
        return self._registry.compatibility(name)

    @on_schema(Operation.CREATE)
    @run_to_completion
    async def set_compatibility(self, principal: Principal, name: str, compatibility: str) -> None:
        """Say what later versions of a name must keep. Raises InvalidRequest, LimitExceeded."""
        await self._registry.set_compatibility(name, compatibility)

    # -- topics -----------------------------------------------------------------------------------------------------------

    @on_topic(Operation.CREATE)
    @run_to_completion
    async def bind(self, principal: Principal, topic: str, reference: str | None) -> None:
        """From now on records of the topic must follow a schema ("orders", "orders:3"); None lifts that. Raises SchemaNotFound."""
        async with self._topic_changes.of(topic):
            info = self._engine.topic(topic)
            if reference is None:
                await self._registry.bind(topic, info.id, None)
                return
            schema = parse_reference(reference)
            self._validation.check_reference(schema)
            await self._registry.bind(topic, info.id, schema)

    @on_topic(Operation.READ)
    async def decode(
        self,
        principal: Principal,
        topic: str,
        values: Sequence[bytes | None],
        headers: Sequence[bytes | None] | None = None,
    ) -> list[Decoded]:
        """Values of the topic's records as JSON, if it is bound to a schema.

        Each is read with the version that wrote it, if a header or a frame before the value says which, else with the version that the
        topic is bound to; but not Avro that any of several versions may have written.
        """
        bound = self._registry.bound.get(self._engine.topic(topic).name)
        if bound is None:
            return [NOT_DECODED] * len(values)
        from penstock.broker.schemas.decoding import Writing, decode_values  # by now imported, see Registry

        number, _ = self._registry.resolve(bound)
        frames, is_ambiguous = self._registry.frames(bound.name, number), self._registry.is_ambiguous(bound)
        writings: list[Writing | Decoded] = []
        for value, cell in zip(values, headers or [None] * len(values), strict=True):
            if value is None:
                writings.append(NOT_DECODED)
                continue
            path, written = None, bound._replace(version=number)
            try:
                mark = header_mark(cell)
                frame = frames.find(value) if mark is None else None
                if mark is not None:
                    written = read_mark(mark)
                    if written.name != bound.name:
                        raise MarkInvalid(
                            f"its header names the schema {written.name}, and the topic is bound to {bound.name}"
                        )
                    written = written._replace(message=written.message or bound.message)
                elif frame is not None:
                    written, path, value = (
                        written._replace(version=frame.version),
                        frame.message,
                        value[frame.size_bytes :],
                    )
                elif is_ambiguous:
                    written = bound
                    raise unmarked(bound.name, number)
                stored = self._registry.resolve(written)[1]
            except (MarkInvalid, CorruptBlock, SchemaNotFound) as error:
                writings.append(Decoded(None, str(written), str(error)))
                continue
            writings.append(Writing(value, stored, written.message, path, str(written)))
        return await self._workers.worker().run(partial(decode_values, writings))

    @on_topic(Operation.DESCRIBE)
    def bound_to(self, principal: Principal, topic: str) -> str | None:
        """The schema that the topic's records must follow."""
        reference = self._registry.bound.get(self._engine.topic(topic).name)
        return None if reference is None else str(reference)

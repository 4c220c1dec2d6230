"""The registry: schemas by name, each a row of versions, and which topic wants which; all of it in the table `__schemas`.

Versions of a name are numbered from 1 without gaps; a number is never used again, also after its version was deleted, so "orders-v3"
means one definition forever. What a name remembers beyond its versions (the last number, the compatibility) is its head. Each definition
has a number among all schemas too, its registry id, which Confluent framing carries: the same under every name that has the definition.
Ids are never used again either.

A version that is soft-deleted is left out of lists and comparisons, and is no longer the latest. Records that it wrote are still read, so
it is found by its number and its id until it is deleted for good.

A binding belongs to the topic that existed when it was made, told by the topic's id. A topic that is created together with its binding
has the binding written first, under an empty id: whichever of the two a crash leaves alone is completed or dropped at the next start.

Changes are made one after another. A definition is checked by a worker process before anything is written.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from operator import itemgetter
from typing import Final, cast

import msgspec

from penstock.background import Background
from penstock.broker.limits import BrokerLimits
from penstock.broker.schemas.bundling import REFERENCES_MAX, Link, bundled
from penstock.broker.schemas.entries import IDS_KEY, Binding, Entry, EntryKey, Head, Ids, Version, binding_key, head_key
from penstock.broker.schemas.marks import REGISTRY_ID_FIRST, REGISTRY_ID_MAX, Frames, Known
from penstock.broker.schemas.reference import (
    LATEST,
    TRANSITIVE,
    Compatibility,
    Reference,
    SchemaType,
    compatibility_mode,
    schema_type,
    validate_schema_name,
)
from penstock.broker.schemas.worker import CheckDefinition, Parsed, Refused, Worker
from penstock.broker.table import Table
from penstock.clock import Clock
from penstock.errors import (
    IncompatibleSchema,
    InvalidRequest,
    LimitExceeded,
    PenstockError,
    SchemaInvalid,
    SchemaNotFound,
)
from penstock.log.api import Engine, TopicInfo

SCHEMAS_TOPIC: Final = "__schemas"
DEFINITION_S_MAX: Final = 5.0
"""In processor time."""
"""For compiling a definition and comparing it with the version before it."""
_LIBRARIES: Final = "penstock.broker.schemas.kinds"
COMPATIBILITY_DEFAULT: Final[Compatibility] = "backward"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a schema, as it is shown."""

    name: str
    version: int
    type: SchemaType
    definition: str
    compatibility: Compatibility
    created_ms: int
    registry_id: int
    deleted: bool = False
    """Softly: it is not listed unless requested."""
    given: str = ""
    """As it was sent; `definition` has what it refers to in it."""
    links: tuple[Link, ...] = ()
    last_version: int = 0
    """The highest number that any version of the name was given, deleted ones included. Numbers are never given again."""

    @property
    def id(self) -> str:
        return schema_id(self.name, self.version)


def schema_id(name: str, version: int) -> str:
    return f"{name}-v{version}"


class _Schema:
    __slots__ = ("deleted", "frames", "head", "versions")

    def __init__(self) -> None:
        self.head = Head(0, COMPATIBILITY_DEFAULT)
        self.versions: dict[int, Version] = {}
        self.deleted: dict[int, Version] = {}
        """Softly."""
        self.frames: dict[int, Frames] = {}
        """By the version that is bound; made on demand."""

    def before(self, compatibility: Compatibility) -> list[Version]:
        """The versions that the next one must be compatible with, the latest first."""
        numbers = sorted(self.versions, reverse=True)
        return [self.versions[number] for number in (numbers if compatibility.endswith(TRANSITIVE) else numbers[:1])]

    @property
    def all_versions(self) -> dict[int, Version]:
        return self.versions | self.deleted


class Registry:
    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        limits: BrokerLimits,
        worker: Worker | None = None,
        background: Background | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._limits = limits
        self._worker = worker or Worker()
        self._schemas: dict[str, _Schema] = {}
        self._bindings: dict[str, Binding] = {}
        self.bound: dict[str, Reference] = {}
        """By topic, the schema that its records must follow."""
        self._size_bytes = 0
        self._last_id = REGISTRY_ID_FIRST - 1
        self._ids: dict[tuple[SchemaType, bytes], int] = {}
        """By kind and fingerprint: the ids of the definitions that there are."""
        self._with_id: dict[int, set[tuple[str, int]]] = {}
        """By id: names and versions."""
        self._changing = asyncio.Lock()
        self._table: Table[EntryKey, Entry] = Table(
            engine,
            SCHEMAS_TOPIC,
            EntryKey,
            cast(type[Entry], Entry),
            entries_max=2 * limits.schemas_max + limits.topics_max + 1,
            limit="limits.schemas_max",
            background=background,
            value_bytes_max=4 * limits.schema_bytes_max + 4096,
            on_change=self._changed,
        )

    async def start(self) -> None:
        await self._table.load()
        if self._schemas:
            await _import_libraries()

    async def catch_up(self) -> None:
        await self._table.catch_up()

    async def lead(self) -> None:
        """Complete and delete what a crash or another node has left."""
        if self._schemas:
            await self._give_ids()
        topics = self._engine.topics()
        for topic, binding in list(self._bindings.items()):
            info = topics.get(topic)
            if info is None or binding.topic_id not in ("", info.id):
                await self._table.delete(binding_key(topic))
            elif not binding.topic_id:
                await self._put_binding(topic, binding.reference, info.id)

    async def close(self) -> None:
        """Take no more changes, wait for those in flight, and end the worker."""
        await self._table.close()
        await self._worker.close()

    # -- looking ----------------------------------------------------------------------------------------------------------

    def resolve(self, reference: Reference) -> tuple[int, Version]:
        """The version that a reference means now; a number may be that of a soft-deleted one. Raises SchemaNotFound."""
        schema = self._schemas.get(reference.name)
        if schema is None or not (schema.versions if reference.version == LATEST else schema.all_versions):
            raise SchemaNotFound(f"schema not found: {reference.name}")
        number = reference.version if reference.version != LATEST else max(schema.versions)
        version = schema.versions.get(number) or schema.deleted.get(number)
        if version is None:
            raise SchemaNotFound(f"schema not found: {reference.name} v{number}")
        return number, version

    def has_version(self, name: str, version: int) -> bool:
        return name in self._schemas and version in self._schemas[name].all_versions

    def is_ambiguous(self, reference: Reference) -> bool:
        """Whether a record that does not say its version may be of several, as far as its bytes tell. Raises SchemaNotFound.

        JSON and Protobuf name their fields, by name or number. Avro bytes are read by the version that wrote them, or wrongly.
        """
        _, version = self.resolve(reference)
        return (
            reference.version == LATEST
            and version.type_ == "avro"
            and self._schemas[reference.name].head.last_version > 1
        )

    def get(self, name: str, version: int) -> SchemaVersion:
        number, found = self.resolve(Reference(name, version))
        return _shown(name, number, found, self._schemas[name].head)

    def versions(self, name: str | None, *, deleted: bool = False) -> Iterator[SchemaVersion]:
        """Iterate over every version of one name or of all, by name and number. To be taken without waiting in between.

        `deleted`: those that are soft-deleted too.
        """
        names = sorted(self._schemas) if name is None else [name] if name in self._schemas else []
        for each in names:
            schema = self._schemas[each]
            for number, version in sorted((schema.all_versions if deleted else schema.versions).items()):
                yield _shown(each, number, version, schema.head)

    def with_id(self, registry_id: int) -> list[SchemaVersion]:
        """The versions that have the definition of a registry id, by name. Empty if none has, or no longer."""
        return [self.get(name, number) for name, number in sorted(self._with_id.get(registry_id, ()))]

    def frames(self, name: str, version: int) -> Frames:
        """What marks records of a schema, as a topic that is bound to a version of it sees them."""
        schema = self._schemas[name]
        found = schema.frames.get(version)
        if found is None:
            kind = schema.all_versions[version].type_
            known = [
                Known(number, each.registry_id, each.crc64)
                for number, each in sorted(schema.all_versions.items())
                if each.type_ == kind
            ]
            found = schema.frames[version] = Frames(name, kind, known, version)
        return found

    # -- versions ---------------------------------------------------------------------------------------------------------

    async def register(
        self, name: str, type_name: str, given: str, compatibility: str | None, links: tuple[Link, ...] = ()
    ) -> SchemaVersion:
        validate_schema_name(name)
        kind = schema_type(type_name)
        mode = None if compatibility is None else compatibility_mode(compatibility)
        async with self._changing:
            text = self._bundled(kind, given, links)
            schema = self._schemas.get(name) or _Schema()
            head = schema.head if mode is None else msgspec.structs.replace(schema.head, compatibility=mode)
            number = next((n for n, each in schema.versions.items() if (each.type_, each.text) == (kind, text)), None)
            if number is None:
                parsed = await self._check(schema, head, kind, text, schema.before(head.compatibility))
                known = {(each.type_, each.fingerprint): n for n, each in schema.versions.items()}
                number = known.get((kind, parsed.fingerprint))
                if number is None:
                    version = Version(
                        kind,
                        text,
                        parsed.form,
                        parsed.cost,
                        parsed.fingerprint,
                        self._clock.now_ms(),
                        self._id_of(kind, parsed.fingerprint),
                        parsed.crc64,
                        given=given if links else "",
                        links=links,
                    )
                    number = await self._add(name, schema, head, version)
            current = self._schemas[name].head
            if current.compatibility != head.compatibility:
                await self._table.put(head_key(name), Head(current.last_version, head.compatibility))
            return self.get(name, number)

    async def check(
        self,
        name: str,
        type_name: str,
        given: str,
        compatibility: str | None,
        version: int = LATEST,
        links: tuple[Link, ...] = (),
    ) -> list[str]:
        """What keeps a definition from being the version after one of a name, the latest by default. Raises SchemaInvalid."""
        validate_schema_name(name)
        kind = schema_type(type_name)
        async with self._changing:
            text = self._bundled(kind, given, links)
            schema = self._schemas.get(name) or _Schema()
            mode = schema.head.compatibility if compatibility is None else compatibility_mode(compatibility)
            older = schema.before(mode) if version == LATEST else [self.resolve(Reference(name, version))[1]]
            try:
                await self._check(schema, Head(0, mode), kind, text, older)
            except IncompatibleSchema as error:
                return str(error).split("; ")
        return []

    async def find(self, name: str, type_name: str, given: str, links: tuple[Link, ...] = ()) -> SchemaVersion:
        """The version of a name that has a definition. Raises SchemaNotFound, SchemaInvalid."""
        kind = schema_type(type_name)
        self.resolve(Reference(name))
        async with self._changing:
            text = self._bundled(kind, given, links)
            parsed = await self._check(_Schema(), Head(0, "none"), kind, text, [])
            versions = self._schemas[name].versions.items()
            for number, each in sorted(versions):
                if (each.type_, each.fingerprint) == (kind, parsed.fingerprint):
                    return self.get(name, number)
        raise SchemaNotFound(f"no version of schema {name} has this definition")

    def compatibility(self, name: str) -> Compatibility | None:
        """The compatibility of later versions of a name, None if it was never set and there is no version."""
        schema = self._schemas.get(name)
        return None if schema is None else schema.head.compatibility

    async def set_compatibility(self, name: str, compatibility: str) -> None:
        """Say what later versions must keep; the name need not have versions yet."""
        validate_schema_name(name)
        mode = compatibility_mode(compatibility)
        async with self._changing:
            if name not in self._schemas and len(self._schemas) >= self._limits.schemas_max:
                raise self._too_many()
            last_version = self._schemas[name].head.last_version if name in self._schemas else 0
            await self._table.put(head_key(name), Head(last_version, mode))

    def _too_many(self) -> LimitExceeded:
        return LimitExceeded(f"there are {len(self._schemas)} schemas, the most allowed: raise limits.schemas_max")

    def _bundled(self, kind: SchemaType, given: str, links: Sequence[Link]) -> str:
        """A definition with what it refers to in it. Raises SchemaInvalid, SchemaNotFound."""
        self._check_size(given)
        if len(links) > REFERENCES_MAX:
            raise SchemaInvalid(f"the definition has {len(links)} references: at most {REFERENCES_MAX} are allowed")
        parts: list[tuple[str, str]] = []
        for link in links:
            try:
                _, version = self.resolve(Reference(link.schema, link.version))
            except SchemaNotFound as error:
                raise SchemaInvalid(f"reference {link.name}: {error.message}") from None
            if version.type_ != kind:
                raise SchemaInvalid(f"{link.schema} is {version.type_}: a definition refers to those of its own type")
            parts.append((link.name, version.text))
        if parts:
            self._check_size("".join([given, *(text for _, text in parts)]))
        text = bundled(kind, given, parts)
        self._check_size(text)
        return text

    def referrers(self, name: str, version: int) -> list[SchemaVersion]:
        """The versions that refer to one, with those that are soft-deleted."""
        return [
            each
            for each in self.versions(None, deleted=True)
            if any((link.schema, link.version) == (name, version) for link in each.links)
        ]

    def _check_size(self, text: str) -> None:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise SchemaInvalid("the definition is not valid Unicode text") from None
        if size > self._limits.schema_bytes_max:
            raise SchemaInvalid(f"the definition has {size} bytes: at most {self._limits.schema_bytes_max} are allowed")

    async def _check(
        self, schema: _Schema, head: Head, kind: SchemaType, text: str, older: Sequence[Version]
    ) -> Parsed:
        """Raises SchemaInvalid, IncompatibleSchema if it cannot follow an older version."""
        other = next((each.type_ for each in older if each.type_ != kind), None)
        if other is not None and head.compatibility != "none":
            raise IncompatibleSchema(
                f"the type would change from {other} to {kind}: register it under another name, or with compatibility none"
            )
        reply = await self._worker.ask(
            CheckDefinition(
                kind,
                text,
                [each.stored for each in older if each.type_ == kind],
                head.compatibility,
                [version.fingerprint for version in schema.versions.values() if version.type_ == kind],
            ),
            DEFINITION_S_MAX,
        )
        if not isinstance(reply, Parsed):
            assert isinstance(reply, Refused)
            raise SchemaInvalid(reply.reason)
        if reply.problems:
            raise IncompatibleSchema("; ".join(reply.problems))
        await _import_libraries()
        return reply

    async def _add(self, name: str, schema: _Schema, head: Head, version: Version) -> int:
        limits = self._limits
        if name not in self._schemas and len(self._schemas) >= limits.schemas_max:
            raise self._too_many()
        if len(schema.all_versions) >= limits.schema_versions_max:
            raise LimitExceeded(
                f"schema {name} has {len(schema.all_versions)} versions, the most allowed: delete some or raise limits.schema_versions_max"
            )
        if self._size_bytes + version.size_bytes > limits.schemas_bytes_max:
            raise LimitExceeded(
                f"definitions take {self._size_bytes} bytes and {version.size_bytes} more do not fit: delete some or raise "
                f"limits.schemas_bytes_max from {limits.schemas_bytes_max}"
            )
        number = schema.head.last_version + 1
        await self._table.change(
            [
                (EntryKey("schema", name, number), version),
                (head_key(name), msgspec.structs.replace(head, last_version=number)),
                *self._last_id_change(version),
            ]
        )
        return number

    def _id_of(self, kind: SchemaType, fingerprint: bytes) -> int:
        """The id of a definition: that of the same one under whatever name, else the next. Raises LimitExceeded."""
        known = self._ids.get((kind, fingerprint))
        if known is not None:
            return known
        if self._last_id >= REGISTRY_ID_MAX:
            raise LimitExceeded(f"{REGISTRY_ID_MAX} definitions were registered, the most that have an id")
        return self._last_id + 1

    def _last_id_change(self, version: Version) -> list[tuple[EntryKey, Entry | None]]:
        return [(IDS_KEY, Ids(version.registry_id))] if version.registry_id > self._last_id else []

    async def _give_ids(self) -> None:
        """Give versions ids that were registered before there were any, in the order in which they were."""
        without = [
            (version.created_ms, name, number, version)
            for name, schema in self._schemas.items()
            for number, version in schema.all_versions.items()
            if not version.registry_id
        ]
        for _, name, number, version in sorted(without, key=itemgetter(0, 1, 2)):
            crc64 = await asyncio.to_thread(_crc64, version)
            registry_id = self._id_of(version.type_, version.fingerprint)
            changed = msgspec.structs.replace(version, registry_id=registry_id, crc64=crc64)
            await self._table.change([(EntryKey("schema", name, number), changed), *self._last_id_change(changed)])

    async def delete(self, name: str, version: int, *, soft: bool = False) -> None:
        """One version, or all of them (LATEST), for good or softly.

        Raises SchemaNotFound, and InvalidRequest where a topic is bound to it.
        """
        async with self._changing:
            schema = self._schemas.get(name) or _Schema()
            there = schema.versions if soft else schema.all_versions
            if not there:
                raise SchemaNotFound(f"schema not found: {name}")
            if version != LATEST and version not in there:
                raise SchemaNotFound(f"schema not found: {name} v{version}")
            numbers = set(there) if version == LATEST else {version}
            left = set(schema.versions) - numbers
            for topic, reference in self.bound.items():
                if reference.name == name and (reference.version in numbers if reference.version else not left):
                    raise InvalidRequest(
                        f"schema {name} cannot be deleted: topic {topic} is bound to {reference}; bind it to another or to none first"
                    )
            for number in sorted(numbers):
                for referrer in self.referrers(name, number):
                    if referrer.name != name or referrer.version not in numbers:
                        raise InvalidRequest(
                            f"schema {name} v{number} cannot be deleted: {referrer.name} v{referrer.version} refers to it"
                        )
            replaced = {
                number: msgspec.structs.replace(there[number], deleted=True) if soft else None
                for number in sorted(numbers)
            }
            await self._table.change([(EntryKey("schema", name, number), each) for number, each in replaced.items()])

    # -- bindings ---------------------------------------------------------------------------------------------------------

    async def bind(self, topic: str, topic_id: str, reference: Reference | None) -> None:
        """From now on, records of the topic must follow the schema; None lifts that. Raises SchemaNotFound."""
        async with self._changing:
            if reference is None:
                if topic in self._bindings:
                    await self._table.delete(binding_key(topic))
                return
            self._check_bindable(reference)
            await self._put_binding(topic, reference, topic_id)

    async def bind_while(
        self, topic: str, reference: Reference, create: Callable[[], Awaitable[TopicInfo]]
    ) -> TopicInfo:
        """Create a topic and bind it: after a crash both is done or nothing."""
        async with self._changing:
            self._check_bindable(reference)
            if topic in self._engine.topics():
                return await create()  # which says that the topic exists; its binding stays as it is
            await self._put_binding(topic, reference, "")
            try:
                info = await create()
            except BaseException:
                await self._table.delete(binding_key(topic))
                raise
            await self._put_binding(topic, reference, info.id)
            return info

    def _check_bindable(self, reference: Reference) -> None:
        number, version = self.resolve(reference)
        if version.deleted:
            raise SchemaNotFound(f"schema not found: {reference.name} v{number} is deleted")

    async def forget_topic(self, topic: str) -> None:
        """The topic was deleted. Its binding counts for nothing from here on, also where the disk is full and keeps the entry."""
        self.bound.pop(topic, None)
        if topic in self._bindings:
            with suppress(PenstockError):
                await self._table.delete(binding_key(topic))

    def _put_binding(self, topic: str, reference: Reference, topic_id: str) -> Awaitable[None]:
        name, version, message = reference
        return self._table.put(binding_key(topic), Binding(name, version, message, topic_id))

    # -- keeping ----------------------------------------------------------------------------------------------------------

    def _changed(self, key: EntryKey, entry: Entry | None) -> None:
        if key.kind == "binding":
            self._bindings.pop(key.name, None)
            self.bound.pop(key.name, None)
            if isinstance(entry, Binding):
                self._bindings[key.name] = entry
                self.bound[key.name] = entry.reference
            return
        if key.kind == "ids":
            self._last_id = entry.last_id if isinstance(entry, Ids) else REGISTRY_ID_FIRST - 1
            return
        schema = self._schemas.get(key.name)
        if schema is None:
            schema = self._schemas[key.name] = _Schema()
        schema.frames.clear()
        if isinstance(entry, Head):
            schema.head = entry
        else:
            before = schema.versions.pop(key.version, None) or schema.deleted.pop(key.version, None)
            if before is not None:
                self._size_bytes -= before.size_bytes
                self._forget_id(key, before)
            if isinstance(entry, Version):
                (schema.deleted if entry.deleted else schema.versions)[key.version] = entry
                self._size_bytes += entry.size_bytes
                if entry.registry_id:
                    self._ids[entry.type_, entry.fingerprint] = entry.registry_id
                    self._with_id.setdefault(entry.registry_id, set()).add((key.name, key.version))

    def _forget_id(self, key: EntryKey, version: Version) -> None:
        holders = self._with_id.get(version.registry_id)
        if holders is not None:
            holders.discard((key.name, key.version))
            if not holders:
                del self._with_id[version.registry_id], self._ids[version.type_, version.fingerprint]


async def _import_libraries() -> None:
    """What checks records takes 80 ms and 11 MB to import: once there is a schema, and not on the event loop."""
    if _LIBRARIES not in sys.modules:
        await asyncio.to_thread(import_module, _LIBRARIES)


def _crc64(version: Version) -> bytes:
    from penstock.broker.schemas.kinds import KINDS  # by now imported

    return KINDS[version.type_].load(version.text, version.form, version.cost).crc64


def _shown(name: str, number: int, version: Version, head: Head) -> SchemaVersion:
    return SchemaVersion(
        name,
        number,
        version.type_,
        version.text,
        head.compatibility,
        version.created_ms,
        version.registry_id,
        version.deleted,
        version.given or version.text,
        version.links,
        head.last_version,
    )

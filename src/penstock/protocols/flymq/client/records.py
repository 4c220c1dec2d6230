"""Dead letters and schemas as clients ask for them, and what clients are told of records."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.clients.arguments import check_topic
from penstock.errors import InvalidRequest
from penstock.protocols.flymq.client.exchanges import Channel
from penstock.protocols.flymq.operations.records import (
    DeadLetterDetails,
    DeadLetterHead,
    FetchDlq,
    PurgeDlq,
    ReplayDlq,
    Replayed,
    ReplayFilter,
)
from penstock.protocols.flymq.operations.schemas import (
    BindSchema,
    DeleteSchema,
    GetSchema,
    ListSchemas,
    RegisterSchema,
    SchemaDetails,
    SchemaHead,
    ValidateSchema,
)

LETTERS = 100
"""Dead letters a list asks for unless told otherwise."""
_VERSION_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class DelayedRecord:
    """A delayed record."""

    topic: str
    partition: int
    due_ms: int
    id: str
    """The id to cancel it with; empty if there was no delay and the record is stored."""


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """A dead letter: a record that failed, and why. Fields that the broker does not send are None."""

    id: str
    value: bytes
    reason: str
    attempts: int
    key: bytes | None = None
    partition: int | None = None
    """Of the original record, if known."""
    offset: int | None = None
    first_failed_ms: int | None = None
    failed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """One version of a schema. Fields that the broker does not send are None."""

    name: str
    type: str
    version: int
    compatibility: str | None = None
    created_ms: int | None = None
    definition: str | None = None
    """Only if a single version was requested."""
    registry_id: int | None = None
    """The id of the definition in Confluent framing. Only if a single version was requested."""
    last_version: int | None = None
    """The highest number that any version of the name was given, deleted ones included. Only if a single version was requested."""

    @property
    def id(self) -> str:
        return f"{self.name}-v{self.version}"


class AsyncDeadLetters:
    """`client.dead_letters` of the async client."""

    def __init__(self, channel: Channel) -> None:
        self._ask = channel.ask

    async def list(self, topic: str, max_letters: int = LETTERS) -> list[DeadLetterInfo]:
        """Return the dead letters of a topic that were not replayed, oldest first."""
        return [dead_letter_info(*letter) for letter in await self._ask(FetchDlq(topic, max_letters))]

    async def replay(self, topic: str, letter_id: str) -> None:
        """Write a dead letter to its topic again, once. Raises EntryNotFound, also if it was replayed before."""
        await self._ask(ReplayDlq(topic, letter_id))

    async def replay_at(self, topic: str, offset: int) -> None:
        """Replay the dead letter at an offset of the dead-letter topic."""
        await self._ask(ReplayDlq(topic, offset))

    async def replay_all(self, topic: str, filter: str = "", *, dry_run: bool = False) -> int:  # noqa: A002
        """Replay every dead letter, or those whose record or reason matches a filter as in `fetch`; return how many.

        A dry run only counts. Retried after a lost connection: what was replayed by then is neither replayed nor counted again.
        """
        replayed = await self._ask(ReplayDlq(topic, ReplayFilter(filter, dry_run)), repeatable=True)
        assert isinstance(replayed, Replayed)
        return replayed.count or 0

    async def purge(self, topic: str) -> None:
        """Delete all dead letters of a topic, replayed or not."""
        await self._ask(PurgeDlq(topic))


def dead_letter_info(head: DeadLetterHead, details: DeadLetterDetails | None) -> DeadLetterInfo:
    letter = (head.id, head.value, head.reason, head.attempts)
    if details is None:
        return DeadLetterInfo(*letter)
    return DeadLetterInfo(
        *letter, details.key, details.partition, details.offset, details.first_failed_ms, details.failed_ms
    )


class AsyncSchemas:
    """`client.schemas` of the async client."""

    def __init__(self, channel: Channel) -> None:
        self._ask = channel.ask

    async def register(
        self,
        name: str,
        definition: str,
        type: str = "json",  # noqa: A002
        compatibility: str | None = None,
    ) -> SchemaInfo:
        """Register the next version of a schema (json, avro or protobuf), or return the version that already has this definition.

        `compatibility` (none, backward, forward, full) applies to later versions. Raises SchemaInvalid, IncompatibleSchema.
        """
        registered = await self._ask(RegisterSchema(name, type, definition.encode(), compatibility))
        return SchemaInfo(registered.name, registered.type_name, registered.version, registered.compatibility)

    async def get(self, name: str, version: int | None = None) -> SchemaInfo:
        """Return one version with its definition, by default the latest. Raises SchemaNotFound."""
        found = await self._ask(GetSchema(name, _version_field(version)))
        definition = None if found.definition is None else found.definition.decode()
        return SchemaInfo(
            found.name,
            found.type_name,
            found.version,
            found.compatibility,
            found.created_ms,
            definition,
            found.registry_id,
            found.last_version,
        )

    async def validate(self, schema: str, value: bytes) -> list[str]:
        """Return why a value does not match a schema ("orders", "orders:3"); an empty list if it does. Raises SchemaNotFound."""
        validation = await self._ask(ValidateSchema(schema, value))
        return [] if validation.valid else validation.errors or ["the broker gives no reason"]

    async def delete(self, name: str, version: int | None = None) -> None:
        """Delete one version, or all of them. Raises SchemaNotFound."""
        await self._ask(DeleteSchema(name, _version_field(version)))

    async def bind(self, topic: str, schema: str | None) -> None:
        """Require that records of a topic match a schema ("orders", "orders:3"); None removes the requirement."""
        check_topic(topic)
        await self._ask(BindSchema(topic, schema or ""))

    async def list(self, name: str | None = None) -> list[SchemaInfo]:
        """Return every version of one schema, or of all."""
        return [schema_info(*schema) for schema in await self._ask(ListSchemas(name or ""))]


def _version_field(version: int | None) -> int:
    if version is None:
        return 0
    if not 1 <= version <= _VERSION_MAX:
        raise InvalidRequest(f"version {version} is out of range: versions are numbered from 1")
    return version


def schema_info(head: SchemaHead, details: SchemaDetails | None) -> SchemaInfo:
    schema = (head.id.removesuffix(f"-v{head.version}"), head.type_name, head.version)
    return SchemaInfo(*schema) if details is None else SchemaInfo(*schema, details.compatibility, details.created_ms)

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
    """A record that waits for its time."""

    topic: str
    partition: int
    due_ms: int
    id: str
    """What cancels it; empty if there was no delay and the record is stored."""


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """A record that failed, and why. What a broker does not tell is None."""

    id: str
    value: bytes
    reason: str
    attempts: int
    key: bytes | None = None
    partition: int | None = None
    """Where it came from, as far as it is known."""
    offset: int | None = None
    first_failed_ms: int | None = None
    failed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """One version of a schema. What a broker does not tell is None."""

    name: str
    type: str
    version: int
    compatibility: str | None = None
    created_ms: int | None = None
    definition: str | None = None
    """Told if one version is asked for."""
    registry_id: int | None = None
    """The definition's number among all schemas, as Confluent framing has it. Told if one version is asked for."""

    @property
    def id(self) -> str:
        return f"{self.name}-v{self.version}"


class AsyncDeadLetters:
    """`client.dead_letters` of the async client."""

    def __init__(self, channel: Channel) -> None:
        self._ask = channel.ask

    async def list(self, topic: str, max_letters: int = LETTERS) -> list[DeadLetterInfo]:
        """The records of a topic that failed and were not replayed, oldest first; none where it has no dead letters."""
        return [dead_letter_info(*letter) for letter in await self._ask(FetchDlq(topic, max_letters))]

    async def replay(self, topic: str, letter_id: str) -> None:
        """Write a failed record to its topic again, once. Raises EntryNotFound, also where it was replayed before."""
        await self._ask(ReplayDlq(topic, letter_id))

    async def replay_at(self, topic: str, offset: int) -> None:
        """The same for the dead letter at an offset of the dead-letter topic."""
        await self._ask(ReplayDlq(topic, offset))

    async def replay_all(self, topic: str, filter: str = "", *, dry_run: bool = False) -> int:  # noqa: A002
        """Replay every dead letter, or those whose record or reason matches a filter as in `fetch`; returns how many.

        A dry run only counts. Sent again where the connection was lost: what was replayed by then is not replayed again, nor counted.
        """
        replayed = await self._ask(ReplayDlq(topic, ReplayFilter(filter, dry_run)), repeatable=True)
        assert isinstance(replayed, Replayed)
        return replayed.count or 0

    async def purge(self, topic: str) -> None:
        """Delete all dead letters of a topic, replayed or not; none are no error."""
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
        """Register the next version (json, avro or protobuf), or find the one that has this definition already.

        `compatibility` (none, backward, forward, full) is kept for versions to come. Raises SchemaInvalid, IncompatibleSchema.
        """
        registered = await self._ask(RegisterSchema(name, type, definition.encode(), compatibility))
        return SchemaInfo(registered.name, registered.type_name, registered.version, registered.compatibility)

    async def get(self, name: str, version: int | None = None) -> SchemaInfo:
        """One version with its definition, by default the latest. Raises SchemaNotFound."""
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
        )

    async def validate(self, schema: str, value: bytes) -> list[str]:
        """What is wrong with a record; nothing where it is what the schema ("orders", "orders:3") says. Raises SchemaNotFound."""
        validation = await self._ask(ValidateSchema(schema, value))
        return [] if validation.valid else validation.errors or ["the broker gives no reason"]

    async def delete(self, name: str, version: int | None = None) -> None:
        """Delete one version, or all of them. Raises SchemaNotFound."""
        await self._ask(DeleteSchema(name, _version_field(version)))

    async def bind(self, topic: str, schema: str | None) -> None:
        """From now on records of the topic must follow the schema ("orders", "orders:3"); None lifts that."""
        check_topic(topic)
        await self._ask(BindSchema(topic, schema or ""))

    async def list(self, name: str | None = None) -> list[SchemaInfo]:
        """Every version of one schema, or of all."""
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

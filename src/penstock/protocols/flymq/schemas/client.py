"""Schemas as clients ask for them: `client.schemas` of the async client and of its twin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.clients.arguments import check_topic
from penstock.clients.loop_thread import LoopThread
from penstock.errors import InvalidRequest
from penstock.protocols.flymq.schemas import replies, requests
from penstock.protocols.flymq.schemas.messages import SchemaInfo

Ask = Callable[[bytes], Awaitable[bytes]]

_VERSION_MAX = (1 << 32) - 1


class AsyncSchemas:
    """`read` may be sent again where a connection was lost, `write` may not."""

    def __init__(self, read: Ask, write: Ask) -> None:
        self._read = read
        self._write = write

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
        # Registering twice is registering once, so it may be sent again.
        data = requests.encode_register_schema(name, type, definition, compatibility)
        return replies.decode_registered(await self._read(data))

    async def get(self, name: str, version: int | None = None) -> SchemaInfo:
        """One version with its definition, by default the latest. Raises SchemaNotFound."""
        return replies.decode_schema(await self._read(requests.encode_get_schema(name, _version_field(version))))

    async def validate(self, schema: str, value: bytes) -> list[str]:
        """What is wrong with a record; nothing where it is what the schema ("orders", "orders:3") says. Raises SchemaNotFound."""
        return replies.decode_validated(await self._read(requests.encode_validate_schema(schema, value)))

    async def delete(self, name: str, version: int | None = None) -> None:
        """Delete one version, or all of them. Raises SchemaNotFound."""
        await self._write(requests.encode_delete_schema(name, _version_field(version)))

    async def bind(self, topic: str, schema: str | None) -> None:
        """From now on records of the topic must follow the schema ("orders", "orders:3"); None lifts that."""
        check_topic(topic)
        await self._read(requests.encode_bind_schema(topic, schema or ""))

    async def list(self, name: str | None = None) -> list[SchemaInfo]:
        """Every version of one schema, or of all."""
        return replies.decode_schemas(await self._read(requests.encode_list_schemas(name or "")))


class Schemas:
    """The same calls, each waiting for its answer."""

    def __init__(self, thread: LoopThread, schemas: AsyncSchemas) -> None:
        self._thread = thread
        self._schemas = schemas

    def register(
        self,
        name: str,
        definition: str,
        type: str = "json",  # noqa: A002
        compatibility: str | None = None,
    ) -> SchemaInfo:
        """Register the next version (json, avro or protobuf), or find the one that has this definition already.

        `compatibility` (none, backward, forward, full) is kept for versions to come. Raises SchemaInvalid, IncompatibleSchema.
        """
        return self._thread.run(self._schemas.register(name, definition, type, compatibility))

    def get(self, name: str, version: int | None = None) -> SchemaInfo:
        """One version with its definition, by default the latest. Raises SchemaNotFound."""
        return self._thread.run(self._schemas.get(name, version))

    def validate(self, schema: str, value: bytes) -> list[str]:
        """What is wrong with a record; nothing where it is what the schema ("orders", "orders:3") says. Raises SchemaNotFound."""
        return self._thread.run(self._schemas.validate(schema, value))

    def delete(self, name: str, version: int | None = None) -> None:
        """Delete one version, or all of them. Raises SchemaNotFound."""
        self._thread.run(self._schemas.delete(name, version))

    def bind(self, topic: str, schema: str | None) -> None:
        """From now on records of the topic must follow the schema ("orders", "orders:3"); None lifts that."""
        self._thread.run(self._schemas.bind(topic, schema))

    def list(self, name: str | None = None) -> list[SchemaInfo]:
        """Every version of one schema, or of all."""
        return self._thread.run(self._schemas.list(name))


def _version_field(version: int | None) -> int:
    if version is None:
        return 0
    if not 1 <= version <= _VERSION_MAX:
        raise InvalidRequest(f"version {version} is out of range: versions are numbered from 1")
    return version

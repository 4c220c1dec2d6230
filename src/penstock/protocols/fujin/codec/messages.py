"""What clients say, decoded."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

Headers = tuple[tuple[str, bytes], ...]


class ConnectWriter(NamedTuple):
    """`writer_id` is a number in the contract's form, bytes in the deployed one, None if there is none."""

    writer_id: bytes | int | None
    size_bytes: int


class ConnectReader(NamedTuple):
    """As it came: whether it makes sense is for the session to say. `topic` is None if it announced more than any name has."""

    kind: int
    auto_commit: int
    topic: bytes | None
    size_bytes: int


class WriteRun(msgspec.Struct, gc=False):
    """Consecutive WRITEs to one topic."""

    topic: str
    correlation_ids: list[bytes]
    """As they stand on the wire, which is how they go back."""
    values: list[bytes]
    headers: list[Headers] | None
    """For each record; None if none has any."""
    size_bytes: int
    """On the wire."""


class RefusedWrite(NamedTuple):
    """A WRITE that cannot be carried out whatever the state of things is; the conversation continues."""

    correlation_id: bytes
    reason: str
    size_bytes: int = 0


class Transact(NamedTuple):
    """BEGIN, COMMIT or ROLLBACK."""

    request: int
    correlation_id: bytes
    size_bytes: int = 5


class Fetch(NamedTuple):
    correlation_id: bytes
    records_max: int
    size_bytes: int = 9


class Settle(NamedTuple):
    """ACK or NACK."""

    request: int
    correlation_id: bytes
    ids: list[bytes]
    size_bytes: int


class Disconnect(NamedTuple):
    """What follows it is not examined."""

    size_bytes: int = 1


class BadCommand(NamedTuple):
    """Something that is no command, or not allowed here. Nothing after it can be understood."""

    reason: str
    fresh: bool
    """Whether it was the first thing on its stream."""
    size_bytes: int = 1


Command = ConnectWriter | ConnectReader | WriteRun | RefusedWrite | Transact | Fetch | Settle | Disconnect | BadCommand

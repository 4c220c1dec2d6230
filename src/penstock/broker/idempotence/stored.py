"""What is kept of producers in the log: a compacted topic with a record for each producer, and one for each of its last requests.

The record of a request is written in the same append as the records it stored, and tells where these are. Its key is the producer and the
number of the request modulo the number that may be in flight, so a request replaces one whose answer has arrived.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec
import numpy as np

from penstock.errors import PenstockError, ServerError

PRODUCERS_TOPIC: Final = "__producers"
PRODUCER_SLOT: Final = -1
"""The slot of the record of the producer itself."""
NOT_STORED: Final = 0xFFFF
"""In a column of partitions: the record was refused. No topic has so many partitions."""
REASONS_MAX: Final = 32
REASON_CHARACTERS_MAX: Final = 300
"""Of the reasons why records of a request were refused, which are kept in case it is sent again."""
_REASON_NOT_KEPT: Final = "refused; the reason was not kept: send the record by itself to hear it"
encode: Final = msgspec.msgpack.Encoder().encode
"""Of keys and entries."""


class ProducerKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    producer: bytes
    slot: int


class StoredProducer(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="producer"):
    owner: str
    registered_ms: int


class Place(NamedTuple):
    """Where the records of a request in one partition begin; they follow one another."""

    partition: int
    base_offset: int
    timestamp_ms: int


class StoredRequest(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="request"):
    """A request that stored records, and where. Records of the same partition have consecutive offsets."""

    sequence: int
    floor: int
    topic: str
    count: int
    column: bytes
    """For each record the partition (NOT_STORED if it was refused), as compressed uint16; empty if all are in the one place."""
    places: tuple[Place, ...]
    refused: tuple[tuple[int, str, str], ...]
    """Row, code and message of records that were refused; not of all if they are many."""


class Written(msgspec.Struct, frozen=True):
    """What became of the records of a request."""

    partitions: Sequence[int]
    """For each record, NOT_STORED if it was refused; empty if all are in the one place."""
    places: Sequence[Place]
    refused: Sequence[tuple[int, PenstockError]]


def compressed(partitions: Sequence[int]) -> bytes:
    """The column of a stored request."""
    return zlib.compress(np.array(partitions, "<u2").tobytes(), 1) if partitions else b""


def kept_reasons(refused: Sequence[tuple[int, PenstockError]]) -> tuple[tuple[int, str, str], ...]:
    return tuple((row, error.code, error.message[:REASON_CHARACTERS_MAX]) for row, error in refused[:REASONS_MAX])


def written(request: StoredRequest) -> Written:
    """The answer to a request that is sent again."""
    partitions: Sequence[int] = ()
    if request.column:
        column = zlib.decompressobj().decompress(request.column, 2 * request.count)
        partitions = np.frombuffer(column, "<u2").tolist()
    reasons = {row: _error(code, message) for row, code, message in request.refused}
    refused = [
        (row, reasons.get(row) or ServerError(_REASON_NOT_KEPT))
        for row, partition in enumerate(partitions)
        if partition == NOT_STORED
    ]
    return Written(partitions, request.places, refused or ())


def _error(code: str, message: str) -> PenstockError:
    return _by_code().get(code, ServerError)(message)


@cache
def _by_code() -> dict[str, type[PenstockError]]:
    return {kind.code: kind for kind in _kinds(PenstockError) if kind.code != "batch_failed"}


def _kinds(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)

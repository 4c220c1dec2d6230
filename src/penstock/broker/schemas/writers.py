"""Which version each record of a batch is checked against, and the headers it is stored with.

A record that says which version wrote it (`marks`) is checked against that one, if the caller accepts it: a reference without
a version takes all, one with a version only that. A record that says nothing is checked against what the reference means now. Bare values
are stamped with the version they are checked against; framed ones say it themselves. Bare Avro that says nothing is stored without a stamp
where several versions may have written it: it often parses as another version than its own, so a stamp would be a guess.

A client may send the header itself. If it names a version of the schema, it is what the record says. If it names another schema, it was
copied with the headers of another record, and is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.broker.schemas.marks import SCHEMA_HEADER, Frames, MarkInvalid, header_mark, read_mark, stamp_of, stamped
from penstock.broker.schemas.reference import LATEST, Reference
from penstock.log.api import Batch
from penstock.record_headers import HEADERS_PER_RECORD_MAX, decode_headers, encode_headers

_NAME: Final = SCHEMA_HEADER.encode()
_FULL_BYTES_MIN: Final = HEADERS_PER_RECORD_MAX * len(encode_headers([("", None)]))
"""What as many headers as are allowed take at least."""


class Asked(NamedTuple):
    """What records must follow."""

    reference: Reference
    number: int
    """The version that it means now."""
    stamps_unmarked: bool
    """Whether records that say nothing are stamped with it."""
    frames: Frames
    has_version: Callable[[int], bool]
    message_path: Callable[[int, str], tuple[int, ...]]
    """Where a Protobuf message is in a version. Raises MarkInvalid."""


class Written(NamedTuple):
    """What one version wrote, without frames."""

    values: Sequence[bytes | None]
    rows: Sequence[int] | None = None
    """Where they are in the batch; None if they are all of it."""


class Sorted(NamedTuple):
    by_version: dict[int, Written]
    headers: Sequence[bytes | None] | None
    """What to store with each row; None if no row has any."""
    refused: dict[int, str]
    """By row: what is wrong with its mark."""


def sort_by_writer(batch: Batch, asked: Asked) -> Sorted:
    """Return the values by the version that each is checked against."""
    values, cells = batch.values, batch.headers
    reference = asked.reference
    stamp = stamp_of(Reference(reference.name, asked.number, reference.message))
    if not asked.frames.any(values) and (cells is None or not any(map(_matters, cells))):
        return Sorted(
            {asked.number: Written(values)}, _all_stamped(values, cells, stamp) if asked.stamps_unmarked else cells, {}
        )
    by_version: dict[int, tuple[list[bytes | None], list[int]]] = {}
    headers: list[bytes | None] = [None] * len(values) if cells is None else list(cells)
    refused: dict[int, str] = {}
    named: dict[bytes | None, tuple[int, bytes] | None] = {}
    """What headers say, and what becomes of them: those of many records are the same."""
    for row, value in enumerate(values):
        if value is None:
            continue
        cell = headers[row]
        try:
            if cell not in named:
                if asked.stamps_unmarked:
                    _check_room(cell)
                named[cell] = _named(cell, asked)
            said = named[cell]
            number, size = (said[0], 0) if said is not None else _framed(value, asked)
        except MarkInvalid as error:
            refused[row] = str(error)
            continue
        payloads, rows = by_version.setdefault(number, ([], []))
        payloads.append(value[size:])
        rows.append(row)
        if said is not None:
            headers[row] = said[1]
            continue
        # A frame says it all. What another record's header said does not belong to it.
        headers[row] = stamped(cell, b"" if size or not asked.stamps_unmarked else stamp) or None
    return Sorted({number: Written(*each) for number, each in by_version.items()}, headers, refused)


def _all_stamped(
    values: Sequence[bytes | None], cells: Sequence[bytes | None] | None, stamp: bytes
) -> Sequence[bytes | None]:
    if cells is None:
        return [stamp] * len(values) if None not in values else [None if each is None else stamp for each in values]
    return [cell if value is None else (cell or b"") + stamp for value, cell in zip(values, cells, strict=True)]


def _matters(cell: bytes | None) -> bool:
    """Whether a record's headers may hold the header, or no more headers."""
    return cell is not None and (_NAME in cell or len(cell) >= _FULL_BYTES_MIN)


def _check_room(cell: bytes | None) -> None:
    if cell is not None and len(cell) >= _FULL_BYTES_MIN and len(decode_headers(cell)) >= HEADERS_PER_RECORD_MAX:
        raise MarkInvalid(
            f"it has {HEADERS_PER_RECORD_MAX} headers, the most allowed, and the broker adds {SCHEMA_HEADER}: send one less"
        )


def _named(cell: bytes | None, asked: Asked) -> tuple[int, bytes] | None:
    """Return the version that headers name, and the headers to store; None if they name no version of the schema. Raises MarkInvalid."""
    reference = asked.reference
    mark = header_mark(cell)
    named = None if mark is None else read_mark(mark)
    if named is None or named.name != reference.name:
        return None
    if not asked.has_version(named.version):
        raise MarkInvalid(f"the header {SCHEMA_HEADER} is {named}, which does not exist")
    _check_version(named.version, asked)
    if named.message != reference.message:
        path = asked.message_path(named.version, named.message)
        if path != asked.message_path(named.version, reference.message):
            raise MarkInvalid(f"the header {SCHEMA_HEADER} is {named}, but {reference} is required")
    return named.version, stamped(cell, stamp_of(Reference(reference.name, named.version, reference.message)))


def _framed(value: bytes, asked: Asked) -> tuple[int, int]:
    """Return the version that wrote a value, and how many bytes stand before it. Raises MarkInvalid."""
    frame = asked.frames.find(value)
    if frame is None:
        return asked.number, 0
    _check_version(frame.version, asked)
    if frame.message is not None and frame.message != asked.message_path(frame.version, asked.reference.message):
        raise MarkInvalid(f"its frame names another message of version {frame.version} than {asked.reference}")
    return frame.version, frame.size_bytes


def _check_version(number: int, asked: Asked) -> None:
    if asked.reference.version not in (LATEST, number):
        raise MarkInvalid(f"it was written by version {number}, but {asked.reference} is required")

"""Which version each record of a batch is checked against, and the headers it is stored with.

A record that says which version wrote it (`marks`) is checked against that one, if whoever asks for the check takes it: a reference without
a version takes all, one with a version only that. A record that says nothing is checked against what the reference means now. Bare values
are stamped with the version they are checked against; framed ones say it themselves.

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
    frames: Frames
    has_version: Callable[[int], bool]
    message_path: Callable[[int, str], tuple[int, ...]]
    """Where a Protobuf message is in a version. Raises MarkInvalid."""


class Sorted(NamedTuple):
    by_version: dict[int, Sequence[bytes | None]]
    """The values to check against each version, without frames; None for rows of other versions, and for tombstones."""
    headers: Sequence[bytes | None]
    """What to store with each row."""
    refused: dict[int, str]
    """By row: what is wrong with its mark."""


def sort_by_writer(batch: Batch, asked: Asked) -> Sorted:
    """Return the values by the version that each is checked against."""
    values, cells = batch.values, batch.headers
    reference = asked.reference
    stamp = stamp_of(Reference(reference.name, asked.number, reference.message))
    if not asked.frames.any(values) and (cells is None or not any(map(_matters, cells))):
        return Sorted({asked.number: values}, _all_stamped(values, cells, stamp), {})
    by_version: dict[int, list[bytes | None]] = {}
    headers: list[bytes | None] = [None] * len(values) if cells is None else list(cells)
    refused: dict[int, str] = {}
    stamps = {asked.number: stamp}
    for row, value in enumerate(values):
        if value is None:
            continue
        try:
            _check_room(headers[row])
            number, size = _writer(value, headers[row], asked)
        except MarkInvalid as error:
            refused[row] = str(error)
            continue
        by_version.setdefault(number, [None] * len(values))[row] = value[size:]
        if number not in stamps:
            stamps[number] = stamp_of(Reference(reference.name, number, reference.message))
        # A frame says it all. What another record's header said does not belong to it.
        headers[row] = stamped(headers[row], b"" if size else stamps[number]) or None
    return Sorted(dict(by_version), headers, refused)


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


def _writer(value: bytes, cell: bytes | None, asked: Asked) -> tuple[int, int]:
    """Return the version that wrote a value, and how many bytes stand before it. Raises MarkInvalid."""
    reference = asked.reference
    mark = header_mark(cell)
    named = None if mark is None else read_mark(mark)
    if named is not None and named.name == reference.name:
        if not asked.has_version(named.version):
            raise MarkInvalid(f"the header {SCHEMA_HEADER} is {named}, which does not exist")
        _check_version(named.version, asked)
        if named.message != reference.message:
            path = asked.message_path(named.version, named.message)
            if path != asked.message_path(named.version, reference.message):
                raise MarkInvalid(f"the header {SCHEMA_HEADER} is {named}, and {reference} is asked for")
        return named.version, 0
    frame = asked.frames.find(value)
    if frame is None:
        return asked.number, 0
    _check_version(frame.version, asked)
    if frame.message is not None and frame.message != asked.message_path(frame.version, reference.message):
        raise MarkInvalid(f"its frame names another message of version {frame.version} than {reference}")
    return frame.version, frame.size_bytes


def _check_version(number: int, asked: Asked) -> None:
    if asked.reference.version not in (LATEST, number):
        raise MarkInvalid(f"it was written by version {number}, and {asked.reference} is asked for")

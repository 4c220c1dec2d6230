"""Which version of a schema wrote a record, as the record itself says.

A record may say it in three ways, and says it in one of them at most:

- the header `penstock-schema: orders:2`; the value is bare. The broker stamps it on records that it checks.
- Avro's single-object encoding: C3 01, then the CRC-64-AVRO fingerprint of the writer's schema, little-endian, then the value.
- Confluent's framing: 00, then the registry id of the writer's schema (4 bytes, big-endian), for Protobuf the path of the message, then
  the value.

Bare JSON and Protobuf never begin with 00, so what does is framed. Bare Avro may begin with anything: there, a frame counts only if its id
or fingerprint is one of the schema's own. A header takes precedence over the first bytes of the value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from penstock.broker.schemas.reference import LATEST, Reference, SchemaType, parse_reference
from penstock.errors import InvalidRequest
from penstock.record_headers import decode_headers, encode_headers

Framing = Literal["header", "single-object", "confluent", "none"]

SCHEMA_HEADER: Final = "penstock-schema"
REGISTRY_ID_FIRST: Final = 100_001
"""Ids are the four bytes behind a zero. Small numbers would be zeros too, and those begin many a bare Avro record."""
REGISTRY_ID_MAX: Final = (1 << 31) - 1
MESSAGE_PATH_MAX: Final = 64
"""Messages inside messages, in the path of one."""
FIRST_MESSAGE: Final = (0,)
_NAME: Final = SCHEMA_HEADER.encode()
_SINGLE_OBJECT: Final = b"\xc3\x01"
_FINGERPRINT_BYTES: Final = 8
_CONFLUENT: Final = struct.Struct(">BI")
_PATH_BYTES_MAX: Final = 5
"""Per number of a path: 32 bits, 7 a byte."""


class MarkInvalid(ValueError):
    """A mark that does not say which version wrote the record; the message says why."""


class Known(NamedTuple):
    """What marks a version."""

    number: int
    registry_id: int
    """0 if the broker gives none."""
    fingerprint: bytes
    """CRC-64-AVRO, little-endian; empty if the schema is not Avro."""


class Frame(NamedTuple):
    """What stands before a value."""

    version: int
    size_bytes: int
    is_single_object: bool = False
    message: tuple[int, ...] | None = None
    """The path of the Protobuf message: its place in the definition, or in the message around it, and so on. None for other kinds."""


class Frames:
    """The frames of the versions of one schema."""

    __slots__ = ("_by_fingerprint", "_by_id", "_first_bytes", "_kind", "_name")

    def __init__(self, name: str, kind: SchemaType, versions: Iterable[Known], preferred: int = LATEST) -> None:
        """`preferred` is the version that a fingerprint means if several have it: those differ in nothing that is written."""
        self._name = name
        self._kind = kind
        self._by_id: dict[int, int] = {}
        self._by_fingerprint: dict[bytes, int] = {}
        for number, registry_id, fingerprint in versions:
            if registry_id:
                self._by_id[registry_id] = number
            if fingerprint and (
                fingerprint not in self._by_fingerprint or self._by_fingerprint[fingerprint] != preferred
            ):
                self._by_fingerprint[fingerprint] = number
        self._first_bytes = frozenset({0, 0xC3} if kind == "avro" else {0})

    def any(self, values: Sequence[bytes | None]) -> bool:
        """Whether a value may have a frame."""
        first_bytes = self._first_bytes
        return any(value and value[0] in first_bytes for value in values)

    def find(self, value: bytes) -> Frame | None:
        """Return the frame of a value, None if it is bare. Raises MarkInvalid."""
        if not value or value[0] not in self._first_bytes:
            return None
        if self._kind == "avro" and value[0]:
            size = len(_SINGLE_OBJECT) + _FINGERPRINT_BYTES
            number = self._by_fingerprint.get(value[len(_SINGLE_OBJECT) : size])
            return Frame(number, size, True) if number is not None and value.startswith(_SINGLE_OBJECT) else None
        if len(value) < _CONFLUENT.size:
            if self._kind == "avro":
                return None
            raise MarkInvalid(
                "a value that begins with a zero byte continues with a registry id, and this one is truncated"
            )
        _, registry_id = _CONFLUENT.unpack_from(value)
        number = self._by_id.get(registry_id)
        if number is None:
            if self._kind == "avro":
                return None
            raise MarkInvalid(f"registry id {registry_id} is of no version of schema {self._name}")
        if self._kind != "protobuf":
            return Frame(number, _CONFLUENT.size)
        path, end = _message_path(value, _CONFLUENT.size)
        return Frame(number, end, message=path)


def confluent_frame(registry_id: int, message: Sequence[int] | None = None) -> bytes:
    """Return what stands before a value; `message` is the path of a Protobuf message."""
    frame = _CONFLUENT.pack(0, registry_id)
    if message is None:
        return frame
    if tuple(message) == FIRST_MESSAGE:
        return frame + b"\0"
    return frame + b"".join(map(_zigzag, (len(message), *message)))


def single_object_frame(fingerprint: bytes) -> bytes:
    """Return what stands before an Avro value."""
    assert len(fingerprint) == _FINGERPRINT_BYTES
    return _SINGLE_OBJECT + fingerprint


def unmarked(name: str, latest: int, remedy: str = "") -> MarkInvalid:
    """What to raise for a record that does not say which version of a schema wrote it. `remedy` is how this one can be read."""
    return MarkInvalid(
        f"nothing says which version of schema {name} wrote it: mark records (header {SCHEMA_HEADER}, --schema {name}:{latest}, Confluent "
        f"framing, Avro's single-object encoding) or bind their topic to a version{remedy}"
    )


# --- headers ---


def header_mark(cell: bytes | None) -> bytes | None:
    """Return the value of the header in a record's headers, None if there is none. Raises MarkInvalid if there are two."""
    if not cell or _NAME not in cell:
        return None
    found = {value for name, value in decode_headers(cell) if name == SCHEMA_HEADER}
    if not found:
        return None
    if len(found) > 1 or None in found:
        raise MarkInvalid(f"the headers {SCHEMA_HEADER} contradict each other, or one has no value: send one")
    [mark] = found
    return mark


def read_mark(mark: bytes) -> Reference:
    """Return the version that a header names. Raises MarkInvalid."""
    try:
        reference = parse_reference(mark.decode())
    except (InvalidRequest, UnicodeDecodeError):
        reference = None
    if reference is None or reference.version == LATEST:
        raise MarkInvalid(f"the header {SCHEMA_HEADER} is {_shown(mark)}: it names a version as in orders:2")
    return reference


def mark_of(reference: Reference) -> bytes:
    """Return the value of the header."""
    return str(reference).encode()


def stamp_of(reference: Reference) -> bytes:
    """Return the header, as a cell of headers or to be appended to one."""
    return encode_headers([(SCHEMA_HEADER, mark_of(reference))])


def stamped(cell: bytes | None, stamp: bytes) -> bytes:
    """Return the headers with this stamp and no other."""
    if not cell:
        return stamp
    if _NAME in cell:
        cell = encode_headers((name, value) for name, value in decode_headers(cell) if name != SCHEMA_HEADER)
    return cell + stamp


def _message_path(value: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the path at a position, and the position after it. A single zero means the first message."""
    count, at = _number(value, at)
    if count == 0:
        return FIRST_MESSAGE, at
    if not 0 < count <= MESSAGE_PATH_MAX:
        raise MarkInvalid(f"the path of the message has {count} numbers: at most {MESSAGE_PATH_MAX} are allowed")
    path = []
    for _ in range(count):
        number, at = _number(value, at)
        path.append(number)
    return tuple(path), at


def _number(value: bytes, at: int) -> tuple[int, int]:
    number = 0
    for turn in range(_PATH_BYTES_MAX):
        if at >= len(value):
            break
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << (7 * turn)
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise MarkInvalid("the path of the message is cut short, or its numbers are too large")


def _zigzag(number: int) -> bytes:
    number <<= 1
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _shown(mark: bytes) -> str:
    text = mark.decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:57] + "...")

"""Records as JSON Lines: what `consume --json` prints and `produce --json` reads.

No byte is lost: a key or a value that is not UTF-8 text is base64, in `key_base64` or `value_base64`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock.cli import terminal
from penstock.cli.lines import ProducedRecord
from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.clients.records import Record

_encode = msgspec.json.Encoder().encode


class JsonHeader(msgspec.Struct, forbid_unknown_fields=True):
    """One header. Exactly one of `value` and `value_base64` is there."""

    key: str
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET


class JsonRecord(msgspec.Struct, forbid_unknown_fields=True):
    """One line. Where and when the record was stored is not used: it gets a place and a time of its own."""

    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    headers: list[JsonHeader] | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None


_decode = msgspec.json.Decoder(JsonRecord).decode


def json_line(record: Record) -> bytes:
    members: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **terminal.json_bytes("key", record.key),
        "headers": [{"key": name, **terminal.json_bytes("value", value)} for name, value in record.headers],
        **terminal.json_bytes("value", record.value),
    }
    return _encode(members) + b"\n"


def parse_json_lines(lines: Sequence[bytes], first_line: int) -> Iterator[ProducedRecord]:
    """Yield the record of each line; empty lines are skipped. Raises InvalidRequest that names a line and what is wrong with it."""
    for number, line in enumerate(lines, first_line):
        if not line.strip():
            continue
        try:
            record = _decode(line)
            value = _bytes("value", record.value, record.value_base64)
            key = None if record.key is record.key_base64 is UNSET else _bytes("key", record.key, record.key_base64)
            headers = [
                (header.key, _bytes(f"value of header {header.key!r}", header.value, header.value_base64))
                for header in record.headers or ()
            ]
        except (msgspec.DecodeError, UnicodeError, InvalidRequest) as error:
            raise InvalidRequest(
                f"line {number} is not a record: {error}; write each as consume --json prints it, as in "
                '{"key":"a","headers":[{"key":"h","value":"1"}],"value":"text"}'
            ) from None
        yield key, value, headers


def _bytes(what: str, text: str | UnsetType | None, encoded: str | UnsetType) -> bytes | None:
    """The bytes that are given as text or in base64; None for null."""
    if isinstance(encoded, UnsetType):
        if isinstance(text, UnsetType):
            raise InvalidRequest(f"it has no {what} (write null for none)")
        return None if text is None else text.encode()
    if not isinstance(text, UnsetType):
        raise InvalidRequest(f"it has the {what} twice, as text and in base64")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"the {what} is not base64: {error}") from None

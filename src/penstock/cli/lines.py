"""Records out of a stream of bytes: a line is a record, whatever bytes it holds.

Whole reads are split at once, and what a slow writer sends is handed on as it comes. Memory is bounded by one read and one line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from penstock.cli import terminal
from penstock.errors import InvalidRequest, RecordTooLarge
from penstock.units import format_size

READ_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 32 << 20
JSON_LINE_BYTES_MAX = 7 * LINE_BYTES_MAX
"""A record of that size as JSON: a control character takes six bytes, and base64 less."""

KeyedValue = tuple[bytes | None, bytes]
ProducedRecord = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Key, value and headers."""


@contextmanager
def open_input(file: Path | None) -> Iterator[BinaryIO]:
    """The file, or standard input if there is none or its name is a dash."""
    if file is None or str(file) == "-":
        if sys.stdin.isatty():
            terminal.hint("one record a line; Ctrl-D ends")
        yield sys.stdin.buffer
    else:
        with file.open("rb") as stream:
            yield stream


def lines_of(stream: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[list[bytes]]:
    """The lines that each read completes, without their newlines; a last line may lack one."""
    rest: list[bytes] = []
    rest_bytes = 0
    read = getattr(stream, "read1", stream.read)
    while data := read(READ_BYTES_MAX):
        *complete, last = data.split(b"\n")
        if complete:
            complete[0] = b"".join([*rest, complete[0]])
            rest, rest_bytes = [], 0
            yield complete
        if last:
            rest.append(last)
            rest_bytes += len(last)
            if rest_bytes > line_bytes_max:
                raise RecordTooLarge(f"a line is longer than {format_size(line_bytes_max)}: no record may be")
    if rest:
        yield [b"".join(rest)]


def whole(stream: BinaryIO) -> bytes:
    """Everything the stream holds, as one record."""
    data = stream.read(LINE_BYTES_MAX + 1)
    if len(data) > LINE_BYTES_MAX:
        raise RecordTooLarge(f"the input is larger than {format_size(LINE_BYTES_MAX)}: no record may be")
    return data


def split_keys(lines: list[bytes], separator: bytes, first_line: int) -> Iterator[ProducedRecord]:
    """Yield key and value of each line, cut at the first separator. Raises InvalidRequest naming a line that has none."""
    for number, line in enumerate(lines, first_line):
        key, found, value = line.partition(separator)
        if not found:
            raise InvalidRequest(
                f"line {number} has no {separator.decode(errors='backslashreplace')!r} between key and value: "
                "correct it, or leave out --key-separator"
            )
        yield key or None, value, ()

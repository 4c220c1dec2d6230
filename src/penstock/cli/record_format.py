"""`consume --format`: a line of your own for each record, with the letters that kcat has.

A format is text with fields (`%k`) and escapes (`\\n`, `\\x00`). It is compiled once; nothing is added behind a record.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from penstock.cli import terminal

if TYPE_CHECKING:
    from penstock.clients.records import Record

Render = Callable[["Record"], bytes]

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_TOKENS = re.compile(r"%(?P<field>.?)|\\(?:x(?P<code>[0-9a-fA-F]{2})|(?P<escape>.?))|(?P<text>[^%\\]+)", re.DOTALL)


def compile_format(text: str, *, raw: bool) -> Render:
    """Return what renders a record. Raises BadParameter that names the part that is wrong.

    Keys, values and headers are escaped as in other output, unless `raw`.
    """
    show = _as_is if raw else visible_cell
    parts = [_part(match, show) for match in _TOKENS.finditer(text)]

    def render(record: Record) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(record) for part in parts])

    return render


def headers_text(record: Record, show: Callable[[bytes | None], bytes]) -> bytes:
    """Headers as name=value,name=value; a header without a value is its name."""
    return b",".join(
        show(name.encode()) if value is None else show(name.encode()) + b"=" + show(value)
        for name, value in record.headers
    )


def _part(match: re.Match[str], show: Callable[[bytes | None], bytes]) -> bytes | Render:
    if (text := match["text"]) is not None:
        return text.encode(errors="surrogateescape")
    if (code := match["code"]) is not None:
        return bytes.fromhex(code)
    if (escape := match["escape"]) is not None:
        if escape not in _ESCAPES:
            raise typer.BadParameter(f"--format: \\{escape} is not an escape: use \\n, \\r, \\t, \\0, \\\\ or \\xNN")
        return _ESCAPES[escape]
    match match["field"]:
        case "%":
            return b"%"
        case "t":
            return lambda record: show(record.topic.encode())
        case "p":
            return lambda record: b"%d" % record.partition
        case "o":
            return lambda record: b"%d" % record.offset
        case "T":
            return lambda record: b"%d" % (-1 if record.timestamp_ms is None else record.timestamp_ms)
        case "k":
            return lambda record: show(record.key)
        case "K":
            return lambda record: _length(record.key)
        case "s" | "v":
            return lambda record: show(record.value)
        case "S":
            return lambda record: _length(record.value)
        case "h":
            return lambda record: headers_text(record, show)
    raise typer.BadParameter(
        f"--format: %{match['field']} is not a field: use %t, %p, %o, %T, %k, %K, %v, %S or %h, and %% for a percent sign"
    )


def _length(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


def _as_is(data: bytes | None) -> bytes:
    return data or b""


def visible_cell(data: bytes | None) -> bytes:
    return terminal.visible_bytes(data or b"").encode()

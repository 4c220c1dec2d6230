"""What commands print: tables and colours for a person at a terminal, plain columns in a pipe, JSON for programs.

Standard output carries the answer and nothing else; hints, progress and errors go to standard error. Text that came from outside
(record values, topic names) is escaped before it reaches a terminal, so that no record can move the cursor or change its title.

Whether there are colours is decided in one place, `has_colours`: NO_COLOR and TERM=dumb switch them off, FORCE_COLOR and
CLICOLOR_FORCE switch them on without a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import typer

from penstock.cli.options import wants_json
from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

_Item = TypeVar("_Item")

# C0 and C1 controls and the backslash-free forms people know; a tab is harmless and stays.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\t",
}


COLUMN_GAP = "  "
FOLDED_WIDTH_MIN = 16
"""A column of free text gets narrower down to this before others are left out."""


def has_colours(stream: TextIO) -> bool:
    """Whether text on this stream may have colours."""
    env = os.environ
    if env.get("NO_COLOR") or env.get("CLICOLOR") == "0":
        return False
    if any(env.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return stream.isatty() and env.get("TERM") != "dumb"


def style(text: str, *, err: bool = False, **styles: Any) -> str:
    """The text in a style of `typer.style`, where colours are wanted."""
    return typer.style(text, **styles) if has_colours(sys.stderr if err else sys.stdout) else text


def console(*, stderr: bool = False) -> Console:
    """A rich console on standard output or standard error."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    coloured = has_colours(stream)
    return Console(
        stderr=stderr,
        highlight=False,
        soft_wrap=False,
        force_terminal=True if coloured and not stream.isatty() else None,
        # "auto" finds no colours where TERM or a pipe says so, although they were asked for.
        color_system=None if not coloured else "auto" if stream.isatty() else "standard",
    )


def on_terminal() -> bool:
    """Whether a person reads standard output."""
    return sys.stdout.isatty()


def visible(text: str) -> str:
    """The text with every control character shown instead of obeyed, on one line."""
    return text.translate(_VISIBLE)


def visible_bytes(data: bytes) -> str:
    """Bytes as text where they are UTF-8, the rest as \\xNN."""
    return visible(data.decode("utf-8", "backslashreplace"))


def print_json(value: object) -> None:
    """One JSON document: indented at a terminal, on one line elsewhere."""
    print(json.dumps(value, ensure_ascii=False, indent=2 if on_terminal() else None))


def name(text: str) -> str:
    """A name as one word of a table: quoted as a shell wants it where it has spaces or quotes."""
    if text and not any(each.isspace() or each in "'\"\\" for each in text):
        return text
    import shlex

    return shlex.quote(text)


def print_outcome(context: typer.Context, text: str, data: Mapping[str, object]) -> None:
    """Print what a command has done: a line for people, an object for programs."""
    if wants_json(context):
        print_json(data)
    else:
        print(visible(text))


def print_list(
    context: typer.Context,
    items: Sequence[_Item],
    as_json: Callable[[_Item], object],
    columns: Sequence[str],
    as_row: Callable[[_Item], Sequence[object]],
    *,
    empty: str = "",
    right: Sequence[str] = (),
    fold: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> None:
    """Print what a command has found: a table for people, a list of objects for programs. `empty` is the hint if there is nothing."""
    if wants_json(context):
        print_json([as_json(each) for each in items])
    elif empty and not items and on_terminal():
        hint(empty)
    else:
        print_table(columns, map(as_row, items), right=right, fold=fold, drop=drop)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    fold: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> None:
    """Rows under their headings; the columns named in `right` hold numbers and are aligned so.

    What does not fit a terminal: columns in `fold` hold free text and are broken into lines, then those in `drop` are left out, the
    first first. No other column is broken: ids, names and times stay whole.
    """
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    if on_terminal():
        _print_for_people(columns, cells, right, fold, drop)
        return
    widths = _widths(columns, cells)
    aligned = [column in right for column in columns]
    print(style(_joined(columns, widths, aligned), bold=True))
    for line in cells:
        print(_joined(line, widths, aligned))


def _print_for_people(
    columns: Sequence[str], cells: list[list[str]], right: Sequence[str], fold: Sequence[str], drop: Sequence[str]
) -> None:
    widths = _widths(columns, cells)
    room = terminal_width()
    shown = list(range(len(columns)))
    dropped = list(drop)

    def excess() -> int:
        return sum(widths[i] for i in shown) + len(COLUMN_GAP) * (len(shown) - 1) - room

    for i in [i for i in shown if columns[i] in fold]:
        widths[i] = max(min(widths[i], FOLDED_WIDTH_MIN), widths[i] - max(0, excess()))
    while excess() > 0 and dropped:
        left_out = dropped.pop(0)
        shown = [i for i in shown if columns[i] != left_out]
    aligned = [columns[i] in right for i in shown]
    kept = [widths[i] for i in shown]
    print(style(_joined([columns[i] for i in shown], kept, aligned), bold=True))
    print(style(COLUMN_GAP.join("─" * width for width in kept), dim=True))
    for line in cells:
        broken = [_broken(line[i], widths[i]) for i in shown]
        for at in range(max(map(len, broken))):
            print(_joined([part[at] if at < len(part) else "" for part in broken], kept, aligned))
    if len(shown) < len(columns):
        names = ", ".join(column for i, column in enumerate(columns) if i not in shown)
        hint(f"columns left out: {names} (widen the terminal, or use --json)")


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    from rich.cells import cell_len

    return [max(cell_len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]


def _joined(line: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    from rich.cells import cell_len

    padded = [
        " " * (width - cell_len(cell)) + cell if aligned else cell + " " * (width - cell_len(cell))
        for cell, width, aligned in zip(line, widths, right, strict=True)
    ]
    return COLUMN_GAP.join(padded).rstrip()


def _broken(cell: str, width: int) -> list[str]:
    from rich.cells import cell_len

    if cell_len(cell) <= width:
        return [cell]
    import textwrap

    return textwrap.wrap(cell, width) or [""]


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values under one another."""
    width = max(map(len, fields))
    for name, value in fields.items():
        label = style(name.ljust(width), dim=True)
        print(f"{label}  {visible(str(value))}")


def terminal_width() -> int:
    """How many columns the terminal has; COLUMNS counts first."""
    import shutil

    return shutil.get_terminal_size().columns


def wrapped(text: str, *, indent: int) -> str:
    """The text some columns in; broken into lines at a terminal, one line elsewhere."""
    if not on_terminal():
        return " " * indent + text
    import textwrap

    width = max(indent + 20, terminal_width())
    return textwrap.fill(text, width, initial_indent=" " * indent, subsequent_indent=" " * (indent + 3))


def hint(text: str) -> None:
    """A remark for the person at the terminal; nothing if there is none."""
    if sys.stderr.isatty():
        print(style(visible(text), err=True, dim=True), file=sys.stderr)


def print_note(text: str) -> None:
    """Something a program's log should have too, on standard error."""
    print(visible(text), file=sys.stderr)


def print_error(message: str) -> None:
    """What went wrong and what to do, on standard error; each line stands for one problem."""
    label = style("error:", err=True, fg="red", bold=True)
    for line in message.splitlines() or [""]:
        print(f"{label} {visible(line)}", file=sys.stderr)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone. Without a terminal, only `--yes` continues."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"{question} There is no terminal to ask on: add --yes to continue")
    if not typer.confirm(visible(question), err=True):
        raise typer.Exit(1)


def local_time(timestamp_ms: int) -> str:
    """A time as the clock on the wall shows it; elsewhere than at a terminal one word with its zone."""
    from datetime import datetime

    time = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    return f"{time:%Y-%m-%d %H:%M:%S}" if on_terminal() else time.isoformat("T", "seconds")


def flush() -> None:
    sys.stdout.flush()


def json_bytes(name: str, data: bytes | None) -> dict[str, Any]:
    """A member of a JSON object: the text itself where the bytes are UTF-8, otherwise base64 under `<name>_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        import base64

        return {f"{name}_base64": base64.b64encode(data).decode()}

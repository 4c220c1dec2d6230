"""What commands print: tables and colours for a person at a terminal, plain columns in a pipe, JSON for programs.

Standard output carries the answer and nothing else; hints, progress and errors go to standard error. Text that came from outside
(record values, topic names) is escaped before it reaches a terminal, so that no record can move the cursor or change its title.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

# C0 and C1 controls and the backslash-free forms people know; a tab is harmless and stays.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\t",
}


def console(*, stderr: bool = False) -> Console:
    """A rich console on standard output or standard error."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


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


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Rows under their headings; the columns named in `right` hold numbers and are aligned so."""
    cells: list[Sequence[str]] = [[visible(str(cell)) for cell in row] for row in rows]
    if on_terminal():
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
        for column in columns:
            table.add_column(column, justify="right" if column in right else "left", overflow="fold")
        for line in cells:
            table.add_row(*map(Text, line))
        console().print(table)
        return
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    for line in [columns, *cells]:
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        print("  ".join(padded).rstrip())


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values under one another."""
    width = max(map(len, fields))
    for name, value in fields.items():
        label = typer.style(name.ljust(width), dim=True) if on_terminal() else name.ljust(width)
        print(f"{label}  {visible(str(value))}")


def wrapped(text: str, *, indent: int) -> str:
    """The text some columns in; broken into lines at a terminal, one line elsewhere."""
    if not on_terminal():
        return " " * indent + text
    import shutil
    import textwrap

    width = max(indent + 20, shutil.get_terminal_size().columns)
    return textwrap.fill(text, width, initial_indent=" " * indent, subsequent_indent=" " * (indent + 3))


def hint(text: str) -> None:
    """A remark for the person at the terminal; nothing where there is none."""
    if sys.stderr.isatty():
        typer.secho(text, err=True, dim=True)


def print_note(text: str) -> None:
    """Something a program's log should have too, on standard error."""
    print(visible(text), file=sys.stderr)


def print_error(message: str) -> None:
    """What went wrong and what to do, on standard error; each line stands for one problem."""
    label = typer.style("error:", fg="red", bold=True) if sys.stderr.isatty() else "error:"
    for line in message.splitlines() or [""]:
        print(f"{label} {visible(line)}", file=sys.stderr)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone. Without a terminal to ask at, only `--yes` goes on."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"{question} There is no terminal to ask at: add --yes to go on")
    if not typer.confirm(visible(question), err=True):
        raise typer.Exit(1)


def local_time(timestamp_ms: int) -> str:
    """A time as the clock on the wall shows it."""
    from datetime import datetime

    return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().isoformat(" ", "seconds")


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

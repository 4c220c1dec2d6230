"""The screen of `penstock top`: what fits a terminal, most interesting rows first."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.cli import terminal
from penstock.cli.rates import Rates
from penstock.cli.subscription import behind
from penstock.units import round_size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

SORTS: dict[str, tuple[str, Callable[[Rates, str], Any]]] = {
    "r": ("rate", lambda rates, topic: (-rates.topic(topic), topic)),
    "n": ("name", lambda rates, topic: topic),
    "s": ("size", lambda rates, topic: (-rates.after.topics[topic].size_bytes, topic)),
    "c": ("records", lambda rates, topic: (-rates.after.topics[topic].records, topic)),
}
"""By key: what topics are sorted by."""
LINES_AROUND = 10
"""Of the screen, besides the rows of listeners, topics and groups."""
ROWS_MIN = 2


def number(value: float) -> str:
    """A rate or a count in at most six characters: 950, 12.3k, 4.56M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def render(rates: Rates, *, sort: str, height: int, note: str, trouble: str, keys: bool) -> RenderableType:
    """The whole screen. `note` is a remark, `trouble` says why the numbers are old."""
    from rich.console import Group

    groups = sorted(rates.after.groups, key=lambda each: (-each.lag, each.group, each.topic))
    rows = max(2 * ROWS_MIN, height - LINES_AROUND)
    listener_rows = min(len(rates.after.listeners), rows - 2 * ROWS_MIN)
    rows -= listener_rows
    group_rows = max(ROWS_MIN, min(len(groups), rows // 2))
    topic_rows = max(ROWS_MIN, rows - group_rows)
    group_rows = max(ROWS_MIN, rows - min(topic_rows, max(ROWS_MIN, len(rates.after.topics))))
    return Group(
        *_head(rates, note, trouble),
        _listeners(rates, listener_rows),
        "",
        _topics(rates, sort, topic_rows),
        "",
        _groups(rates, groups[:group_rows], len(groups) - group_rows),
        *([_footer(sort)] if keys else []),
    )


def _head(rates: Rates, note: str, trouble: str) -> list[RenderableType]:
    from rich.text import Text

    sample = rates.after
    state = Text("ready", "green") if sample.ready else Text("not ready", "bold red")
    if trouble:
        state = Text("gone", "bold red")
    first = Text.assemble(
        (f"penstock {terminal.visible(sample.version)}", "bold"),
        "  ",
        state,
        f"  up {behind(int(1000 * max(0.0, time.time() - sample.started_s)))}",
        f"  {sample.connections} connections",
        f"  cpu {100 * rates.of('cpu_s'):.0f}%",
        f"  memory {round_size(sample.memory_bytes)}",
    )
    flush = rates.flush_ms
    second = Text(
        f"appends {number(rates.of('appended_records'))}/s, {round_size(rates.of('appended_bytes'))}/s"
        + ("" if flush is None else f", flush {flush:.2f} ms")
        + f"   disk {round_size(sample.stored_bytes)} stored"
        + ("" if sample.disk_free_bytes is None else f", {round_size(sample.disk_free_bytes)} free")
    )
    third = Text(f"pending: {sample.delayed_pending} delayed, {sample.transactions_open} transactions")
    if trouble:
        third = Text(terminal.visible(trouble), "bold red")
    elif sample.problems:
        more = f" (and {len(sample.problems) - 1} more)" if len(sample.problems) > 1 else ""
        third = Text(terminal.visible(sample.problems[0]) + more, "bold red")
    elif note:
        third = Text(terminal.visible(note), "yellow")
    for line in (first, second, third):
        line.no_wrap, line.overflow = True, "ellipsis"
    return [first, second, third]


def _table(*columns: str) -> Table:
    """A table whose first column takes what room there is; the others hold numbers, but for names."""
    from rich.table import Table

    table = Table(box=None, expand=True, pad_edge=False, header_style="bold reverse", padding=(0, 1, 0, 0))
    for column in columns:
        is_name = column in ("topic", "group", "listener")
        table.add_column(
            column,
            justify="left" if is_name else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if is_name else None,
        )
    return table


def _listeners(rates: Rates, rows: int) -> RenderableType:
    table = _table("listener", "connections", "requests/s", "records in/s", "out/s", "bytes in/s", "out/s")
    for name, each in list(rates.after.listeners.items())[:rows]:
        table.add_row(
            name,
            str(each.connections),
            *(number(rates.listener(name, counter)) for counter in ("requests", "received_records", "sent_records")),
            *(round_size(rates.listener(name, counter)) for counter in ("received_bytes", "sent_bytes")),
        )
    return table


def _topics(rates: Rates, sort: str, rows: int) -> RenderableType:
    table = _table("topic", "partitions", "records", "records/s", "size")
    names = sorted(rates.after.topics, key=lambda topic: SORTS[sort][1](rates, topic))
    shown = names if len(names) <= rows else names[: rows - 1]
    for name in shown:
        topic = rates.after.topics[name]
        table.add_row(
            _cell(terminal.name(name)),
            str(topic.partitions),
            number(topic.records),
            number(rates.topic(name)),
            round_size(topic.size_bytes),
        )
    if len(shown) < len(names):
        table.add_row(_cell(f"... {len(names) - len(shown)} more topics", "dim"))
    elif not names:
        table.add_row(_cell("no topics yet", "dim"))
    return table


def _groups(rates: Rates, groups: list[Any], hidden: int) -> RenderableType:
    table = _table("group", "topic", "lag", "change/s", "behind")
    for group in groups[:-1] if hidden > 0 else groups:
        change = rates.lag(group)
        table.add_row(
            _cell(terminal.name(group.group)),
            _cell(terminal.name(group.topic)),
            number(group.lag),
            ("+" if change > 0 else "-" if change < 0 else "") + number(abs(change)),
            behind(None if group.seconds is None else int(1000 * group.seconds)),
        )
    if hidden > 0:
        table.add_row(_cell(f"... {hidden + 1} more groups", "dim"))
    elif not groups:
        table.add_row(_cell("no groups yet", "dim"))
    return table


def _footer(sort: str) -> RenderableType:
    from rich.text import Text

    keys = "  ".join(f"[{key}] {word}" if key == sort else f"{key} {word}" for key, (word, _) in SORTS.items())
    return Text(f"q quit   sort topics by: {keys}", "dim", no_wrap=True, overflow="ellipsis")


def _cell(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(terminal.visible(text), style)

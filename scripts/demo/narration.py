"""How the demo talks: numbered steps, what each shows, and tables."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table


class Narrator:
    def __init__(self, console: Console) -> None:
        self.console = console
        self._numbers = itertools.count(1)
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._started

    def step(self, title: str, what_it_shows: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{next(self._numbers)}. {title}[/bold]", align="left")
        self.console.print(f"[dim]{what_it_shows}[/dim]", highlight=False)

    def say(self, text: str) -> None:
        self.console.print(f"[bold]>[/bold] {text}", highlight=False, soft_wrap=True)

    def table(self, title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
        """Numbers to the right, with commas; everything else to the left."""
        lines = [tuple(row) for row in rows]
        table = Table(title=title, title_justify="left")
        for position, name in enumerate(columns):
            numeric = bool(lines) and all(isinstance(line[position], int | float) for line in lines)
            table.add_column(name, justify="right" if numeric else "left", overflow="fold")
        for line in lines:
            table.add_row(*map(_cell, line))
        self.console.print(table)


class DemoFailed(SystemExit):
    """What came out is not what went in; the message says where."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the demo failed: {what}")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)

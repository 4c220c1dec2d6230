"""The documents as programs: the commands and programs that they show, what they say is printed, and a shell that runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUN_S_MAX = 200
CHANGING = re.compile(r"txn-[0-9a-f]{32}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00|\b\d{13}-\d+\b")
"""Ids and times: what is printed differs in these from what is shown."""


def page(name: str) -> str:
    """A document by its path in the tree."""
    return (ROOT / name).read_text()


def blocks(kind: str, text: str) -> list[str]:
    """What stands in fenced blocks of this kind."""
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


def commands_in(block: str) -> Iterator[tuple[str, str]]:
    """Each command, its lines of input included, and what the page says that it prints."""
    for part in block.removeprefix("$ ").split("\n$ "):
        lines = part.splitlines()
        more = [number for number, line in enumerate(lines) if line.startswith("> ")]
        end = more[-1] + 1 if more else 1
        yield (
            "\n".join(line.removeprefix("> ") for line in lines[:end]),
            "".join(f"{line}\n" for line in lines[end:]),
        )


def run_shown(text: str, url: str, cwd: Path, *, leave_out: Callable[[str], bool] = lambda _: False) -> tuple[str, str]:
    """Run the commands of a document, in one shell, against a broker: what is printed, and what it says is.

    Ids and times are the same word in both.
    """
    shown = [each for block in blocks("console", text) for each in commands_in(block) if not leave_out(each[0])]
    functions = f'penstock() {{ "{sys.executable}" -m penstock "$@"; }}'
    done = subprocess.run(
        ["bash", "-c", "\n".join([functions, *(command for command, _ in shown)])],
        cwd=cwd,
        env={**os.environ, "PENSTOCK_SERVER": url, "COLUMNS": "80", "TZ": "UTC"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )
    return CHANGING.sub("ID", done.stdout), CHANGING.sub("ID", "".join(output for _, output in shown))

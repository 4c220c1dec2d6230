"""Markdown for generated pages: headings, tables, wrapped text."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
COLUMNS = 98
GENERATED = "This page is generated from the code: `make reference` writes it, and a test fails if it is stale."


def document(*blocks: str) -> str:
    """Return a page of these blocks, a blank line between them; empty ones are left out."""
    return "\n\n".join(block.strip("\n") for block in blocks if block.strip()) + "\n"


def prose(text: str) -> str:
    """Return text in which `<` does not begin a tag, except in code."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def wrapped(text: str, indent: str = "") -> str:
    """Return the text as one paragraph, filled to the width of the documents."""
    return textwrap.fill(
        " ".join(text.split()), COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, or an empty string if there are no rows."""
    lines = [_row(row) for row in rows]
    return "\n".join([_row(head), "|" + "---|" * len(head), *lines, ""]) if lines else ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def code(text: object) -> str:
    return f"`{text}`"


def paragraphs(docstring: str) -> str:
    """Return a docstring as Markdown: paragraphs filled, lists and code as they are."""
    parts: list[str] = []
    for part in re.split(r"(```.*?```)", inspect.cleandoc(docstring), flags=re.DOTALL):
        if part.startswith("```"):
            parts.append(part)
        else:
            parts += [_paragraph(each) for each in re.split(r"\n\s*\n", part.strip("\n")) if each.strip()]
    return "\n\n".join(parts)


def _paragraph(text: str) -> str:
    if text.startswith("    "):
        return f"```python\n{textwrap.dedent(text)}\n```"
    return text if text.startswith(("- ", "| ")) else wrapped(prose(text))

"""Puts the modules of clients into the wheel of penstock-client: the roots below, and what of Penstock they import.

Imports inside functions count, and those for type checkers only: the wheel has `py.typed`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).parent.parent / "src"
ROOTS = (
    "penstock/__init__.py",
    "penstock/errors.py",
    "penstock/protocols/*/client.py",
    "penstock/protocols/*/client/*.py",
    "penstock/protocols/*/sync.py",
    "penstock/spark/*.py",
    "pyspark_penstock*/__init__.py",
)
MARKS_OF_TYPES = "*/py.typed"


def client_modules() -> set[Path]:
    """The source files that a client needs, in `SOURCE`."""
    found: set[Path] = set()
    waiting = [path for root in ROOTS for path in SOURCE.glob(root)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported_by(path)
    return found


def _imported_by(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            yield from _files_of(name)


def _files_of(name: str) -> Iterator[Path]:
    """The file of a module of ours and those of the packages it is in; what is not a module has none."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        place = SOURCE.joinpath(*parts[:end])
        yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.exists())


class ClientModules(BuildHookInterface[Any]):
    """What hatchling calls before it builds the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_data["force_include"] |= {
            str(path): path.relative_to(SOURCE).as_posix()
            for path in client_modules() | set(SOURCE.glob(MARKS_OF_TYPES))
        }

"""The table in docs/protocols/quic.md names every test of this folder, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[2] / "docs" / "protocols" / "quic.md"
ROW = re.compile(r"^\|.*\| `(test_\w+)` \|$", re.MULTILINE)


def functions_here() -> list[str]:
    modules = [path for path in HERE.glob("test_*.py") if path.name != Path(__file__).name]
    functions = [node for path in modules for node in ast.parse(path.read_text()).body]
    return [
        node.name
        for node in functions
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def table() -> list[str]:
    _, _, section = DOCUMENT.read_text().partition("\n## Tests\n")
    return ROW.findall(section.partition("\n## ")[0])


def test_the_table_names_every_test_once() -> None:
    assert sorted(table()) == sorted(functions_here())

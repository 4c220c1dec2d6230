"""The notebooks of examples/ do what they show: their cells are run in order, and print what is stored below them."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
ADDRESS = "127.0.0.1:9092"


def printed_by_cells(notebook: dict[str, Any], address: str, directory: Path) -> list[tuple[dict[str, Any], str]]:
    """Run the cells of code one after another; returns each with what it printed."""
    names: dict[str, Any] = {}
    found = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        program = "".join(cell["source"]).replace(ADDRESS, address)
        # Spark's own process is where it was started, wherever this test is.
        program = program.replace("notebook-checkpoints/", f"{directory}/notebook-checkpoints/")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(program, names)
        found.append((cell, output.getvalue()))
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, path: Path
) -> None:
    cells = printed_by_cells(json.loads(path.read_text()), broker.address, tmp_path)
    assert cells
    for cell, printed in cells:
        shown = "".join("".join(each["text"]) for each in cell["outputs"])
        assert printed == shown, "".join(cell["source"])


def test_there_are_notebooks_in_the_format_that_tools_read() -> None:
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text())
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])

"""The manual's page on pipelines, without Spark: files are valid, commands can be given, tables name every setting."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from penstock.cli.main import app
from penstock.spark.pipelines.model import Bronze, Connection, Gold, Pipeline, Silver, Spark, load_pipeline
from penstock.testing import RunningBroker
from tests.manual import commands_in
from tests.spark.test_tutorial import run_command

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()
FILES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    (command, shown)
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for command, shown in commands_in(block)
]


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningBroker]:
    monkeypatch.chdir(tmp_path)
    with RunningBroker() as broker:
        yield broker


@pytest.mark.parametrize("text", FILES)
def test_every_file_is_a_pipeline(text: str) -> None:
    # What shows some settings only is put on top of the one that shows a whole.
    pipeline = Pipeline.model_validate({**tomllib.loads(FILES[0]), **tomllib.loads(text)})
    assert pipeline.name == "sales"


def test_the_first_pipeline_comes_about_as_shown(broker: RunningBroker) -> None:
    ran = 0
    for command, shown in COMMANDS:
        if command.startswith("pip "):
            continue
        if command.startswith("penstock pipeline run"):
            break
        assert run_command(command, broker) == shown, command
        ran += 1
    assert ran == 5
    pipeline = load_pipeline(Path("sales.toml"))
    assert [pipeline.name, pipeline.topics, [gold.name for gold in pipeline.gold]] == [
        "sales",
        ["orders"],
        ["orders_per_minute"],
    ]


def test_the_table_names_every_setting() -> None:
    rows = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| "))
    written = set(re.findall(r"`([a-z_]+)`", rows)) | set(re.findall(r"`\[+([a-z]+)\]+`", rows))
    known = {name for section in (Pipeline, Connection, Bronze, Silver, Gold, Spark) for name in section.model_fields}
    assert known <= written


def test_the_table_names_every_command() -> None:
    root: Any = typer.main.get_command(app)
    assert set(re.findall(r"^\| `penstock pipeline (\w+)", PAGE, re.MULTILINE)) == set(
        root.commands["pipeline"].commands
    )

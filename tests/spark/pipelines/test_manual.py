"""The manual's page on pipelines: files are valid, commands do what is shown, tables name every setting."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from penstock.cli import pipeline_running
from penstock.cli.main import app, main
from penstock.spark.pipelines.model import Bronze, Connection, Gold, Pipeline, Silver, Spark
from penstock.testing import RunningBroker
from tests.manual import commands_in
from tests.spark.test_tutorial import run_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def test_every_command_does_what_is_shown(
    spark: SparkSession,
    broker: RunningBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    @contextmanager
    def the_session_of_all_tests(*given: object, **settings: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(pipeline_running, "spark_session", the_session_of_all_tests)
    monkeypatch.setenv("PENSTOCK_SERVER", broker.url)

    def run_here(command: str) -> str:
        """A command that needs Spark: a process of its own would start another."""
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command)[1:])
        said = capfd.readouterr()
        assert ended.value.code == 0, said.err
        return said.out

    ran = 0
    for command, shown in COMMANDS:
        if command.startswith("pip "):
            continue
        needs_spark = command.startswith(tuple(f"penstock pipeline {each}" for each in ("run", "replay", "rebuild")))
        told = run_here(command) if needs_spark else run_command(command, broker)
        assert not shown or told == shown, command
        ran += 1
    assert ran == 12
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program.replace('"sales-tables', f'"{tmp_path}/sales-tables'), {})
    assert "|  1|     DE|   9.5|" in printed.getvalue()
    with broker.connect() as client:
        assert len(client.dead_letters.list("orders")) == 1
        assert len(list(client.records("orders-again"))) == 3, "of the past hour that the page names there is nothing"


def test_the_table_names_every_setting() -> None:
    rows = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| "))
    written = set(re.findall(r"`([a-z_]+)`", rows)) | set(re.findall(r"`\[+([a-z]+)\]+`", rows))
    sections = (Pipeline, Connection, Bronze, Silver, Gold, Spark)
    known = {field.alias or name for section in sections for name, field in section.model_fields.items()}
    assert known <= written


def test_the_table_names_every_command() -> None:
    root: Any = typer.main.get_command(app)
    assert set(re.findall(r"^\| `penstock pipeline (\w+)", PAGE, re.MULTILINE)) == set(
        root.commands["pipeline"].commands
    )

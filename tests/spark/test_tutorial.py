"""The tutorial does what it says: every command and every program in it is run, in its order, and what it shows is what comes out."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.testing import BrokerProcess, RunningBroker
from tests.manual import commands_in
from tests.spark.jvm import FAST_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"```(console|python|text)\n(.*?)```", re.DOTALL)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")
COMMAND_S_MAX = 180


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    """The broker of the tutorial, on free ports, its data where the tutorial has it."""
    monkeypatch.chdir(tmp_path)
    with BrokerProcess(tmp_path / "penstock-data", config='[listeners.felix]\nbind = "127.0.0.1:0"\n') as broker:
        yield broker


def run_command(command: str, broker: BrokerProcess | RunningBroker) -> str:
    # Spark as it is installed: what it starts has its Python modules from a zip.
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    functions = f'penstock() {{ "{sys.executable}" -m penstock "$@"; }}; python() {{ "{sys.executable}" "$@"; }}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{functions}\n{command}"],
        env={
            **environment,
            "PENSTOCK_SERVER": broker.url,
            "COLUMNS": "200",
            "JAVA_TOOL_OPTIONS": FAST_SETTINGS["spark.driver.extraJavaOptions"],
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S_MAX,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.jvm
@pytest.mark.timeout(400)
def test_the_tutorial_runs_as_written(spark: SparkSession, shop: BrokerProcess) -> None:
    names: dict[str, Any] = {}
    printed = ""
    ran = 0
    for kind, block in BLOCK.findall(PAGE):
        if kind == "python":
            program = block.replace("127.0.0.1:9092", shop.address).replace("127.0.0.1:5000", shop.addresses["felix"])
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(program, names)
            printed = output.getvalue()
        elif kind == "text":
            assert printed.startswith(block), "what the program before it prints"
        else:
            for command, shown in commands_in(block):
                if command.startswith("penstock serve"):
                    continue
                told = run_command(command, shop)
                assert not shown or TIME.sub("TIME", told) == TIME.sub("TIME", shown), command
                ran += 1
    assert ran == 13
    # What the pipeline wrote to gold, and the page does not show.
    windows = {(row.start.hour, row.channel): row.records for row in names["gold"].collect()}
    assert windows == {
        (hour, channel): {"web": 250, "till": 100}[channel] for hour in (8, 9, 10) for channel in ("web", "till")
    } | {
        (11, "web"): 250,
        (11, "till"): 100,
    }


def test_the_addresses_in_the_tutorial_are_those_of_a_broker_without_a_file() -> None:
    from penstock.config.model import Config

    listeners = Config().listeners
    shown = dict(re.findall(r"^(\w+) on (127\.0\.0\.1:\d+)", PAGE, re.MULTILINE))
    for name in ("flymq", "blipmq", "rustlog", "fujin", "felix"):
        assert str(getattr(listeners, name).bind) == shown[name]

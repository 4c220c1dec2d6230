"""The pipeline of the demo: one file, and one command that runs its three stages on local Spark until everything is read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from penstock.testing.process import BrokerProcess
from scripts.demo.intake import TOPIC
from scripts.demo.narration import DemoFailed, Narrator
from scripts.demo.orders import SCHEMA, WITH_REFUNDS

FILE: Final = Path(__file__).with_name("orders.toml")
ROOT: Final = FILE.parents[2]
NAME: Final = "orders"
SCHEMA_NAME: Final = "order"
GOLD: Final = "turnover"
GOLD_TOPIC: Final = "turnover-by-channel"
RUN_S_MAX: Final = 600


def describe(broker: BrokerProcess, directory: Path) -> Path:
    """Register the schema, and put the pipeline's file where its tables are to be."""
    with broker.connect() as client:
        client.schemas.register(SCHEMA_NAME, json.dumps(SCHEMA))
        client.create_topic(GOLD_TOPIC)
    file = directory / FILE.name
    file.write_text(FILE.read_text().replace("127.0.0.1:9092", broker.address))
    return file


def run(narrator: Narrator, file: Path) -> None:
    narrator.say(
        f"penstock pipeline run {file.name} --once    (the file: {FILE.relative_to(ROOT)}; Spark takes a while to start)"
    )
    seconds = _run("run", str(file), "--once")
    narrator.say(f"all three stages are through after {seconds:.0f} s, Spark's start included")


def rebuild(narrator: Narrator, broker: BrokerProcess, file: Path) -> None:
    """Register a version of the schema that takes refunds, and make silver again by it."""
    with broker.connect() as client:
        version = client.schemas.register(SCHEMA_NAME, json.dumps(WITH_REFUNDS)).version
        client.truncate_topic(TOPIC, "latest")
    narrator.say(
        f"version {version} of the schema takes refunds; topic {TOPIC} has lost all records to retention by now"
    )
    narrator.say(f"penstock pipeline rebuild {file.name} silver/{TOPIC}")
    _run("rebuild", str(file), f"silver/{TOPIC}")


def _run(*arguments: str) -> float:
    """A command of the pipeline; returns how long it took."""
    at = time.monotonic()
    command = [sys.executable, "-m", "penstock", "pipeline", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False, timeout=RUN_S_MAX)
    if done.returncode:
        raise DemoFailed(f"the pipeline ended with status {done.returncode}; what it said is above")
    return time.monotonic() - at

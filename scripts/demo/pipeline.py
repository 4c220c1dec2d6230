"""The pipeline of the demo: one file, and one command that runs its three stages on local Spark until everything is read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from penstock.testing.process import BrokerProcess
from scripts.demo.narration import DemoFailed, Narrator
from scripts.demo.orders import SCHEMA

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
    command = [sys.executable, "-m", "penstock", "pipeline", "run", str(file), "--once"]
    at = time.monotonic()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False, timeout=RUN_S_MAX)
    if done.returncode:
        raise DemoFailed(f"the pipeline ended with status {done.returncode}; what it said is above")
    narrator.say(f"all three stages are through after {time.monotonic() - at:.0f} s, Spark's start included")

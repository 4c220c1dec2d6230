"""`penstock pipeline run` in a process of its own, killed in the middle of its work: the next run finishes it, each record once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.jvm import FAST_MASTER, FAST_SETTINGS
from tests.spark.pipelines.conftest import Bench, order

RECORDS = 160
BATCHES_BEFORE_THE_KILL = 2


def write_file(bench: Bench, file: Path) -> None:
    pipeline = bench.pipeline
    config = "\n".join(f'"{name}" = "{value}"' for name, value in FAST_SETTINGS.items())
    file.write_text(f"""
name = "{pipeline.name}"
bootstrap = "{pipeline.bootstrap}"
topics = ["{bench.topic}"]
directory = "{pipeline.directory}"
trigger_ms = 0
batch_records_max = 40
[bronze]
[silver]
[spark]
master = "{FAST_MASTER}"
[spark.config]
{config}
""")


@pytest.mark.jvm
@pytest.mark.timeout(300)
def test_a_run_that_is_killed_between_batches_loses_and_doubles_nothing(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    made = bench(bronze={}, silver={}, batch_records_max=40)
    file = tmp_path / "pipeline.toml"
    write_file(made, file)
    made.client.send_many(made.topic, [order(n) if n % 10 else b"nonsense %d" % n for n in range(RECORDS)])
    command = [sys.executable, "-m", "penstock", "pipeline", "run", str(file), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        events = []
        for line in process.stdout:
            events.append(json.loads(line))
            if sum(event["event"] == "batch" for event in events) >= BATCHES_BEFORE_THE_KILL:
                break
        process.kill()
        _, errors = process.communicate()
    assert len(events) > BATCHES_BEFORE_THE_KILL, errors
    assert events[0]["event"] == "started"

    made.run_once()
    assert made.rows("bronze").num_rows == len(made.places()) == RECORDS
    assert made.ids() == [n for n in range(RECORDS) if n % 10]
    letters = made.client.dead_letters.list(made.topic, RECORDS)
    assert sorted(letter.value for letter in letters) == sorted(b"nonsense %d" % n for n in range(0, RECORDS, 10))

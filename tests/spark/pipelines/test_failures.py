"""Whatever Spark throws, people get one line."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError, InvalidRequest
from penstock.spark.pipelines.failures import LINE_CHARS_MAX, explain_failure, is_late_worker

WORKER_TEXT = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted. SQLSTATE: XXKST
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "x.py", line 1, in read
penstock.errors.OffsetOutOfRange: offset out of range: partition 0 of orders begins at 7

	at org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("set it"), "set it"),
        (RuntimeError(WORKER_TEXT), "offset out of range: partition 0 of orders begins at 7"),
        (
            RuntimeError(
                "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` cannot be resolved. SQLSTATE: 42703; line 1\n'Project"
            ),
            "Spark: A column `x` cannot be resolved. [UNRESOLVED_COLUMN.WITH_SUGGESTION]",
        ),
        (
            RuntimeError(
                "[STREAM_FAILED] Query terminated: py4j: x\nTraceback\nZeroDivisionError: division by zero\n\tat java"
            ),
            "ZeroDivisionError: division by zero",
        ),
        (
            RuntimeError("\n\njava.lang.OutOfMemoryError thrown\n\tat a\n\tat b"),
            "Spark: java.lang.OutOfMemoryError thrown",
        ),
        (
            RuntimeError(
                "An error occurred while calling None.x.\n: org.apache.spark.SparkException: Could not parse: 'x'\n\tat a"
            ),
            "Spark: Could not parse: 'x'",
        ),
        (
            RuntimeError(
                "[STREAM_FAILED] Query terminated.\n\tat a\nCaused by: java.io.IOException: No space left on device\n\tat b"
            ),
            "Spark: No space left on device",
        ),
        (KeyError(), "Spark: KeyError"),
    ],
)
def test_the_cause_is_found(error: Exception, line: str) -> None:
    assert explain_failure(error) == line


def test_a_line_stays_a_line() -> None:
    text = explain_failure(RuntimeError("x" * 5000))
    assert len(text) <= LINE_CHARS_MAX
    assert "\n" not in text


def test_a_python_process_that_is_late_is_told_from_everything_else() -> None:
    late = RuntimeError("org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache...")
    assert is_late_worker(late)
    assert explain_failure(late).startswith(
        "a Python process did not come up within the ten seconds that Spark gives it"
    )
    assert not is_late_worker(RuntimeError("anything else"))
    assert not is_late_worker(InvalidRequest("Python worker failed to connect back"))

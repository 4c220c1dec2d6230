"""What Spark throws, in one line that a person can do something about.

An error of ours that was raised in a Python worker arrives as text inside a Java exception inside another; its own line is still in there.
Errors of Spark have a condition and a sentence; the Java stack traces after them are for `--verbose`.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import PenstockError

LINE_CHARS_MAX: Final = 600
_OURS: Final = re.compile(r"penstock\.(?:errors|spark\.[\w.]+)\.(\w+): (.+)")
_PYTHON: Final = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ([^\n]+)")
_JAVA: Final = re.compile(r"^(?:: |Caused by: )[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_TAIL: Final = re.compile(r"\s*SQLSTATE: \w+.*$")
_LATE_WORKER: Final = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to come up, and no setting changes that."""
# Say that something failed and not what: the cause inside is what people need.
_WRAPPERS: Final = frozenset(
    {"STREAM_FAILED", "FAILED_EXECUTE_UDF", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR", "PYTHON_DATA_SOURCE_ERROR"}
)


def is_late_worker(error: BaseException) -> bool:
    """Whether a Python process of Spark's did not come up in time: nothing is wrong but that the machine was busy."""
    return not isinstance(error, PenstockError) and _LATE_WORKER in str(error)


def explain_failure(error: BaseException) -> str:
    """One line."""
    if isinstance(error, PenstockError):
        return str(error)
    text = str(error)
    if is_late_worker(error):
        return (
            "a Python process did not come up within the ten seconds that Spark gives it: this machine is too busy; run it again, or let "
            "fewer stages run at once (--stage, fewer topics)"
        )
    ours = _OURS.findall(text)
    if ours:
        return _line(ours[-1][1])
    conditions = [(name, said) for name, said in _CONDITION.findall(text) if name not in _WRAPPERS]
    if conditions:
        name, said = conditions[0]
        return _line(f"Spark: {_TAIL.sub('', said)} [{name}]")
    python = _PYTHON.findall(text)
    if python:
        name, said = python[-1]
        return _line(f"{name}: {said}")
    causes = _JAVA.findall(text)
    if causes:
        return _line(f"Spark: {_TAIL.sub('', causes[-1])}")
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return _line(f"Spark: {_TAIL.sub('', first)}")


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LINE_CHARS_MAX else text[: LINE_CHARS_MAX - 3] + "..."

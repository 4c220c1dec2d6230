"""Logs come out in one form, wherever they come from."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

import penstock
from penstock import logs
from penstock.errors import ConfigError
from tests.logging_state import logging_as_before


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    with logging_as_before():
        yield


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_file_gets_one_json_object_per_line() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    structlog.get_logger("penstock.log").info("torn_tail_cut", topic="orders", bytes=17)
    [event] = lines(stream)
    assert list(event) == ["timestamp", "level", "logger", "event", "topic", "bytes"]
    assert event.pop("timestamp")
    assert event == {
        "event": "torn_tail_cut",
        "topic": "orders",
        "bytes": 17,
        "level": "info",
        "logger": "penstock.log",
    }


def test_a_terminal_gets_a_line_for_people() -> None:
    stream = Terminal()
    logs.configure(stream=stream)
    structlog.get_logger().warning("disk nearly full", free_bytes=17)
    assert "disk nearly full" in stream.getvalue()
    assert "free_bytes" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_the_form_can_be_chosen() -> None:
    stream = Terminal()
    logs.configure(stream=stream, form="json")
    structlog.get_logger().info("ready")
    assert lines(stream)[0]["event"] == "ready"


def test_libraries_log_in_the_same_form() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    logging.getLogger("asyncio").error("task %s failed", "x")
    [event] = lines(stream)
    assert (event["event"], event["level"], event["logger"]) == ("task x failed", "error", "asyncio")


def test_what_any_peer_can_provoke_in_a_library_is_left_out() -> None:
    stream = io.StringIO()
    logs.configure("debug", stream=stream)
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("level", "expected"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_is_a_lower_bound(level: str, expected: int) -> None:
    stream = io.StringIO()
    logs.configure(level, stream=stream)
    logger = structlog.get_logger()
    logger.debug("a")
    logger.info("b")
    logger.warning("c")
    logger.error("d")
    assert len(lines(stream)) == expected


def test_an_unknown_level_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(ConfigError, match="'loud' is not known: use one of debug, info, warning, error"):
        logs.configure("loud")


def fail_with(value: bytes) -> None:
    raise RuntimeError("boom")


def test_a_traceback_stays_within_its_line() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    try:
        fail_with(b"value")
    except RuntimeError:
        structlog.get_logger().exception("session ended")
    [event] = lines(stream)
    assert event["event"] == "session ended"
    assert "boom" in json.dumps(event["exception"])


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_shows_no_records(form: logs.Form) -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, form=form)
    secret = b"4111" * 4
    try:
        fail_with(secret)
    except RuntimeError:
        structlog.get_logger().exception("session ended")
    assert "boom" in stream.getvalue()
    assert secret.decode() not in stream.getvalue()


def test_values_that_json_does_not_know_are_written_as_text() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    structlog.get_logger().info("saw", what={1j})
    assert lines(stream)[0]["what"] == ["1j"]


def test_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(stream=first)
    logs.configure(stream=second)
    structlog.get_logger().info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_events_are_names_that_can_be_searched_for() -> None:
    """What happened is told by the fields of an event, not by its name."""
    sources = Path(penstock.__file__).parent.rglob("*.py")
    events = {
        event
        for path in sources
        for event in re.findall(r'\b_?log\.(?:debug|info|warning|error|exception)\(\s*"([^"%]*)"', path.read_text())
    }
    assert "torn_tail_cut" in events
    assert [event for event in events if not re.fullmatch(r"[a-z]+(_[a-z]+)*", event)] == []

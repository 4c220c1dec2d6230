"""Logging as it was, after something has configured it for a whole process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from penstock import logs


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Undo what `logs.configure` does in the block."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in logs.LIBRARY_LEVELS}
    configuration = structlog.get_config() if structlog.is_configured() else None
    # Handlers of the test runner stay out of the way: configure() closes those it replaces.
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)
        structlog.reset_defaults()
        if configuration is not None:
            structlog.configure(**configuration)

"""Every generated page, and the function that returns its text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scripts.reference import api, architecture, cli, configuration, errors, flymq, metrics, python

PAGES: dict[Path, Callable[[], str]] = {
    cli.PAGE: cli.page,
    configuration.PAGE: configuration.page,
    metrics.PAGE: metrics.page,
    errors.PAGE: errors.page,
    api.PAGE: api.page,
    **python.pages(),
    flymq.PAGE: flymq.page,
    architecture.PAGE: architecture.page,
}

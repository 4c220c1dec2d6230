"""The engine that tortures of Spark give their broker."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.kafka import Kafka


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=("embedded", "kafka"), default="embedded", help="of the broker's log")


@contextmanager
def engine_of(given: argparse.Namespace, directory: Path) -> Iterator[Kafka | None]:
    """The broker of Kafka for the log, for as long as that is needed; None for the embedded engine."""
    if given.engine == "embedded":
        yield None
        return
    with Kafka(directory / "kafka", 1) as kafka:
        yield kafka


def log_in_kafka(kafka: Kafka) -> str:
    """The configuration of a broker."""
    return f'engine = "kafka"\n\n[kafka]\nbootstrap = ["{kafka.bootstrap}"]\n'

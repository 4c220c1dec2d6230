"""Compacting the tables of a pipeline, while it does not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote

from penstock.errors import ConfigError
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.lock import DirectoryLock
from penstock.spark.pipelines.model import STAGES, Pipeline
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.tables.table import Compacted


def compact_tables(
    pipeline: Pipeline, *, file_bytes: int, keep_s: float, kinds: Sequence[str] = ()
) -> Iterator[tuple[str, Compacted]]:
    """Each table by name, as it is done."""
    if pipeline.is_remote:
        raise ConfigError(f"{pipeline.directory} is not on this machine: compact its tables where it is")
    directory = Path(pipeline.directory.removeprefix("file://"))
    with ExitStack() as stack:
        stack.enter_context(DirectoryLock(directory))
        for kind in STAGES:
            if (kinds and kind not in kinds) or not (directory / kind).is_dir():
                continue
            for path in sorted((directory / kind).iterdir()):
                name = unquote(path.name)
                table = open_table(pipeline, kind, name, LocalFiles(), None)
                if table.exists():
                    yield f"{kind}/{name}", table.compact(file_bytes, keep_s)

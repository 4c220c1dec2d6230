"""`penstock migrate`: a log from one engine to another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.broker import snapshot_of
from penstock.cli.options import config_from_flags, wants_json
from penstock.cli.progress import ProgressBar

if TYPE_CHECKING:
    import asyncio

    from penstock.config import Config
    from penstock.log.api import Engine, TopicInfo
    from penstock.log.migration.migration import Migration, Result
    from penstock.log.migration.source import Source

REST_RECORDS_MAX = 20_000
"""A pass that copied no more is followed by no other: the last one, for which the broker stops, will not copy more either."""


def migrate(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="The current configuration of the broker, a TOML file.")
    ],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The new configuration of the broker, a TOML file.")],
    finish: Annotated[
        bool,
        typer.Option("--finish", help="Copy the rest and make the target ready. The broker of SOURCE must be stopped."),
    ] = False,
) -> None:
    """Move a log to Apache Kafka, or from there to a data directory.

    First copies and verifies everything while the broker of SOURCE serves;
    repeat it as often as you like. Then stop that broker, run the command with
    [bold]--finish[/bold], which takes seconds, and start the broker of TARGET. A command that
    was killed continues where it was. The source stays as it is.

    Records keep their offsets, times, keys, headers and expiry, and topics,
    groups, subscriptions, users, rules and schemas move along.

    Examples:
    $ penstock migrate penstock.toml kafka.toml
    $ penstock migrate penstock.toml kafka.toml --finish
    $ penstock migrate kafka.toml penstock.toml --json
    """
    import asyncio

    from penstock import logs

    logs.configure("warning")
    began = time.monotonic()
    configs = config_from_flags(source), config_from_flags(target)
    move = _Move(context, *configs)
    with asyncio.Runner() as runner:
        passes = move.run(runner, finish=finish)
    seconds = time.monotonic() - began
    if wants_json(context):
        terminal.print_json(_document(passes, finished=finish, seconds=seconds))
        return
    _print_partitions(passes[-1].result)
    copied = sum(each.result.copied_records for each in passes)
    print(f"copied {copied} records in {seconds:.1f} s; source and target are equal")
    if finish:
        print(terminal.visible(f"finished: start the broker of {target}"))
    else:
        terminal.hint(f"stop the broker of {source}, then: penstock migrate {source} {target} --finish")


@dataclass(slots=True)
class _Pass:
    result: Result
    seconds: float


@dataclass(slots=True)
class _Move:
    """One run of the command."""

    context: typer.Context
    source: Config
    target: Config
    bar: ProgressBar | None = field(default=None, init=False)

    def run(self, runner: asyncio.Runner, *, finish: bool) -> list[_Pass]:
        from penstock.errors import DataDirectoryInUse, InvalidRequest
        from penstock.log.migration.migration import Migration
        from penstock.log.migration.state import StateFile

        if _place(self.source) == _place(self.target):
            raise InvalidRequest(
                f"SOURCE and TARGET are the same log, or may be: both are {_place(self.source)}; name two that differ in that"
            )
        self.target.data_dir.mkdir(parents=True, exist_ok=True)
        state = StateFile(self.target.data_dir, self.target.engine)
        state.check_unfinished()
        stopped = not _is_running(self.source)
        if finish and not stopped:
            raise DataDirectoryInUse(f"a broker is running on {self.source.data_dir}: stop it, then finish")
        if self.target.engine == "kafka" and not state.state.topics:
            with self._opened(runner, finish=False, stopped=stopped) as source:
                runner.run(_check_unused(self.target, source.topics()))
        target = _engine(self.target, "import")
        runner.run(target.start())
        try:
            migration = Migration(
                target,
                state,
                tombstone_ms=self.source.log.tombstone_ms,
                on_total=self._begin_bar,
                on_progress=self._advance,
            )
            passes = [self._pass(runner, migration, finish=finish, stopped=stopped)]
            while not finish and _is_worth_another(passes):
                passes.append(self._pass(runner, migration, finish=False, stopped=stopped))
        finally:
            runner.run(target.close())
        return passes

    def _begin_bar(self, records: int) -> None:
        if self.bar is not None:
            self.bar.total = records

    def _advance(self, records: int, size_bytes: int) -> None:
        if self.bar is not None:
            self.bar.advance(size_bytes, records)

    def _pass(self, runner: asyncio.Runner, migration: Migration, *, finish: bool, stopped: bool) -> _Pass:
        began = time.monotonic()
        with (
            self._opened(runner, finish=finish, stopped=stopped) as source,
            ProgressBar("migrate", by="records") as bar,
        ):
            self.bar = bar
            result = runner.run(migration.finish(source) if finish else migration.copy(source))
        return _Pass(result, time.monotonic() - began)

    @contextmanager
    def _opened(self, runner: asyncio.Runner, *, finish: bool, stopped: bool) -> Iterator[Source]:
        from penstock.log.embedded.backup import SNAPSHOT_REMEDY, read_snapshot
        from penstock.log.embedded.manifest import holding
        from penstock.log.embedded.snapshot_reading import SnapshotReader
        from penstock.log.migration.source import EngineSource

        if self.source.engine == "embedded" and not stopped:
            with snapshot_of(self.context) as snapshot:
                directory = Path(snapshot.directory)
                with holding(directory, SNAPSHOT_REMEDY):
                    read_snapshot(directory, snapshot.id)
                    if directory.resolve().parents[1] != self.source.data_dir.resolve():
                        raise _other_broker(self.source, directory.resolve().parents[1])
                    yield SnapshotReader(directory)
            return
        engine = _engine(self.source, "retire" if finish else "observe")
        runner.run(engine.start())
        try:
            yield EngineSource(engine)
        finally:
            runner.run(engine.close())


def _is_worth_another(passes: list[_Pass]) -> bool:
    """Whether the next pass will have much less to copy than the last one: they do not get shorter than the load allows."""
    copied = [each.result.copied_records for each in passes]
    if copied[-1] <= REST_RECORDS_MAX:
        return False
    return len(copied) == 1 or copied[-1] <= copied[-2] / 2


def _other_broker(config: Config, found: Path) -> Exception:
    from penstock.errors import InvalidRequest

    return InvalidRequest(
        f"the broker that was asked keeps its log in {found}, not in {config.data_dir}: name that of SOURCE with --server"
    )


def _place(config: Config) -> str:
    """Where a log is. One cluster of Kafka has many addresses, which do not tell it from another."""
    if config.engine == "kafka":
        return f"topics {config.kafka.topic_prefix}* in Kafka"
    return f"directory {config.data_dir.resolve()}"


def _is_running(config: Config) -> bool:
    """Whether a broker runs on a data directory. On Kafka, finishing fences a running node, and is refused while several run."""
    from penstock.errors import DataDirectoryInUse
    from penstock.log.embedded.manifest import holding

    if config.engine == "kafka":
        return False
    try:
        with holding(config.data_dir, "stop it first"):
            return False
    except DataDirectoryInUse:
        return True


def _engine(config: Config, role: Any) -> Engine:
    """The log of a configuration. Its topics are not cleaned up meanwhile: retention and compaction wait for the broker."""
    from penstock.log.embedded import EmbeddedEngine

    if config.engine == "kafka":
        from penstock.log.kafka.engine import KafkaEngine

        return KafkaEngine(
            config.kafka,
            role=role,
            tail_bytes_per_partition=config.log.tail_bytes_per_partition,
            tail_bytes_max=config.log.tail_bytes_max,
        )
    return EmbeddedEngine(
        config.data_dir, options=config.log.model_copy(update={"maintenance_interval_s": float(1 << 30)})
    )


async def _check_unused(config: Config, infos: Mapping[str, TopicInfo]) -> None:
    """Raise TopicExists if another log is where these topics are to be copied: a node that serves it would be fenced by the import."""
    from penstock.errors import TopicExists, TopicNotFound

    target = _engine(config, "observe")
    try:
        await target.start()
    except TopicNotFound:
        return  # nobody has kept a log there
    try:
        others = sorted(name for name, info in target.topics().items() if name in infos and infos[name].id != info.id)
    finally:
        await target.close()
    if others:
        raise TopicExists(
            f"the target has another topic {others[0]!r} already, so another broker keeps its log there: use another kafka.topic_prefix,"
            f" or stop that broker and delete its topics {config.kafka.topic_prefix}* in Kafka"
        )


def _print_partitions(result: Result) -> None:
    numbers = ["partition", "start", "end", "records"]
    terminal.print_table(
        ["topic", *numbers, "checksum"],
        [
            (terminal.name(each.topic), each.partition, each.start, each.end, each.records, each.checksum)
            for each in sorted(result.partitions)
        ],
        right=numbers,
        drop=["start"],
    )


def _document(passes: list[_Pass], *, finished: bool, seconds: float) -> dict[str, object]:
    return {
        "finished": finished,
        "seconds": round(seconds, 3),
        "passes": [
            {
                "copied_records": each.result.copied_records,
                "copied_bytes": each.result.copied_bytes,
                "seconds": round(each.seconds, 3),
            }
            for each in passes
        ],
        "partitions": [each._asdict() for each in sorted(passes[-1].result.partitions)],
    }

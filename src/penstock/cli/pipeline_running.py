"""Running a pipeline in the foreground: Spark, signals, and what a person or a program sees of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

from penstock.cli import terminal
from penstock.cli.pipeline import batch_time, left_out
from penstock.errors import ConfigError, InvalidRequest, PenstockError, TopicNotFound, Unreachable
from penstock.spark.pipelines.failures import explain_failure
from penstock.spark.pipelines.model import Pipeline

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from penstock.protocols.flymq.sync import FlyMQClient
    from penstock.spark.pipelines.progress import StageProgress
    from penstock.spark.pipelines.rebuild import Rebuilt
    from penstock.spark.pipelines.replay import ReplayRequest
    from penstock.spark.pipelines.running import Outcome, Run

SHOWN_PER_S = 4
QUIET_LOG_LEVEL = "OFF"
VERBOSE_LOG_LEVEL = "WARN"


def run_pipeline(
    pipeline: Pipeline, password: str | None, *, once: bool, kinds: Sequence[str], as_json: bool, verbose: bool
) -> bool:
    """Returns whether it failed."""
    from penstock.spark.pipelines.assembly import check_before_spark

    display: Display = JsonDisplay() if as_json else (LiveDisplay() if sys.stderr.isatty() else LineDisplay())
    stopper = Stopper()
    with _connected(pipeline, password) as client:
        check_before_spark(pipeline, client, kinds)
        with stopper, spark_session(pipeline, verbose=verbose) as spark:
            # Spark handles an interrupt itself from the moment there is a session; this run does it better.
            stopper.install()
            from penstock.spark.pipelines.running import Run

            run = Run(
                pipeline,
                spark,
                client,
                password=password,
                once=once,
                kinds=kinds,
                on_batch=display.batch,
                on_note=display.note,
            )
            stopper.stops(run)
            with display.showing(run):
                outcome = run()
    display.ended(pipeline, outcome)
    if outcome.state == "failed" and verbose and outcome.error is not None:
        print(outcome.error, file=sys.stderr)
    return outcome.state == "failed"


def replay_records(pipeline: Pipeline, password: str | None, request: ReplayRequest, *, verbose: bool) -> int:
    """How many records were written."""
    options = pipeline.broker_options(password)
    with _connected(pipeline, password) as client:
        # Here and not by Spark, which takes its time to start.
        if request.topic is not None and request.topic not in client.topics():
            raise TopicNotFound(f"topic not found: {request.topic}")
    with spark_session(pipeline, verbose=verbose) as spark, _one_line(verbose=verbose):
        from penstock.spark.pipelines.files import files_at
        from penstock.spark.pipelines.replay import replay

        return replay(spark, pipeline, files_at(pipeline.notes, spark), options, request)


def rebuild_table(
    pipeline: Pipeline, password: str | None, table: str, schema: str | None, *, verbose: bool
) -> Rebuilt:
    from penstock.broker.schemas.reference import parse_reference
    from penstock.spark.pipelines.assembly import reference_of, unmarked_of
    from penstock.spark.pipelines.files import LocalFiles
    from penstock.spark.pipelines.rebuild import check_rebuildable
    from penstock.spark.pipelines.schemas import Plans

    topic = check_rebuildable(pipeline, table)
    with _connected(pipeline, password) as client:
        reference = parse_reference(schema) if schema is not None else reference_of(pipeline, client, topic)
        unmarked = unmarked_of(pipeline, topic)
        plan = (
            None if reference is None else Plans(client, topic, reference, LocalFiles(), os.devnull, unmarked).newest()
        )

    def on_chunk(done: int, chunks: int) -> None:
        terminal.hint(f"decoded chunk {done} of {chunks}")

    with spark_session(pipeline, verbose=verbose) as spark, _one_line(verbose=verbose):
        from penstock.spark.pipelines.files import files_at
        from penstock.spark.pipelines.rebuild import Rebuild

        return Rebuild(spark, pipeline, files_at(pipeline.notes, spark), topic, plan, on_chunk)()


@contextmanager
def _one_line(*, verbose: bool) -> Iterator[None]:
    """What Spark throws as one line, unless all of it is wanted."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        if verbose:
            raise
        raise InvalidRequest(explain_failure(error)) from error


def _connected(pipeline: Pipeline, password: str | None) -> FlyMQClient:
    from penstock.spark.connection import open_client

    try:
        return open_client(pipeline.connection_settings(password))
    except Unreachable as error:
        reason = error.__cause__ or error
        raise Unreachable(
            f"{reason} Start one with: penstock serve, or name another in the file (bootstrap) or with --server"
        ) from error


@contextmanager
def spark_session(pipeline: Pipeline, *, verbose: bool) -> Iterator[Any]:
    """A session for one command; Java's and Spark's own remarks only where they are wanted."""
    import penstock.spark
    from penstock.spark.sessions import remote_server

    level = VERBOSE_LOG_LEVEL if verbose else QUIET_LOG_LEVEL
    config = {"spark.log.level": level, **pipeline.spark.config}
    if remote_server(pipeline.spark.master, config, os.environ) is not None:
        raise ConfigError(
            "spark.remote or SPARK_REMOTE names a Spark Connect server, and pipelines need a session of their own: unset it, or name a "
            "master in the file ([spark] master) or with --master"
        )
    if not verbose:
        terminal.hint("starting Spark ...")
    try:
        with quiet_start(quiet=not verbose):
            session = penstock.spark.session(f"penstock {pipeline.name}", pipeline.spark.master, config)
    except PenstockError:
        raise
    except Exception as error:
        if verbose:
            raise
        raise ConfigError(f"Spark did not start: {explain_failure(error)} (more with --verbose)") from error
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def quiet_start(*, quiet: bool) -> Iterator[None]:
    """Java's and Spark's remarks on starting go nowhere: the process inherits standard error as it is when it begins."""
    if not quiet:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Stopper:
    """SIGINT and SIGTERM ask the run to stop; a second SIGINT ends the process at once."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.getsignal(number)
        return self

    def __exit__(self, *ended: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        for number in self._before:
            signal.signal(number, self._signalled)

    def stops(self, run: Run) -> None:
        self._run = run
        if self._asked:
            run.stop()

    def _signalled(self, number: int, frame: object) -> None:
        if self._asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked = True
        if self._run is not None:
            self._run.stop()


class Display(Protocol):
    def batch(self, stage: StageProgress) -> None: ...

    def note(self, text: str) -> None: ...

    def showing(self, run: Run) -> Any: ...

    def ended(self, pipeline: Pipeline, outcome: Outcome) -> None: ...


class JsonDisplay:
    """One JSON object a line: a batch each, what else there is to know, and the end."""

    def batch(self, stage: StageProgress) -> None:
        self._line(
            event="batch",
            stage=stage.name,
            batch=stage.batch_id,
            batch_rows=stage.batch_rows,
            batch_ms=stage.batch_ms,
            rows=stage.rows,
            rejects=stage.rejects,
            **_left_out(stage),
            lag=None if stage.lag < 0 else stage.lag,
        )

    def note(self, text: str) -> None:
        if text:
            self._line(event="note", message=text)

    @contextmanager
    def showing(self, run: Run) -> Iterator[None]:
        self._line(event="started", pipeline=run.pipeline.name)
        yield

    def ended(self, pipeline: Pipeline, outcome: Outcome) -> None:
        stages = [
            {
                "stage": each.name,
                "state": each.state,
                "rows": each.rows,
                "rejects": each.rejects,
                **_left_out(each),
                "batches": each.batches,
            }
            for each in outcome.stages
        ]
        message = {"message": outcome.message} if outcome.message else {}
        self._line(event=outcome.state, pipeline=pipeline.name, **message, stages=stages)

    def _line(self, **fields: Any) -> None:
        print(json.dumps({**fields, "time_ms": int(time.time() * 1000)}), flush=True)


def _left_out(stage: StageProgress) -> dict[str, int]:
    """Rows that no table has got, where there are any."""
    return {name: count for name in ("dropped", "late", "future") if (count := getattr(stage, name))}


class LineDisplay:
    """For logs: a line a batch that had rows, and a table at the end."""

    def batch(self, stage: StageProgress) -> None:
        if stage.batch_rows:
            lag = "" if stage.lag < 0 else f", lag {stage.lag}"
            rejects = f", {stage.rejects} rejects so far" if stage.rejects else ""
            terminal.print_note(
                f"{stage.name}: batch {stage.batch_id}, {stage.batch_rows} rows in {batch_time(stage.batch_ms)}{lag}{rejects}"
            )

    def note(self, text: str) -> None:
        if text:
            terminal.print_note(text)

    @contextmanager
    def showing(self, run: Run) -> Iterator[None]:
        yield

    def ended(self, pipeline: Pipeline, outcome: Outcome) -> None:
        print_outcome(pipeline, outcome)


class LiveDisplay(LineDisplay):
    """For people: a table that stays up to date while the pipeline runs."""

    def __init__(self) -> None:
        self._note = ""

    def batch(self, stage: StageProgress) -> None:
        pass

    def note(self, text: str) -> None:
        self._note = text

    @contextmanager
    def showing(self, run: Run) -> Iterator[None]:
        from rich.live import Live

        with Live(console=terminal.console(stderr=True), refresh_per_second=SHOWN_PER_S, transient=True) as live:
            ended = threading.Event()
            thread = threading.Thread(target=self._keep_showing, args=(live, run, ended), daemon=True)
            thread.start()
            try:
                yield
            finally:
                ended.set()
                thread.join()

    def _keep_showing(self, live: Live, run: Run, ended: threading.Event) -> None:
        while not ended.wait(1 / SHOWN_PER_S):
            problem = run.reporter.problem if run.reporter else None
            note = f"the broker does not take reports: {problem}" if problem is not None else self._note
            live.update(progress_table(run.progress.stages(), note))


def progress_table(stages: Sequence[StageProgress], note: str) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for column in ("stage", "state", "rows", "rows/s", "lag", "last batch", "rejects"):
        table.add_column(column, justify="left" if column in ("stage", "state") else "right")
    for each in stages:
        table.add_row(
            Text(terminal.visible(each.name)),
            each.state,
            f"{each.rows:,}",
            f"{each.rows_per_s:,.0f}",
            "" if each.lag < 0 else f"{each.lag:,}",
            batch_time(each.batch_ms) if each.batches else "",
            Text(f"{each.rejects:,}", style="red" if each.rejects else ""),
        )
    if note:
        table.caption = Text(terminal.visible(note))
    return table


def print_outcome(pipeline: Pipeline, outcome: Outcome) -> None:
    terminal.print_table(
        ["stage", "state", "rows", "rejects", "batches"],
        [(each.name, each.state, each.rows, each.rejects, each.batches) for each in outcome.stages],
        right=["rows", "rejects", "batches"],
    )
    for each in outcome.stages:
        for line in left_out(each):
            terminal.print_note(line)
    if outcome.state == "failed":
        terminal.print_error(f"{outcome.message} (more with --verbose)")
    elif outcome.state == "stopped":
        terminal.hint(f"stopped; the next run of {pipeline.name} continues from here")
    rejects = sum(stage.rejects for stage in outcome.stages)
    if rejects:
        topics = [stage.name.partition("/")[2] for stage in outcome.stages if stage.rejects]
        records = "1 record" if rejects == 1 else f"{rejects} records"
        terminal.hint(f"{records} did not fit; see what and why with: penstock dlq list {topics[0]}")

"""`penstock pipeline`: topics to tables with Spark, described by one file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_topic, connected
from penstock.cli.options import AdminOption, named_server, wants_json
from penstock.cli.program import Program

if TYPE_CHECKING:
    from penstock.protocols.flymq.operations.spark import PipelineDescription, StageReport
    from penstock.protocols.flymq.sync import FlyMQClient
    from penstock.spark.pipelines.model import Pipeline
    from penstock.spark.pipelines.progress import StageProgress

app = Program(help="Move topics into tables with Spark: bronze, silver, gold.")

EXIT_FAILED = 1
WAIT_S_MAX = 180.0
LEFT_OUT = {
    "dropped": "did not meet an expectation and were dropped",
    "late": "came after their window was done and were dropped (watermark_ms)",
    "future": "are dated too far ahead and were left out (future_ms)",
}
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The file that describes the pipeline.", show_default=False)
]
StageOption = Annotated[
    list[str] | None,
    typer.Option("--stage", metavar="STAGE", help="Only this stage: bronze, silver or gold. Repeatable."),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show the log of Spark, with full errors.")]


@app.command()
def init(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("pipeline.toml"),
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="A topic to read, or a pattern such as 'orders-*'; repeatable.",
            autocompletion=complete_topic,
            show_default="all topics",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The name of the pipeline.", show_default="as the file"),
    ] = None,
    table_format: Annotated[str, typer.Option("--format", metavar="FORMAT", help="delta or iceberg.")] = "delta",
    directory: Annotated[
        str | None,
        typer.Option("--directory", metavar="DIR", help="Where tables and checkpoints go.", show_default="NAME-tables"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a pipeline file that runs without changes.

    It matches the topics and their schemas, with the column names of the
    tables.

    Examples:
    $ penstock pipeline init
    $ penstock pipeline init sales.toml --topic orders --topic payments
    $ penstock pipeline init sales.toml --topic orders --format iceberg
    """
    _check_installed()
    from penstock.cli.options import flymq_url
    from penstock.errors import InvalidRequest, TopicNotFound
    from penstock.spark.pipelines.broker_address import broker_address
    from penstock.spark.pipelines.model import parse_pipeline
    from penstock.spark.pipelines.template import render
    from penstock.spark.pipelines.topics import fitting_topics

    if file.exists() and not force:
        raise InvalidRequest(f"{file} is there already: name another file, or add --force to write over it")
    name = name or file.stem
    with connected(context) as client:
        existing = client.topics()
        if not topics and not (topics := fitting_topics("*", existing)):
            raise TopicNotFound("there is no topic yet: create one with penstock topic create NAME")
        chosen: list[str] = []
        for topic in topics:
            found = fitting_topics(topic, existing)
            if not found:
                raise TopicNotFound(f"topic not found: {topic}")
            chosen += [each for each in found if each not in chosen]
        columns = {topic: _columns(client, topic) for topic in chosen}
    broker = broker_address(flymq_url(context))
    text = render(
        name=name,
        bootstrap=broker.bootstrap,
        connection=broker.connection,
        topics=topics,
        directory=directory or f"{name}-tables",
        table_format=table_format,
        columns=columns,
    )
    parse_pipeline(text.encode(), file)
    file.write_text(text)
    terminal.print_outcome(
        context,
        f"wrote {file}; run it with: penstock pipeline run {file}",
        {"file": str(file), "name": name, "topics": topics},
    )


@app.command()
def run(
    context: typer.Context,
    file: FileArgument,
    once: Annotated[
        bool, typer.Option("--once", help="Process the records that exist now and exit, instead of waiting for more.")
    ] = False,
    stages: StageOption = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="The Spark master, as in spark://host:7077.")
    ] = None,
    verbose: VerboseOption = False,
) -> None:
    """Run a pipeline until it is stopped.

    Ctrl-C, SIGTERM or [bold]penstock pipeline stop[/bold] end it after the batches that
    have begun; the next run continues from there. A run that is killed
    neither loses nor duplicates records.

    Examples:
    $ penstock pipeline run sales.toml --once
    $ penstock pipeline run sales.toml --stage bronze
    $ penstock pipeline run sales.toml --once --json
    """
    _check_installed()
    from penstock.cli.pipeline_running import run_pipeline
    from penstock.spark.pipelines.model import load_pipeline

    _check_stages(stages)
    pipeline, password = _addressed(context, load_pipeline(file))
    if master is not None:
        pipeline = pipeline.model_copy(update={"spark": pipeline.spark.model_copy(update={"master": master})})
    failed = run_pipeline(
        pipeline, password, once=once, kinds=stages or (), as_json=wants_json(context), verbose=verbose
    )
    if failed:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def status(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One pipeline, stage by stage.", show_default=False)
    ] = None,
) -> None:
    """Show what pipelines last reported.

    Examples:
    $ penstock pipeline status
    $ penstock pipeline status sales
    """
    from penstock.errors import EntryNotFound

    with connected(context) as client:
        pipelines = client.pipelines.list()
    if name is not None:
        pipelines = [each for each in pipelines if each.name == name]
        if not pipelines:
            raise EntryNotFound(_never_reported(name))
    if wants_json(context):
        described = [_as_json(each) for each in pipelines]
        terminal.print_json(described if name is None else described[0])
        return
    if not pipelines and terminal.on_terminal():
        terminal.hint("no pipeline has reported yet; create one with: penstock pipeline init")
        return
    if name is None:
        _print_all(pipelines)
    else:
        _print_one(pipelines[0])


@app.command()
def start(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.", show_default=False)],
    admin: AdminOption = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until it runs.")] = False,
) -> None:
    """Have the broker start a pipeline on its own machine.

    The configuration of the broker must declare it under [[pipelines]].
    Needs the admin address, and an administrator.

    Examples:
    $ penstock pipeline start sales
    """
    from penstock.cli.pipeline_starting import start_pipeline

    start_pipeline(context, name, admin, wait=not no_wait)


@app.command()
def stop(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.", show_default=False)],
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until it has stopped.")] = False,
) -> None:
    """Ask a running pipeline to stop, wherever it runs.

    It finishes the batches that have begun. Run it again to continue.

    Examples:
    $ penstock pipeline stop sales
    """
    import time

    from penstock.errors import EntryNotFound, RequestTimeout

    def told(state: str, text: str) -> None:
        terminal.print_outcome(context, text, {"name": name, "state": state})

    with connected(context) as client:
        if all(each.name != name for each in client.pipelines.list()):
            raise EntryNotFound(_never_reported(name))
        if not client.pipelines.stop(name):
            told("stopped", f"pipeline {name} does not run")
            return
        if no_wait:
            told("stopping", f"asked pipeline {name} to stop")
            return
        give_up_s = time.monotonic() + WAIT_S_MAX
        while any(each.name == name and each.alive for each in client.pipelines.list()):
            if time.monotonic() > give_up_s:
                raise RequestTimeout(f"pipeline {name} was asked to stop and has not done so within {WAIT_S_MAX:g} s")
            time.sleep(0.2)
    told("stopped", f"pipeline {name} has stopped")


@app.command()
def replay(
    context: typer.Context,
    file: FileArgument,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="The topic to write to.", show_default=False)],
    table: Annotated[
        str | None, typer.Option("--table", metavar="STAGE/NAME", help="The table to read, as in bronze/orders.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The topic to read.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Only records at or after this time, or this long ago (-1h)."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only records before this time.")] = None,
    replay_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="Replays are idempotent by this id; derived from the arguments unless given."
        ),
    ] = None,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="Write to the original partitions instead of by key.")
    ] = False,
    verbose: VerboseOption = False,
) -> None:
    """Write records of a table, or of a time range of a topic, to a topic.

    All of them are written or none. Bronze tables give the original records;
    others give their columns as JSON.

    Examples:
    $ penstock pipeline replay sales.toml --table bronze/orders --to again
    $ penstock pipeline replay sales.toml --topic orders --from -1h --to again
    """
    _check_installed()
    from penstock.cli.pipeline_running import replay_records
    from penstock.spark.pipelines.model import load_pipeline
    from penstock.spark.pipelines.replay import ReplayRequest

    if (table is None) == (topic is None):
        raise typer.BadParameter("say what to replay: --table or --topic")
    request = ReplayRequest(
        to, table, topic, _time_ms(since, "--from"), _time_ms(until, "--until"), keep_partitions, replay_id
    )
    pipeline, password = _addressed(context, load_pipeline(file))
    count = replay_records(pipeline, password, request, verbose=verbose)
    terminal.print_outcome(
        context,
        f"replayed {count} records to {to} (replay {request.name})",
        {"id": request.name, "to": to, "records": count},
    )


@app.command(needs_broker=False)
def compact(
    context: typer.Context,
    file: FileArgument,
    stages: StageOption = None,
    file_size: Annotated[
        str, typer.Option("--file-size", metavar="SIZE", help="The target size of files.")
    ] = "128 MiB",
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="TIME",
            help="How long replaced files stay, for readers and time travel; at least 24h.",
            show_default="keep_ms of the file",
        ),
    ] = None,
) -> None:
    """Rewrite the small files of a pipeline's tables as large ones.

    A running pipeline does this by itself; this command does it now, alongside
    it or without it. Readers see the same rows at every moment.

    Examples:
    $ penstock pipeline compact sales.toml
    $ penstock pipeline compact sales.toml --stage bronze --keep 7d
    """
    _check_installed()
    from penstock.spark.pipelines.compact import compact_tables
    from penstock.spark.pipelines.model import load_pipeline
    from penstock.units import parse_duration_s, parse_size

    _check_stages(stages)
    pipeline = load_pipeline(file)
    try:
        file_bytes = parse_size(file_size)
        keep_s = pipeline.keep_ms / 1000 if keep is None else parse_duration_s(keep)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    done = list(compact_tables(pipeline, file_bytes=file_bytes, keep_s=keep_s, kinds=stages or ()))
    if wants_json(context):
        terminal.print_json([{"table": name, **result._asdict()} for name, result in done])
        return
    terminal.print_table(
        ["table", "files before", "files after", "deleted"],
        [(name, result.files_before, result.files_after, result.deleted_files) for name, result in done],
        right=["files before", "files after", "deleted"],
    )


@app.command(needs_broker=False)
def export(
    context: typer.Context,
    file: FileArgument,
    table: Annotated[
        str, typer.Argument(metavar="STAGE/NAME", help="The table, as in silver/orders.", show_default=False)
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A directory to create.", show_default=False)],
) -> None:
    """Copy a table to plain Parquet files.

    For programs that read neither Delta nor Iceberg. The copy is of this
    moment; every row is in it once.

    Examples:
    $ penstock pipeline export sales.toml silver/orders --to orders-parquet
    """
    _check_installed()
    from penstock.spark.pipelines.export import export_table
    from penstock.spark.pipelines.model import load_pipeline

    rows = export_table(load_pipeline(file), table, to)
    terminal.print_outcome(
        context, f"exported {rows} rows of {table} to {to}", {"table": table, "to": str(to), "rows": rows}
    )


@app.command()
def rebuild(
    context: typer.Context,
    file: FileArgument,
    table: Annotated[
        str, typer.Argument(metavar="silver/TOPIC", help="The table, as in silver/orders.", show_default=False)
    ],
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema", metavar="NAME:VERSION", help="The schema to decode by.", show_default="as in the file"
        ),
    ] = None,
    verbose: VerboseOption = False,
) -> None:
    """Remake a silver table from bronze, also while the pipeline runs.

    Use it after a change of the schema or of the rules. Every record is decoded
    again, including those that the topic no longer holds. Readers see the old
    rows until one commit replaces them all. A rebuild that was killed continues
    where it stopped.

    Examples:
    $ penstock pipeline rebuild sales.toml silver/orders
    $ penstock pipeline rebuild sales.toml silver/orders --schema orders:3
    """
    _check_installed()
    from dataclasses import asdict

    from penstock.cli.pipeline_running import rebuild_table
    from penstock.spark.pipelines.model import load_pipeline

    pipeline, password = _addressed(context, load_pipeline(file))
    done = rebuild_table(pipeline, password, table, schema, verbose=verbose)
    if wants_json(context):
        terminal.print_json({"table": table, **asdict(done)})
        return
    print(f"rebuilt {terminal.visible(table)} up to batch {done.batch}: {done.rows} rows, {done.rejects} rejects")
    if done.to_remove:
        terminal.print_note(
            f"gold cannot continue with {table}, which is a new table or has new rows that no stream can read: remove "
            f"{', '.join(done.to_remove)} to compute it anew"
        )


# --- inside ---


def _check_installed() -> None:
    """Say what to install before an import of it fails."""
    from importlib.util import find_spec

    from penstock.errors import ConfigError

    if any(find_spec(name) is None for name in ("deltalake", "pyarrow", "pyspark")):
        raise ConfigError('pipelines need Spark and its libraries: run pip install "penstock[spark]"')


def _check_stages(stages: list[str] | None) -> None:
    from penstock.spark.pipelines.model import STAGES

    for stage in stages or ():
        if stage not in STAGES:
            raise typer.BadParameter(f"--stage {stage} is not known: use bronze, silver or gold")


def _addressed(context: typer.Context, pipeline: Pipeline) -> tuple[Pipeline, str | None]:
    """The pipeline with the broker that `--server` names, where it names one; and the password of its user."""
    from penstock.cli.passwords import PASSWORD_VARIABLE, check_text
    from penstock.spark.pipelines.broker_address import broker_address, with_broker

    password = None
    url = named_server(context, in_use=False)  # the file names its broker
    if url:
        broker = broker_address(url)
        pipeline, password = with_broker(pipeline, broker), broker.password
    user = pipeline.connection.user
    if user is not None and password is None:
        password = os.environ.get(PASSWORD_VARIABLE)
        if password is None and sys.stdin.isatty():
            password = typer.prompt(f"Password of {user}", hide_input=True, err=True)
    return pipeline, password if password is None else check_text(password)


def _columns(client: FlyMQClient, topic: str) -> dict[str, str] | None:
    """The columns that the topic's records will have in silver, None if it has no schema."""
    from penstock.spark.pipelines.decoding import decoder
    from penstock.spark.pipelines.files import LocalFiles
    from penstock.spark.pipelines.schemas import Plans, schema_of

    reference = schema_of(client, topic, {})
    if reference is None:
        return None
    plan = Plans(client, topic, reference, LocalFiles(), os.devnull).newest()
    return {field.name: str(field.type) for field in decoder(plan).schema}


def _time_ms(text: str | None, flag: str) -> int | None:
    if text is None:
        return None
    import time

    from penstock.cli.positions import parse_time

    return int(parse_time(text, int(time.time() * 1000), flag=flag).timestamp() * 1000)


def batch_time(batch_ms: int) -> str:
    """How long a batch took, for people."""
    return f"{batch_ms} ms" if batch_ms < 10_000 else f"{batch_ms / 1000:,.1f} s"


def left_out(stage: StageReport | StageProgress) -> Iterator[str]:
    """Lines for people: how many rows of a stage are in no table, and why."""
    for name, reason in LEFT_OUT.items():
        count = getattr(stage, name)
        if count:
            yield f"{stage.name}: {count} rows {reason}"


def _never_reported(name: str) -> str:
    return f"no pipeline {name} has reported; see those that have with: penstock pipeline status"


def _state(pipeline: PipelineDescription) -> str:
    if pipeline.state in ("starting", "running", "stopping") and not pipeline.alive:
        return "lost"
    return "stopping" if pipeline.stopping and pipeline.alive else pipeline.state


def _rows_read(pipeline: PipelineDescription) -> int:
    """By the stages of the kind that has read most: each kind reads the same records."""
    by_kind: dict[str, int] = {}
    for stage in pipeline.stages:
        kind = stage.name.partition("/")[0]
        by_kind[kind] = by_kind.get(kind, 0) + stage.rows
    return max(by_kind.values(), default=0)


def _print_all(pipelines: list[PipelineDescription]) -> None:
    rows = [
        (
            each.name,
            _state(each),
            len(each.stages),
            _rows_read(each),
            sum(stage.rejects for stage in each.stages),
            max((stage.lag for stage in each.stages if stage.lag >= 0), default=""),
            terminal.local_time(each.updated_ms),
            each.message,
        )
        for each in pipelines
    ]
    columns = ["pipeline", "state", "stages", "rows", "rejects", "lag", "reported", "message"]
    right = ["stages", "rows", "rejects", "lag"]
    if not terminal.on_terminal():
        terminal.print_table(columns, rows, right=right)
        return
    # A message is a sentence; a column of it would leave no room for the others.
    terminal.print_table(columns[:-1], [row[:-1] for row in rows], right=right)
    for each in pipelines:
        if each.message:
            print(f"\n{terminal.visible(each.name)}: {terminal.visible(each.message)}")


def _print_one(pipeline: PipelineDescription) -> None:
    fields: dict[str, object] = {
        "pipeline": pipeline.name,
        "state": _state(pipeline),
        "run": pipeline.run,
        "owner": pipeline.owner,
        "started": terminal.local_time(pipeline.started_ms),
        "reported": terminal.local_time(pipeline.updated_ms),
    }
    terminal.print_fields(fields | ({"message": pipeline.message} if pipeline.message else {}))
    print()
    terminal.print_table(
        ["stage", "state", "rows", "rejects", "lag", "batches", "last batch"],
        [
            (
                stage.name,
                stage.state,
                stage.rows,
                stage.rejects,
                "" if stage.lag < 0 else stage.lag,
                stage.batches,
                batch_time(stage.batch_ms) if stage.batches else "",
            )
            for stage in pipeline.stages
        ],
        right=["rows", "rejects", "lag", "batches", "last batch"],
    )
    for stage in pipeline.stages:
        for line in left_out(stage):
            print(terminal.visible(line))


def _as_json(pipeline: PipelineDescription) -> dict[str, Any]:
    import msgspec

    described: dict[str, Any] = msgspec.to_builtins(pipeline)
    return described

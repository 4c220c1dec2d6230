"""The command `penstock`: its groups of commands, and what becomes of an error.

Exit codes: 0 done, 1 it failed (one line on standard error says why and what to do), 2 the command line itself is wrong,
130 interrupted, 141 the reader of our output went away.
"""

from __future__ import annotations

import functools
import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from penstock.cli import (
    acl,
    audit,
    backup,
    bench,
    cache,
    cluster,
    configuration,
    console,
    consume,
    context,
    delayed,
    dlq,
    doctor,
    group,
    key,
    migrate,
    pipeline,
    produce,
    restore,
    role,
    schema,
    serve,
    spark,
    status,
    subscription,
    terminal,
    top,
    topic,
    torture,
    txn,
    user,
    verify,
    words,
)
from penstock.cli.options import ContextOption, JsonOption, ServerOption
from penstock.cli.program import Group, Program
from penstock.errors import (
    AuthenticationRequired,
    GroupNotFound,
    PartitionNotFound,
    PenstockError,
    SchemaNotFound,
    TopicNotFound,
    UserNotFound,
)

EXIT_FAILED = 1
EXIT_BROKEN_PIPE = 141
ORDER = (
    "serve",
    "status",
    "top",
    "topic",
    "produce",
    "consume",
    "group",
    "subscription",
    "schema",
    "delayed",
    "dlq",
    "txn",
    "user",
    "role",
    "acl",
    "key",
    "audit",
    "cache",
    "cluster",
    "console",
    "pipeline",
    "spark",
    "backup",
    "restore",
    "migrate",
    "verify",
    "bench",
    "doctor",
    "torture",
    "config",
    "context",
    "completion",
    "help",
    "version",
)
# What a broker cannot know: which command helps.
ADVICE: dict[type[PenstockError], str] = {
    TopicNotFound: " (list them with: penstock topic list)",
    GroupNotFound: " (list them with: penstock group list or penstock subscription list)",
    PartitionNotFound: " (list them with: penstock topic describe TOPIC)",
    SchemaNotFound: " (list them with: penstock schema list)",
    AuthenticationRequired: " (name yourself in the address: --server flymq://user@host:port; the password comes from a prompt)",
    UserNotFound: " (list them with: penstock user list)",
}


class Commands(Group):
    """The root group: turns what a command raises into a line of text and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order in which a newcomer needs them."""
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            terminal.flush()
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except BrokenPipeError:
            _give_output_up()
            raise typer.Exit(EXIT_BROKEN_PIPE) from None
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            terminal.print_error(explain(error))
            try:
                sys.stdout.flush()
            except OSError:
                _give_output_up()
            raise typer.Exit(EXIT_FAILED) from None
        return result


def _open_closed_streams() -> None:
    """Put nothing if the caller has closed a standard stream: a socket would take its descriptor, and get what is printed."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest descriptor that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def _give_output_up() -> None:
    """The interpreter flushes standard output once more when it ends; that must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explain(error: Exception) -> str:
    """What went wrong and what to do, for the person at the terminal."""
    match error:
        case PenstockError():
            return str(error) + next((text for kind, text in ADVICE.items() if isinstance(error, kind)), "")
        case OSError():
            return (f"{error.filename}: " if error.filename else "") + (error.strerror or str(error))
        case ModuleNotFoundError() if (extra := words.extra_of(error.name)) is not None:
            return f'this needs {error.name}, which is not installed: run pip install "penstock[{extra}]"'
        case UnicodeEncodeError():
            return f"{error.object!r} is not valid UTF-8 text: write it in UTF-8"
        case _:
            return (
                f"{type(error).__name__}: {error}. This is a bug in Penstock: run it again as penstock --debug ... "
                "and report what that prints"
            )


app = Program(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        words.print_version(context)
        raise typer.Exit


@app.callback()
def penstock(
    server: ServerOption = None,
    context: ContextOption = None,
    as_json: JsonOption = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the Python traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    """A message broker: five wire protocols over one durable log.

    Start one with [bold]penstock serve[/bold], then in another terminal:

    $ penstock produce orders "hello"
    $ penstock consume orders
    """


app.command(needs_broker=False)(serve.serve)
app.command()(status.status)
app.command()(top.top)
app.add_typer(topic.app, name="topic")
app.command()(produce.produce)
app.command()(consume.consume)
app.add_typer(group.app, name="group")
app.add_typer(subscription.app, name="subscription")
app.add_typer(schema.app, name="schema")
app.add_typer(delayed.app, name="delayed")
app.add_typer(dlq.app, name="dlq")
app.add_typer(txn.app, name="txn")
app.add_typer(user.app, name="user")
app.add_typer(role.app, name="role")
app.add_typer(acl.app, name="acl")
app.add_typer(key.app, name="key")
app.add_typer(cache.app, name="cache")
app.command()(cluster.cluster)
app.add_typer(audit.app, name="audit")
app.command(needs_broker=False)(console.console)
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(spark.app, name="spark")
app.add_typer(backup.app, name="backup")
app.command(needs_broker=False)(restore.restore)
app.command()(migrate.migrate)
app.command()(verify.verify)
app.command()(bench.bench)
app.command(needs_broker=False)(doctor.doctor)
app.command(needs_broker=False)(torture.torture)
app.add_typer(configuration.app, name="config")
app.add_typer(context.app, name="context")
app.command(needs_broker=False)(words.completion)
app.command("help", needs_broker=False)(words.help_of)
app.command(needs_broker=False)(words.version)


@functools.cache
def command() -> Any:
    """Return the command with all below it; to make it of the functions takes a tenth of a second."""
    return typer.main.get_command(app)


def _with_value(error: typer.TyperException) -> str:
    """What is wrong with an argument, with its value: Typer says what it should be, and not what it is."""
    from pydantic import ValidationError

    message, cause = error.format_message(), error.__cause__
    if isinstance(cause, ValidationError):
        message = message.replace("Input should", f"{terminal.visible(str(cause.errors()[0]['input']))} should", 1)
    return message


def main(args: list[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an old locale must not end a command half way
    try:
        code = command()(args, prog_name="penstock", standalone_mode=False)
    except typer.TyperException as error:
        message = _with_value(error).rstrip(".")
        if not message:  # a group without a command has shown its help
            sys.exit(error.exit_code)
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "penstock"
        terminal.print_error(f"{message} (see: {path} --help)")
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(EXIT_FAILED)
    sys.exit(code or 0)

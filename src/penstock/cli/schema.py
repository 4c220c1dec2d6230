"""`penstock schema`: register, get, list, diff, validate, delete, bind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_schema, complete_topic, connected
from penstock.cli.options import YesOption, wants_json
from penstock.cli.program import Program

if TYPE_CHECKING:
    from penstock.protocols.flymq.client.records import SchemaInfo

app = Program(help="Register schemas and enforce them on topics.")

TYPES_BY_SUFFIX = {".json": "json", ".avsc": "avro", ".proto": "protobuf"}
EXIT_NOT_VALID = 1

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The name of the schema.", autocompletion=complete_schema, show_default=False),
]
ReferenceArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME[:VERSION]",
        help="Its name; the latest version unless one is given.",
        autocompletion=complete_schema,
        show_default=False,
    ),
]


@app.command()
def register(
    context: typer.Context,
    name: NameArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The definition; standard input unless given.", show_default=False),
    ] = None,
    type_name: Annotated[
        str | None,
        typer.Option("--type", "-t", metavar="TYPE", help="json, avro or protobuf; else by the file's name, or json."),
    ] = None,
    compatibility: Annotated[
        str | None,
        typer.Option(
            "--compatibility",
            metavar="MODE",
            help="none, backward, forward or full, for this version and later ones; the suffix _transitive compares with all versions "
            "instead of the previous one. Default for a new schema: backward.",
        ),
    ] = None,
) -> None:
    """Register the next version of a schema.

    Registering an existing definition returns its version. A definition that
    is not compatible with the latest version is refused with the reasons.

    Examples:
    $ penstock schema register order order.json
    $ penstock schema register order order.avsc --compatibility full
    $ penstock schema register order --type protobuf < order.proto
    """
    definition = _text(file)
    if type_name is None:
        type_name = TYPES_BY_SUFFIX.get(file.suffix.lower() if file is not None else ".json", "json")
    with connected(context) as client:
        registered = client.schemas.register(name, definition, type_name, compatibility)
    text = f"registered {registered.id} ({registered.compatibility or 'backward'} compatible)"
    terminal.print_outcome(context, text, _as_json(registered))


@app.command()
def get(context: typer.Context, reference: ReferenceArgument) -> None:
    """Print the definition of a schema.

    Examples:
    $ penstock schema get order
    $ penstock schema get order:2 --json
    """
    name, version = _name_and_version(reference)
    with connected(context) as client:
        schema = client.schemas.get(name, version)
    if wants_json(context):
        terminal.print_json(_as_json(schema) | {"registry_id": schema.registry_id, "definition": schema.definition})
    else:
        print("\n".join(terminal.visible(line) for line in (schema.definition or "").splitlines()))


@app.command("list")
def list_schemas(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Only the versions of this one.", autocompletion=complete_schema),
    ] = None,
) -> None:
    """List the versions of all schemas, or of one.

    Examples:
    $ penstock schema list
    $ penstock schema list order --json
    """
    with connected(context) as client:
        schemas = client.schemas.list(name)
    terminal.print_list(
        context,
        schemas,
        _as_json,
        ["schema", "version", "type", "compatibility", "created"],
        lambda each: (
            terminal.name(each.name),
            each.version,
            each.type,
            each.compatibility or "-",
            "-" if each.created_ms is None else terminal.local_time(each.created_ms),
        ),
        empty="no schemas yet; register one with: penstock schema register NAME FILE",
        right=["version"],
        drop=["compatibility"],
    )


@app.command()
def diff(
    context: typer.Context,
    older: Annotated[
        str,
        typer.Argument(
            metavar="NAME[:VERSION]",
            help="The older one: a version, or the last but one.",
            autocompletion=complete_schema,
            show_default=False,
        ),
    ],
    newer: Annotated[
        str | None,
        typer.Argument(
            metavar="NEWER",
            help="A version (NAME:VERSION) or a file with a definition; the latest version unless given.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show what differs between two versions, and which compatibility they have.

    Compare a file before you register it: then the older one is the latest
    version, and the result is what registering the file would give. Exits with
    1 if the newer one breaks the compatibility of the schema.

    Examples:
    $ penstock schema diff order
    $ penstock schema diff order:1 order:3
    $ penstock schema diff order order-next.json
    """
    from penstock.broker.schemas.reference import TRANSITIVE
    from penstock.cli.schema_diff import Side, compare

    name, version = _name_and_version(older)
    is_file = newer is not None and Path(newer).is_file()
    with connected(context) as client:
        latest = client.schemas.get(name)
        if newer is None:
            before = max(
                (each.version for each in client.schemas.list(name) if each.version < latest.version), default=0
            )
            if version is None and not before:
                raise typer.BadParameter(f"{name} has one version: name a file or another version to compare it with")
            first, second = client.schemas.get(name, version or before), latest
        elif is_file:
            first, second = (latest if version is None else client.schemas.get(name, version)), None
        else:
            first = client.schemas.get(name, version)
            second = client.schemas.get(*_name_and_version(newer))
    older_side = Side(f"{first.name}:{first.version}", first.type, first.definition or "")
    newer_side = (
        Side(str(newer), first.type, _text(Path(str(newer))))
        if second is None
        else Side(f"{second.name}:{second.version}", second.type, second.definition or "")
    )
    found = compare(older_side, newer_side)
    wanted = (latest.compatibility or "backward").removesuffix(TRANSITIVE)
    if wants_json(context):
        terminal.print_json(
            {
                "older": older_side.label,
                "newer": newer_side.label,
                "compatibility": wanted,
                "problems": found.problems,
                "diff": found.lines,
            }
        )
    else:
        for line in found.lines:
            print(_coloured(line))
        if not found.lines:
            print("the definitions are the same")
        for mode, problems in found.problems.items():
            print(f"{mode}: " + ("compatible" if not problems else "not compatible"))
            for problem in problems:
                print(terminal.wrapped(terminal.visible(problem), indent=2))
    if found.problems.get(wanted):
        raise typer.Exit(EXIT_NOT_VALID)


def _coloured(line: str) -> str:
    colours = {"+": "green", "-": "red", "@": "cyan"}
    return terminal.style(terminal.visible(line), fg=colours.get(line[:1]))


@app.command()
def validate(
    context: typer.Context,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="NAME[:VERSION][:MESSAGE]",
            help="The schema; of a Protobuf schema also the message, its first unless given.",
            autocompletion=complete_schema,
            show_default=False,
        ),
    ],
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="The record. Without it, the input is the record.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Read the record from this file, not standard input."),
    ] = None,
) -> None:
    """Check a record against a schema without storing it.

    Exits with 1 if the record does not match the schema.

    Examples:
    $ penstock schema validate order '{"id": 7}'
    $ penstock schema validate order:2 --file order.bin
    """
    if value is not None and file is not None:
        raise typer.BadParameter("VALUE is the record itself: leave it out to use --file")
    record = value.encode(errors="surrogateescape") if value is not None else _bytes(file)
    with connected(context) as client:
        reasons = client.schemas.validate(reference, record)
    if wants_json(context):
        terminal.print_json({"valid": not reasons, "reasons": reasons})
    elif reasons:
        for reason in reasons:
            print(terminal.visible(reason))
    else:
        print("valid")
    if reasons:
        raise typer.Exit(EXIT_NOT_VALID)


@app.command()
def delete(
    context: typer.Context,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="NAME[:VERSION]",
            help="Its name; all versions unless one is given.",
            autocompletion=complete_schema,
            show_default=False,
        ),
    ],
    yes: YesOption = False,
) -> None:
    """Delete a version of a schema, or all of them.

    Version numbers are not reused. A schema that a topic is bound to cannot
    be deleted. Asks for confirmation unless [bold]--yes[/bold] is given.

    Examples:
    $ penstock schema delete order:2
    $ penstock schema delete order --yes
    """
    name, version = _name_and_version(reference)
    what = f"schema {name} with all its versions" if version is None else f"version {version} of schema {name}"
    with connected(context) as client:
        client.schemas.get(name, version)
        terminal.confirm(f"Delete {what}?", yes=yes)
        client.schemas.delete(name, version)
    terminal.print_outcome(context, f"deleted {what}", {"name": name, "version": version, "deleted": True})


@app.command()
def bind(
    context: typer.Context,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic, show_default=False),
    ],
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME[:VERSION][:MESSAGE]",
            help="The schema; without a version always the latest.",
            autocompletion=complete_schema,
            show_default=False,
        ),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove the binding: accept any record.")] = False,
) -> None:
    """Bind a topic to a schema: records that do not match it are refused.

    Existing records are not checked.

    Examples:
    $ penstock schema bind orders order
    $ penstock schema bind orders order:2
    $ penstock schema bind orders --none
    """
    if (reference is None) != none:
        raise typer.BadParameter("name the schema, or use --none")
    with connected(context) as client:
        client.schemas.bind(topic, reference)
    told = f"topic {topic} takes any records" if reference is None else f"topic {topic} is bound to {reference}"
    terminal.print_outcome(context, told, {"topic": topic, "schema": reference})


def _name_and_version(reference: str) -> tuple[str, int | None]:
    name, colon, version = reference.partition(":")
    if not colon:
        return name, None
    if not (version.isascii() and version.isdigit() and len(version) <= 10) or not 1 <= int(version) < 1 << 32:
        raise typer.BadParameter(f"{reference}: write NAME or NAME:VERSION, with a number from 1")
    return name, int(version)


def _bytes(file: Path | None) -> bytes:
    if file is None or str(file) == "-":
        if sys.stdin.isatty():
            terminal.hint("reading standard input; Ctrl-D ends")
        return sys.stdin.buffer.read()
    return file.read_bytes()


def _text(file: Path | None) -> str:
    try:
        text = _bytes(file).decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"the definition is not UTF-8 at byte {error.start}") from None
    if not text.strip():
        source = "standard input" if file is None or str(file) == "-" else str(file)
        raise typer.BadParameter(f"{source} is empty: name the FILE with the definition, or write it to standard input")
    return text


def _as_json(schema: SchemaInfo) -> dict[str, Any]:
    return {
        "id": schema.id,
        "name": schema.name,
        "version": schema.version,
        "type": schema.type,
        "compatibility": schema.compatibility,
        "created_ms": schema.created_ms,
    }

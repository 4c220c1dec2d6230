"""`penstock produce`: records from an argument, a file or standard input, as lines or as JSON Lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_schema, complete_topic, connected
from penstock.cli.options import duration_ms

if TYPE_CHECKING:
    from penstock.cli.lines import ProducedRecord
    from penstock.clients.records import RecordMetadata
    from penstock.protocols.flymq.client.records import DelayedRecord
    from penstock.protocols.flymq.sync import FlyMQClient


@dataclass
class Stored:
    """Where the records went, by partition: how many, first and last offset."""

    ttl_s: float | None = None
    schema: str | None = None
    records: int = 0
    partitions: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def send(self, client: FlyMQClient, topic: str, records: list[ProducedRecord], partition: int | None) -> None:
        from penstock.errors import BatchFailed, PenstockError

        if self.ttl_s is not None:
            for key, value, headers in records:
                metadata = client.send(
                    topic, value, key, partition, headers=headers, ttl_s=self.ttl_s, schema=self.schema
                )
                self._add([metadata])
            return
        try:
            self._add(client.send_many(topic, records, partition, schema=self.schema))
        except BatchFailed as error:
            self._add([each for each in error.results if not isinstance(each, PenstockError)])
            raise

    def _add(self, placed: list[RecordMetadata]) -> None:
        self.records += len(placed)
        for each in placed:
            count, first, _ = self.partitions.get(each.partition, (0, each.offset, each.offset))
            self.partitions[each.partition] = (count + 1, first, each.offset)

    def as_text(self, topic: str) -> str:
        what = f"stored {self.records} record{'' if self.records == 1 else 's'} in {topic}"
        if len(self.partitions) == 1:
            ((partition, (count, first, last)),) = self.partitions.items()
            return f"{what}: partition {partition}, " + (
                f"offset {first}" if count == 1 else f"offsets {first} to {last}"
            )
        return f"{what}: {len(self.partitions)} partitions" if self.partitions else what

    def as_json(self, topic: str) -> dict[str, Any]:
        return {
            "topic": topic,
            "records": self.records,
            "partitions": [
                {"partition": partition, "records": count, "first_offset": first, "last_offset": last}
                for partition, (count, first, last) in sorted(self.partitions.items())
            ],
        }


@dataclass
class Delayed:
    """What waits for its time, and how to cancel it."""

    delay_s: float
    ttl_s: float | None = None
    accepted: list[DelayedRecord] = field(default_factory=list)

    @property
    def records(self) -> int:
        return len(self.accepted)

    def send(self, client: FlyMQClient, topic: str, records: list[ProducedRecord], partition: int | None) -> None:
        for key, value, headers in records:
            self.accepted.append(
                client.send_later(topic, value, self.delay_s, key, partition, headers=headers, ttl_s=self.ttl_s)
            )

    def as_text(self, topic: str) -> str:
        what = f"accepted {self.records} record{'' if self.records == 1 else 's'} for {topic}"
        if not self.accepted:
            return what
        last = self.accepted[-1]
        due = f"{what}, due {terminal.local_time(last.due_ms)}"
        return f"{due}, id {last.id}" if self.records == 1 else due

    def as_json(self, topic: str) -> dict[str, Any]:
        return {
            "topic": topic,
            "records": self.records,
            "delayed": [{"id": each.id, "partition": each.partition, "due_ms": each.due_ms} for each in self.accepted],
        }


def produce(
    context: typer.Context,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="Where to store them.", autocompletion=complete_topic, show_default=False),
    ],
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="One record. Without it, records are read from the input.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Read records from this file instead of standard input."),
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="The input is one record, not one a line.")] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="The key of every record.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record. Repeatable."),
    ] = None,
    null: Annotated[
        bool, typer.Option("--null", "-Z", help="Store a tombstone: a record with --key and no value.")
    ] = False,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Each line is KEY, this text, VALUE."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="N",
            min=0,
            help="The partition. Default: by key, or round robin without a key.",
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="TIME", help="Delay, as in 30s or 2h: before it the record is not readable."),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(
            "--ttl", metavar="TIME", help="Time to live, as in 500ms or 7d: after it the record is not readable."
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="NAME[:VERSION]",
            help="The schema that records must match.",
            autocompletion=complete_schema,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Read JSON Lines as consume --json prints them, and print JSON, for programs."),
    ] = False,
) -> None:
    """Store records in a topic.

    Exits once every record is acknowledged: on disk, unless the topic's
    durability says otherwise. A topic that does not exist is created, with
    one partition.

    With [bold]--json[/bold] each line of the input is a record with key, headers and
    value, as penstock consume --json prints it. Its topic, partition, offset
    and timestamp are not used: a record gets its place and time from the broker.

    Examples:
    $ penstock produce orders "hello"
    $ penstock produce orders "hello" --key 4711 --header trace=ab12
    $ penstock produce orders --file orders.txt
    $ tail -f app.log | penstock produce logs
    $ penstock produce prices --key-separator : < prices.txt
    $ penstock produce prices --key apples --null
    $ penstock consume orders --json | penstock produce copy --json
    $ penstock produce reminders "call back" --delay 2h
    $ penstock produce codes 481516 --ttl 5m
    $ penstock produce orders --schema order < orders.jsonl
    """
    from penstock.cli.lines import open_input

    if value is not None and (file is not None or whole or key_separator is not None):
        raise typer.BadParameter("VALUE is the record itself: leave it out to use --file, --whole or --key-separator")
    if key is not None and key_separator is not None:
        raise typer.BadParameter("--key and --key-separator both give the key: use one of them")
    if null and (key is None or value is not None or file is not None or whole):
        raise typer.BadParameter("--null is a record without a value: give its --key, and neither VALUE nor input")
    json_lines = as_json and value is None and not null
    if json_lines and (key is not None or key_separator is not None or whole):
        raise typer.BadParameter("with --json the keys are in the lines: leave out --key, --key-separator and --whole")
    delay_s = None if delay is None else duration_ms(delay, "--delay") / 1000
    ttl_s = None if ttl is None else duration_ms(ttl, "--ttl") / 1000
    if delay_s and schema is not None:
        raise typer.BadParameter("--schema does not go with --delay: hold the topic to it with penstock schema bind")
    stored = Delayed(delay_s, ttl_s) if delay_s else Stored(ttl_s, schema)
    given_key = None if key is None else key.encode(errors="surrogateescape")
    headers = [_header(each) for each in header or ()]
    separator = None if key_separator is None else _separator(key_separator)
    with connected(context) as client:
        if value is not None or null:
            data = None if value is None else value.encode(errors="surrogateescape")
            stored.send(client, topic, [(given_key, data, headers)], partition)
        else:
            with open_input(file) as stream:
                batches = _batches(stream, given_key, separator, whole=whole, json_lines=json_lines)
                _send_all(client, topic, stream, batches, headers, partition, stored)
            if not stored.records:
                source = "standard input" if file is None or str(file) == "-" else str(file)
                terminal.print_note(f"{source} is empty: nothing was stored in {topic}")
    terminal.print_outcome(context, stored.as_text(topic), stored.as_json(topic))


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"--header {text}: write it as NAME=VALUE, as in --header trace=ab12")
    return name, value.encode(errors="surrogateescape")


def _separator(text: str) -> bytes:
    if not text:
        raise typer.BadParameter(
            "--key-separator is empty: name the text between key and value, as in --key-separator :"
        )
    return text.replace("\\t", "\t").encode(errors="surrogateescape")


def _batches(
    stream: BinaryIO, key: bytes | None, separator: bytes | None, *, whole: bool, json_lines: bool
) -> Iterator[tuple[int, Iterator[ProducedRecord]]]:
    """The records that each read completes, and the bytes they take in the input."""
    from penstock.cli import lines
    from penstock.cli.record_json import parse_json_lines

    line_number = 1
    line_bytes_max = lines.JSON_LINE_BYTES_MAX if json_lines else lines.LINE_BYTES_MAX
    for batch in iter([[lines.whole(stream)]]) if whole else lines.lines_of(stream, line_bytes_max):
        records: Iterator[ProducedRecord]
        if json_lines:
            records = parse_json_lines(batch, line_number)
        elif separator is not None:
            records = lines.split_keys(batch, separator, line_number)
        else:
            records = ((key, line, ()) for line in batch)
        yield sum(map(len, batch)) + len(batch), records
        line_number += len(batch)


def _send_all(
    client: FlyMQClient,
    topic: str,
    stream: BinaryIO,
    batches: Iterator[tuple[int, Iterator[ProducedRecord]]],
    headers: list[tuple[str, bytes]],
    partition: int | None,
    stored: Stored | Delayed,
) -> None:
    """Send records as they are read. Those before a bad line are sent before it is reported."""
    from penstock.cli.progress import ProgressBar
    from penstock.errors import InvalidRequest

    with ProgressBar(topic, _size_bytes(stream)) as progress:
        try:
            for size_bytes, parsed in batches:
                records: list[ProducedRecord] = []
                bad_line: InvalidRequest | None = None
                try:
                    for key, value, own in parsed:
                        records.append((key, value, [*own, *headers]))
                except InvalidRequest as error:
                    bad_line = error
                if records:
                    stored.send(client, topic, records, partition)
                if bad_line is not None:
                    raise bad_line
                progress.advance(size_bytes, len(records))
        finally:
            if sys.exc_info()[0] is not None and stored.records:
                terminal.print_note(f"{stored.as_text(topic)} before this:")


def _size_bytes(stream: BinaryIO) -> int | None:
    """The size of a regular file; None for a pipe."""
    import os
    import stat

    status = os.fstat(stream.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None

"""`penstock produce`: records from an argument, a file or standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_schema, complete_topic, connected
from penstock.cli.options import JsonOption, ServerOption, wants_json

if TYPE_CHECKING:
    from penstock.cli.lines import KeyedValue
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

    def send(self, client: FlyMQClient, topic: str, records: list[KeyedValue], partition: int | None) -> None:
        from penstock.errors import BatchFailed, PenstockError

        if self.ttl_s is not None:
            for key, value in records:
                self._add([client.send(topic, value, key, partition, ttl_s=self.ttl_s)])
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

    def send(self, client: FlyMQClient, topic: str, records: list[KeyedValue], partition: int | None) -> None:
        for key, value in records:
            self.accepted.append(client.send_later(topic, value, self.delay_s, key, partition, ttl_s=self.ttl_s))

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
        typer.Option("--file", "-f", metavar="FILE", help="Read records from this file instead of standard input."),
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="The input is one record, not one a line.")] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="The key of every record.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Each line is KEY, this text, VALUE."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", metavar="N", min=0, help="Where to; else the key decides, or partitions take turns."
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="TIME", help="Readable only after this time, as in 30s or 2h."),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option("--ttl", metavar="TIME", help="Not readable any more after this time, as in 500ms or 7d."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema", metavar="NAME[:VERSION]", help="What records must look like.", autocompletion=complete_schema
        ),
    ] = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store records in a topic.

    Ends once every record is acknowledged: on disk, unless the topic's
    durability says otherwise. A topic that does not exist is created, with
    one partition.

    Examples:
    $ penstock produce orders "hello"
    $ penstock produce orders --file orders.jsonl
    $ tail -f app.log | penstock produce logs
    $ penstock produce prices --key-separator : < prices.txt
    $ penstock produce reminders "call back" --delay 2h
    $ penstock produce codes 481516 --ttl 5m
    $ penstock produce orders --schema order < orders.jsonl
    """
    from penstock.cli.lines import open_input

    if value is not None and (file is not None or whole or key_separator is not None):
        raise typer.BadParameter("VALUE is the record itself: leave it out to use --file, --whole or --key-separator")
    if key is not None and key_separator is not None:
        raise typer.BadParameter("--key and --key-separator both give the key: use one of them")
    delay_s, ttl_s = _seconds("--delay", delay), _seconds("--ttl", ttl)
    if schema is not None and (delay_s or ttl_s):
        raise typer.BadParameter(
            "--schema does not go with --delay or --ttl: hold the topic to it with penstock schema bind"
        )
    stored = Delayed(delay_s, ttl_s) if delay_s else Stored(ttl_s, schema)
    given_key = None if key is None else key.encode(errors="surrogateescape")
    separator = None if key_separator is None else _separator(key_separator)
    with connected(context, server) as client:
        if value is not None:
            stored.send(client, topic, [(given_key, value.encode(errors="surrogateescape"))], partition)
        else:
            with open_input(file) as stream:
                _send_all(client, topic, stream, given_key, separator, partition, stored, whole=whole)
    if wants_json(context, as_json):
        terminal.print_json(stored.as_json(topic))
    else:
        print(terminal.visible(stored.as_text(topic)))


def _seconds(flag: str, text: str | None) -> float | None:
    from penstock.errors import InvalidRequest
    from penstock.units import parse_duration_ms

    if text is None:
        return None
    try:
        return parse_duration_ms(text) / 1000
    except (ValueError, InvalidRequest) as error:
        raise typer.BadParameter(f"{flag} {text}: {error}") from None


def _separator(text: str) -> bytes:
    if not text:
        raise typer.BadParameter(
            "--key-separator is empty: name the text between key and value, as in --key-separator :"
        )
    return text.replace("\\t", "\t").encode(errors="surrogateescape")


def _send_all(
    client: FlyMQClient,
    topic: str,
    stream: BinaryIO,
    key: bytes | None,
    separator: bytes | None,
    partition: int | None,
    stored: Stored | Delayed,
    *,
    whole: bool,
) -> None:
    from penstock.cli import lines
    from penstock.cli.progress import ProgressBar

    batches: Iterator[list[bytes]] = iter([[lines.whole(stream)]]) if whole else lines.lines_of(stream)
    with ProgressBar(topic, _size_bytes(stream)) as progress:
        try:
            for batch in batches:
                records: list[KeyedValue] = (
                    [(key, line) for line in batch]
                    if separator is None
                    else lines.split_keys(batch, separator, stored.records + 1)
                )
                stored.send(client, topic, records, partition)
                progress.advance(sum(map(len, batch)) + len(batch), len(batch))
        finally:
            if sys.exc_info()[0] is not None and stored.records:
                terminal.print_note(f"{stored.as_text(topic)} before this:")


def _size_bytes(stream: BinaryIO) -> int | None:
    """The size of a regular file; of a pipe nobody knows it."""
    import os
    import stat

    status = os.fstat(stream.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None

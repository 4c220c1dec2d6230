"""The options and the columns of the sink: those of Spark's Kafka connector under their names, and two of our own.

Parsing needs no Spark and asks no broker. A table that is both read and written has the options of both, so those of the source are known
here too, and mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.clients.arguments import check_topic
from penstock.errors import InvalidRequest
from penstock.spark.connection import CONNECTION_OPTIONS, ConnectionSettings, connection_settings
from penstock.spark.option_values import check_names, flag, number
from penstock.spark.options import SOURCE_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

APPLICATION: Final = "txnAppId"
VERSION: Final = "txnVersion"
REPLAY: Final = "txnReplay"
APPLICATION_BYTES_MAX: Final = 200
_SINK_OPTIONS: Final = ("topic", "includeHeaders", APPLICATION, VERSION, REPLAY)
# What Spark itself hands to the writer of a stream.
_OF_SPARK: Final = ("checkpointLocation", "queryName", "path")
_BYTES: Final = ("string", "binary")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
    "headers": ("array<struct<key:string,value:binary>>",),
}


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Where the columns of a record are in the rows; None if there is no such column."""

    value: int
    key: int | None
    topic: int | None
    partition: int | None
    headers: int | None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    connection: ConnectionSettings
    topic: str | None
    """Where all records go, whatever their column says."""
    application: str | None
    version: int | None
    replay: bool
    """Whether another query wrote under the application before, whose batches are those of this one."""
    columns: SinkColumns


def parse_sink_options(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> SinkOptions:
    """Raises InvalidRequest, which names the option or the column at fault and what to do about it."""
    elsewhere = {VERSION.lower(): "a stream numbers its batches itself: remove it"} if streaming else {}
    known = [
        name
        for name in (*CONNECTION_OPTIONS, *_SINK_OPTIONS, *_OF_SPARK, *SOURCE_OPTIONS)
        if name.lower() not in elsewhere
    ]
    check_names(options, known, elsewhere)
    given = {name.lower(): value for name, value in options.items()}
    if "path" in given:
        raise InvalidRequest("option path: topics are not paths; call save() without one and set the option topic")
    topic = given.get("topic")
    if topic is not None:
        try:
            check_topic(topic)
        except InvalidRequest as error:
            raise InvalidRequest(f"option topic: {error}") from None
    application = given.get(APPLICATION.lower())
    if application is not None and not 1 <= len(application.encode()) <= APPLICATION_BYTES_MAX:
        raise InvalidRequest(
            f"option {APPLICATION} has {len(application.encode())} bytes: use 1 to {APPLICATION_BYTES_MAX}"
        )
    version = number(given, VERSION, least=0)
    if version is not None and application is None:
        raise InvalidRequest(f"option {VERSION} is set without {APPLICATION}: name the application whose version it is")
    columns = _columns(schema)
    if not flag(given, "includeHeaders", default=True):
        columns = SinkColumns(columns.value, columns.key, columns.topic, columns.partition, None)
    if topic is None and columns.topic is None:
        raise InvalidRequest("where to write to is not known: set the option topic, or add a column topic")
    return SinkOptions(
        connection_settings(given), topic, application, version, flag(given, REPLAY, default=False), columns
    )


def _columns(schema: StructType) -> SinkColumns:
    """Other columns are left out, as Kafka's sink does: rows of the source can be written as they are."""
    places: dict[str, int] = {}
    for place, field in enumerate(schema.fields):
        name = field.name.lower()
        allowed = _TYPES.get(name)
        if allowed is None:
            continue
        if name in places:
            raise InvalidRequest(f"there are two columns {name}: keep one")
        found = field.dataType.simpleString()
        if found not in allowed:
            hint = f"; write CAST({field.name} AS STRING) or to_json(...) AS {name}" if allowed is _BYTES else ""
            raise InvalidRequest(f"column {field.name} is {found}: it must be {' or '.join(allowed)}{hint}")
        places[name] = place
    if "value" not in places:
        found = ", ".join(schema.fieldNames()) or "none"
        raise InvalidRequest(
            f"there is no column value (columns: {found}): select one, as in to_json(struct(*)) AS value"
        )
    return SinkColumns(
        places["value"], places.get("key"), places.get("topic"), places.get("partition"), places.get("headers")
    )

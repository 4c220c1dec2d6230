"""`penstock.spark.decode` and `encode`: records of registered schemas in a query of one's own.

The driver asks the broker once for every version of the schema. What executors need travels with the query, so they ask nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import pyarrow as pa

from penstock.broker.schemas.marks import SCHEMA_HEADER, Framing
from penstock.broker.schemas.reference import Reference, parse_reference
from penstock.errors import InvalidRequest, SchemaNotFound, ValidationFailed
from penstock.spark.connection import connection_settings, open_client
from penstock.spark.pipelines.decoding import Plan, decoder, header_marks
from penstock.spark.pipelines.encoding import EncodingPlan, encoder
from penstock.spark.pipelines.schemas import Versions, check_unmarked, plan_of
from penstock.spark.session_options import with_session_defaults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rejects = Literal["column", "null", "fail"]
REASON_COLUMN: Final = "_reason"
HEADERS: Final = "headers"
SINK_COLUMNS: Final = ("key", "topic", "partition", HEADERS)
"""What the sink takes besides the value: encoding passes it on."""
_HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


def decode_records(
    df: DataFrame,
    schema: str,
    column: str,
    framing: Framing | Literal["auto"],
    rejects: Rejects,
    unmarked: str,
    options: Mapping[str, str] | None,
) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    _check_choice("framing", framing, ("auto", *get_args(Framing)))
    _check_choice("rejects", rejects, get_args(Rejects))
    check_unmarked(unmarked)
    _check_column(df, column, "binary")
    if framing == "header" and HEADERS not in df.columns:
        raise InvalidRequest(f"framing is header, and there is no column {HEADERS}: load records with includeHeaders")
    plan = _plan(df, schema, options, unmarked)._replace(framing=framing)
    kept = [field for field in df.schema.fields if rejects == "column" or field.name != column]
    taken = [field.name for field in kept] + [REASON_COLUMN] * (rejects == "column")
    decoded = [
        StructField(field.name, from_arrow_type(field.type, prefer_timestamp_ntz=False), True)
        for field in decoder(plan).schema_beside(taken)
    ]
    reason = [StructField(REASON_COLUMN, StringType(), True)] if rejects == "column" else []
    columns = StructType([*kept, *decoded, *reason])
    arrow = to_arrow_schema(columns, timezone="UTC")
    return df.mapInArrow(_decoding(plan, arrow, len(kept), column, rejects), columns)


def _decoding(plan: Plan, arrow: Any, kept: int, column: str, rejects: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def decode_batches(batches: Iterator[Any]) -> Iterator[Any]:
        decode = decoder(plan).decode
        for batch in batches:
            values = batch.column(column).to_pylist()
            marks = header_marks(batch.column(HEADERS)) if HEADERS in batch.schema.names else None
            columns, reasons = decode(values, marks)
            if rejects == "fail":
                first = next((reason for reason in reasons if reason is not None), None)
                if first is not None:
                    raise ValidationFailed(f"{_place(batch, reasons.index(first))}{first}")
            arrays = [batch.column(field.name) for field in list(arrow)[:kept]] + columns
            if rejects == "column":
                left = [None if reason is None else value for value, reason in zip(values, reasons, strict=True)]
                arrays[arrow.get_field_index(column)] = pa.array(left, pa.binary())
                arrays.append(pa.array(reasons, pa.string()))
            yield pa.record_batch(
                [array.cast(field.type) for array, field in zip(arrays, arrow, strict=True)], schema=arrow
            )

    return decode_batches


def _place(batch: Any, row: int) -> str:
    places = [name for name in ("topic", "partition", "offset") if name in batch.schema.names]
    return f"{', '.join(f'{name} {batch.column(name)[row].as_py()}' for name in places)}: " if places else ""


def encode_records(
    df: DataFrame, schema: str, column: str, framing: Framing, options: Mapping[str, str] | None
) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType

    _check_choice("framing", framing, get_args(Framing))
    found = _plan(df, schema, options)
    plan = EncodingPlan(found.name, found.kind, found.message, found.version, framing)
    members = encoder(plan).schema
    if not set(members.names) & set(df.columns):
        raise InvalidRequest(
            f"no column is a member of {plan.name}:{plan.version.number}: it has {', '.join(members.names)}, and there are "
            f"{', '.join(df.columns)}"
        )
    unknown = [name for name in df.columns if name not in members.names and name not in SINK_COLUMNS]
    if unknown:
        raise InvalidRequest(
            f"columns {', '.join(unknown)} are no members of {plan.name}:{plan.version.number}, which has {', '.join(members.names)}: "
            "drop or rename them"
        )
    passed = [field for field in df.schema.fields if field.name in SINK_COLUMNS and field.name not in members.names]
    names = [field.name for field in passed if field.name != HEADERS or framing != "header"]
    extra = [pa.field(column, pa.binary())] + [pa.field(HEADERS, pa.list_(_HEADER_TYPE))] * (framing == "header")
    columns = StructType(
        [*[each for each in passed if each.name in names], *from_arrow_schema(pa.schema(extra)).fields]
    )
    arrow = to_arrow_schema(columns, timezone="UTC")
    # As types of the schema, so that a column of integers is a column of decimals where one is asked for.
    wanted = from_arrow_schema(members)
    typed = df.selectExpr(
        *[f"`{field.name}`" for field in passed],
        *[
            f"CAST(`{field.name}` AS {field.dataType.simpleString()}) AS `{field.name}`"
            for field in wanted.fields
            if field.name in df.columns
        ],
    )
    return typed.mapInArrow(_encoding(plan, arrow, names), columns)


def _encoding(plan: EncodingPlan, arrow: Any, names: list[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def encode_batches(batches: Iterator[Any]) -> Iterator[Any]:
        made = encoder(plan)
        for batch in batches:
            members = [name for name in made.schema.names if name in batch.schema.names]
            values = made.encode(batch.select(members).to_pylist())
            arrays = [batch.column(name) for name in names] + [pa.array(values, pa.binary())]
            if plan.framing == "header":
                own = batch.column(HEADERS).to_pylist() if HEADERS in batch.schema.names else [None] * len(values)
                arrays.append(pa.array([_marked(each, plan.mark) for each in own], pa.list_(_HEADER_TYPE)))
            yield pa.record_batch(
                [array.cast(field.type) for array, field in zip(arrays, arrow, strict=True)], schema=arrow
            )

    return encode_batches


def _marked(headers: list[dict[str, Any]] | None, mark: bytes) -> list[dict[str, Any]]:
    return [each for each in headers or () if each["key"] != SCHEMA_HEADER] + [{"key": SCHEMA_HEADER, "value": mark}]


# --- on the driver ---


def _plan(df: DataFrame, schema: str, options: Mapping[str, str] | None, unmarked: str = "auto") -> Plan:
    """Every version of the schema, asked for once."""
    reference: Reference = parse_reference(schema)
    client = open_client(connection_settings(with_session_defaults(df.sparkSession, options or {})))
    try:
        plan = plan_of(Versions(client, reference.name).now(reference.version), reference, unmarked)
    finally:
        client.close()
    if plan is None:
        raise SchemaNotFound(
            f"schema not found: {reference}: register it with penstock schema register {reference.name} FILE"
        )
    return plan


def _check_choice(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise InvalidRequest(f"{name} is {given!r}: use {', '.join(known)}")


def _check_column(df: DataFrame, column: str, kind: str) -> None:
    found = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    if found.get(column) != kind:
        there = f"is {found[column]}" if column in found else f"is none of {', '.join(found)}"
        raise InvalidRequest(f"column {column} {there}: name one of type {kind}")

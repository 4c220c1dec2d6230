"""`decode` and `encode` in queries of one's own: batches and streams, on executors that ask no broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

import penstock.spark
from penstock.broker.schemas.marks import SCHEMA_HEADER, Framing
from penstock.errors import InvalidRequest, SchemaNotFound
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS: Final = (("id", "quantity", "discount"), ("id", "discount", "quantity"))
AVRO: Final = [
    json.dumps({"type": "record", "name": "O", "fields": [{"name": n, "type": "int", "default": 0} for n in names]})
    for names in FIELDS
]
JSON: Final = json.dumps(
    {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "amount": {"type": "number", "x-decimal": {"precision": 10, "scale": 2}},
            "at": {"type": "string", "format": "date-time"},
            "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        },
        "required": ["id"],
    }
)
PROTO: Final = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message O { int64 id = 1; optional uint64 amount = 2; google.protobuf.Timestamp at = 3; State state = 4; map<string, bytes> tags = 5; }
enum State { NEW = 0; PAID = 1; }
"""


@pytest.fixture
def session(spark: SparkSession, broker: BrokerProcess) -> SparkSession:
    """One that names its broker, so that no query has to."""
    session = spark.newSession()
    session.conf.set("spark.penstock.bootstrap", broker.address)
    penstock.spark.register(session)
    return session


def test_rows_of_two_versions_and_every_mark_come_back_as_they_were(
    session: SparkSession, client: FlyMQClient, fresh_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = fresh_topic("decoded")
    for definition in AVRO:
        client.schemas.register(topic, definition, "avro")
    client.create_topic(topic, schema=topic)
    written: list[dict[str, int | None]] = []
    framings: tuple[Framing, ...] = ("header", "confluent", "single-object")
    for number, framing in enumerate(framings * 2):
        row: dict[str, int | None] = {"id": number, "quantity": 100 + number, "discount": number}
        rows = session.createDataFrame([row], "id int, quantity int, discount int")
        encoded = penstock.spark.encode(rows, f"{topic}:{number // 3 + 1}", framing=framing)
        encoded.write.format("penstock").option("topic", topic).mode("append").save()
        written.append(row)
    client.send(topic, None, key=b"gone")
    marks = [dict(record.headers).get(SCHEMA_HEADER) for record in client.records(topic)]
    assert marks == [f"{topic}:1".encode(), None, None, f"{topic}:2".encode(), None, None, None]

    records = penstock.spark.load(session, topic, options={"includeHeaders": "true"})
    decoded = penstock.spark.decode(records, topic)
    tombstone: dict[str, int | None] = dict.fromkeys(FIELDS[0])
    assert decoded.columns == [*records.columns, "id", "discount", "quantity", "_reason"]
    found = [
        row.asDict()
        for row in decoded.select("id", "quantity", "discount", "_reason", "value").sort("offset").collect()
    ]
    assert found == [{**row, "_reason": None, "value": None} for row in [*written, tombstone]]

    stream = session.readStream.format("penstock").options(subscribe=topic, startingOffsets="earliest").load()
    query = (
        penstock.spark.decode(stream, topic, rejects="column")
        .select("id", "quantity", "_reason")
        .writeStream.format("memory")
        .queryName("decoded")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows_read = session.sql("SELECT id, quantity, _reason FROM decoded WHERE id IS NOT NULL OR _reason IS NOT NULL")
    by_id = {row.id: row for row in rows_read.collect()}
    assert [by_id[number].quantity for number in (1, 2, 4, 5)] == [101, 102, 104, 105]
    unmarked = session.createDataFrame([written[0]], "id int, quantity int, discount int")
    bare = penstock.spark.encode(unmarked, topic, framing="none").selectExpr("value", "CAST('bare' AS BINARY) AS key")
    bare.write.format("penstock").option("topic", topic).mode("append").save()
    assert [record.headers for record in client.records(topic) if record.key == b"bare"] == [()], (
        "either may have written it"
    )

    named = penstock.spark.decode(records.drop("headers"), topic, framing="none", unmarked=f"{topic}:1")
    assert [row.quantity for row in named.where("offset = 0").collect()] == [100]
    assert "load records with includeHeaders" in by_id[None]._reason, (
        "without its header nothing says who wrote a record"
    )


@pytest.mark.parametrize(("kind", "definition"), [("json", JSON), ("protobuf", PROTO)])
def test_every_type_of_column_comes_back(
    session: SparkSession, client: FlyMQClient, fresh_topic: Callable[..., str], kind: str, definition: str
) -> None:
    topic = fresh_topic(kind)
    client.schemas.register(topic, definition, kind)
    client.create_topic(topic, schema=topic)
    columns = ["CAST(id AS INT) AS id", "CAST(id AS DECIMAL(5, 1)) AS amount", "timestamp'2026-01-31 12:00:00Z' AS at"]
    if kind == "json":
        columns += ["array(named_struct('sku', concat('s', id))) AS lines"]
    else:
        columns += ["'PAID' AS state", "map('a', X'00ff') AS tags"]
    rows = session.range(3).selectExpr(*columns, "CAST(id AS STRING) AS key")
    encoded = penstock.spark.encode(rows, topic, framing="confluent")
    assert encoded.columns == ["key", "value"]
    encoded.write.format("penstock").option("topic", topic).mode("append").save()
    records = penstock.spark.load(session, topic)
    decoded = penstock.spark.decode(records, topic, rejects="fail")
    assert "value" not in decoded.columns
    found: list[Any] = decoded.sort("id").collect()
    assert [(row.id, row.amount, row.at.isoformat()) for row in found] == [
        (number, Decimal(number), found[0].at.isoformat()) for number in range(3)
    ]
    if kind == "json":
        assert [row.lines[0].sku for row in found] == ["s0", "s1", "s2"]
    else:
        assert [(row.state, bytes(row.tags["a"])) for row in found] == [("PAID", b"\x00\xff")] * 3


def test_what_cannot_be_decoded_or_encoded_says_why(
    session: SparkSession, client: FlyMQClient, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic("unfit")
    client.schemas.register(topic, JSON)
    client.create_topic(topic)
    client.send_many(topic, [b'{"id": 1}', b"nonsense"])
    records = penstock.spark.load(session, topic)
    rejected, *_ = (
        penstock.spark.decode(records, topic).where("_reason IS NOT NULL").select("value", "_reason").collect()
    )
    assert bytes(rejected.value) == b"nonsense"
    assert "not a JSON document" in rejected._reason
    nulls = penstock.spark.decode(records, topic, rejects="null")
    assert sorted(row.id or 0 for row in nulls.collect()) == [0, 1]
    assert "_reason" not in nulls.columns
    with pytest.raises(Exception, match=f"topic {topic}, partition 0, offset 1: not a JSON document"):
        penstock.spark.decode(records, topic, rejects="fail").collect()
    with pytest.raises(Exception, match=r'row 0 of a batch does not fit: "id" is a required property'):
        penstock.spark.encode(session.sql("SELECT CAST(NULL AS INT) AS id"), topic).collect()
    refusals: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: penstock.spark.encode(session.range(1), topic, framing="single-object"),
            "only Avro has single-object",
        ),
        (lambda: penstock.spark.encode(session.sql("SELECT 1 AS other"), topic), "no column is a member of"),
        (
            lambda: penstock.spark.encode(session.sql("SELECT 1 AS id, 2 AS other"), topic),
            "columns other are no members",
        ),
        (lambda: penstock.spark.decode(records, topic, framing="header"), "includeHeaders"),
        (
            lambda: penstock.spark.decode(records, topic, rejects=cast("Any", "drop")),
            "rejects is 'drop': use column, null, fail",
        ),
        (lambda: penstock.spark.decode(records, topic, unmarked="never"), "or use auto, read, reject"),
        (lambda: penstock.spark.decode(records, topic, unmarked="other:1"), "unmarked is other:1, and the schema is"),
        (lambda: penstock.spark.decode(records, topic, column="key2"), "column key2 is none of"),
        (lambda: penstock.spark.decode(records, topic, column="topic"), "column topic is string"),
    ]
    for refused, found in refusals:
        with pytest.raises(InvalidRequest, match=found):
            refused()
    with pytest.raises(SchemaNotFound, match=r"nowhere:3: register it"):
        penstock.spark.decode(records, "nowhere:3")


def test_credentials_are_in_no_plan(
    session: SparkSession, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exception, match=r"set penstock\.user and penstock\.password") as refused:
        penstock.spark.load(
            session, "x", options={"penstock.bootstrap": f"flymq://ann:s3cret@{broker.address}"}
        ).collect()
    assert "s3cret" not in str(refused.value)
    session.conf.set("spark.penstock.user", "ann")
    session.conf.set("spark.penstock.password", "s3cret")
    penstock.spark.register(session)
    rows = penstock.spark.load(session, "x")
    rows.explain(True)
    assert "s3cret" not in capsys.readouterr().out

"""Records of ten versions of a schema, with every mark, through the broker and `penstock pipeline run` into silver."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from penstock.broker.schemas.marks import SCHEMA_HEADER, confluent_frame, single_object_frame
from penstock.broker.schemas.reference import SchemaType
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess
from tests.spark.jvm import FAST_MASTER, FAST_SETTINGS
from tests.spark.pipelines.ten_versions import FORMATS, NUMBERS, VERSIONS, avro_schema, crc64, fields_of, row_of

OLD: Final = 3
"""The version of a writer that never marked its records."""


class Written:
    """Records sent to one topic, and the row of silver that each must become; None where it must be rejected."""

    def __init__(self, client: FlyMQClient, topic: str, kind: SchemaType, schema: str) -> None:
        self._client = client
        self._topic = topic
        self._schema = schema
        self._message = ":Order" if kind == "protobuf" else ""
        self._encode = FORMATS[kind][1]
        self._path = (1,) if kind == "protobuf" else None
        self.absent = -1 if kind == "avro" else None
        self.expected: list[dict[str, Any] | None] = []

    def with_every_mark(self, kind: SchemaType) -> None:
        for number in NUMBERS:
            name = f"{self._schema}:{number}{self._message}"
            registry_id = self._client.schemas.get(self._schema, number).registry_id
            assert registry_id is not None
            self._send(number, headers={SCHEMA_HEADER: name.encode()})
            self._send(number, schema=name)
            self._send(number, confluent_frame(registry_id, self._path))
            if kind == "avro":
                self._send(number, single_object_frame(crc64(avro_schema(number))))

    def without_a_mark(self, number: int, *, is_read: bool) -> None:
        self._send(number, is_read=is_read)

    def _send(self, number: int, frame: bytes = b"", *, is_read: bool = True, **marks: Any) -> None:
        record = len(self.expected)
        self._client.send(self._topic, frame + self._encode(number, record), partition=0, **marks)
        row = row_of(number, record)
        self.expected.append({name: row.get(name, self.absent) for name in fields_of(VERSIONS)} if is_read else None)


@pytest.mark.jvm
@pytest.mark.timeout(240)
def test_every_column_is_right_whatever_version_wrote_a_record_and_whatever_marks_it(
    client: FlyMQClient, broker: BrokerProcess, fresh_topic: Callable[..., str], tmp_path: Path
) -> None:
    avro, json_, protobuf, named = (fresh_topic(purpose) for purpose in ("avro", "json", "protobuf", "named"))
    kinds: dict[str, SchemaType] = {avro: "avro", json_: "json", protobuf: "protobuf", named: "avro"}
    schemas = {topic: topic for topic in kinds} | {named: avro}
    written: dict[str, Written] = {}
    for topic, kind in kinds.items():
        for number in NUMBERS if schemas[topic] == topic else ():
            client.schemas.register(topic, FORMATS[kind][0](number), kind, compatibility="none")
        client.create_topic(topic)
        written[topic] = Written(client, topic, kind, schemas[topic])

    # Records without a mark of an old writer; and of one of the latest, whose topics are bound by then.
    for topic in (avro, json_, named):
        written[topic].without_a_mark(OLD, is_read=topic == named)
    client.schemas.bind(avro, avro)
    client.schemas.bind(protobuf, f"{protobuf}:Order")
    for topic, kind in kinds.items():
        written[topic].with_every_mark(kind)
    written[avro].without_a_mark(VERSIONS, is_read=False)
    written[json_].without_a_mark(VERSIONS, is_read=False)
    written[protobuf].without_a_mark(VERSIONS, is_read=True)

    settings = "\n".join(f'"{name}" = "{value}"' for name, value in FAST_SETTINGS.items())
    file = tmp_path / "pipeline.toml"
    file.write_text(f"""
name = "pipeline-of-{avro}"
bootstrap = "{broker.address}"
topics = {json.dumps(list(kinds))}
directory = "tables"
[silver]
schemas = {{ {protobuf} = "{protobuf}:Order", {named} = "{avro}" }}
[silver.topics.{json_}]
unmarked = "reject"
[silver.topics.{named}]
unmarked = "{avro}:{OLD}"
[spark]
master = "{FAST_MASTER}"
config = {{ {settings.replace(chr(10), ", ")} }}
""")
    command = [sys.executable, "-m", "penstock", "pipeline", "run", str(file), "--once"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr

    columns = fields_of(VERSIONS)
    for topic in kinds:
        expected = written[topic].expected
        silver = (
            DeltaTable(str(tmp_path / "tables" / "silver" / topic))
            .to_pyarrow_table(columns=[*columns, "offset"])
            .to_pylist()
        )
        found = {row.pop("offset"): row for row in silver}
        assert found == {place: row for place, row in enumerate(expected) if row is not None}
        places = {letter.offset: letter.reason for letter in client.dead_letters.list(topic)}
        assert list(places) == [place for place, row in enumerate(expected) if row is None]
        wanted = f"nothing says which version of schema {topic} wrote it: mark records"
        assert all(reason.startswith(wanted) for reason in places.values())
    assert [len(client.dead_letters.list(topic)) for topic in kinds] == [2, 2, 0, 0]

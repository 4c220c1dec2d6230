"""The list of tables is that of a running broker, and a record that none of them could read is found."""

from __future__ import annotations

import gc
from typing import Any

import msgspec
import pytest

from penstock.broker.broker import Broker
from penstock.broker.groups.offsets import CommittedOffset, OffsetKey
from penstock.broker.idempotence.producers import _ENTRIES, _KEYS
from penstock.broker.idempotence.stored import PRODUCERS_TOPIC
from penstock.broker.table import Table
from penstock.broker.tables import TABLES, TableRecords
from penstock.log.api import Engine
from penstock.log.block import Block, encode_block


@pytest.mark.embedded
async def test_every_table_of_a_broker_is_listed_with_its_types(broker: Broker, engine: Engine) -> None:
    tables: list[Table[Any, Any]] = [
        each for each in gc.get_objects() if isinstance(each, Table) and each._engine is engine
    ]
    found = {each.topic: (each._key_decoder.type, each._value_decoder.type) for each in tables}
    found[PRODUCERS_TOPIC] = _KEYS.type, _ENTRIES.type  # no Table: its records are made in the commit
    assert found == TABLES
    assert all(each._background is broker.background for each in tables), "what keeps a table back is seen by /readyz"


def encoded(*values: object) -> list[bytes]:
    return [msgspec.msgpack.encode(value) for value in values]


def test_a_record_that_the_table_cannot_read_is_named_with_its_offset() -> None:
    records = TableRecords()
    keys = encoded(*[OffsetKey("group", "orders", partition) for partition in range(3)])
    good = encoded(*[CommittedOffset(5, 6, "id")] * 3)
    assert records.fault("__groups", Block(encode_block(7, 0, [*good[:2], None], keys))) is None
    fault = records.fault("__groups", Block(encode_block(7, 0, [good[0], b"\xc1", good[2]], keys)))
    assert fault is not None
    assert "__groups: the record at offset 8" in fault
    assert records.fault("__groups", Block(encode_block(7, 0, good, [keys[0], None, keys[2]]))) is not None
    assert records.fault("__groups", Block(encode_block(7, 0, good))) is not None


def test_topics_that_are_no_tables_hold_anything() -> None:
    assert TableRecords().fault("orders", Block(encode_block(0, 0, [b"\xc1"]))) is None

"""Tables with a key, in both formats: later rows replace earlier ones, tombstones delete. No Spark is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bench.driver_rows import Rows
from penstock.spark.pipelines.tables import delta, iceberg
from tests.spark.pipelines.rows_by_hand import accounts, keys, rows_of
from tests.spark.pipelines.table_formats import QUERY, Made, states


def owners(made: Made) -> dict[int, str]:
    return {row["Account No"]: row["owner"] for row in made.rows()}


def interposed(made: Made, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """Let something happen between the look at the table and the commit of a merge."""
    module, name = (delta, "merge_rows") if made.format == "delta" else (iceberg, "rewrite_files")
    original = getattr(module, name)

    def late(*given: Any) -> Any:
        monkeypatch.setattr(module, name, original)
        meanwhile()
        return original(*given)

    monkeypatch.setattr(module, name, late)


def test_rows_are_replaced_by_key_and_a_batch_changes_them_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made.claimed()
    table.merge(accounts((1, "a"), (2, "b"), (3, "c")), keys(), ["Account No"], 0)
    table.merge(accounts((2, "B"), (4, "d")), keys(3), ["Account No"], 1)
    assert owners(made) == {1: "a", 2: "B", 4: "d"}
    table.merge(accounts((2, "again")), keys(1), ["Account No"], 1)
    assert owners(made) == {1: "a", 2: "B", 4: "d"}, "the batch is there already"
    table.merge(accounts(), keys(4), ["Account No"], 2)
    assert (owners(made), table.last_batch(QUERY)) == ({1: "a", 2: "B"}, 2)

    interposed(made, monkeypatch, lambda: made.claimed(3).merge(accounts((1, "x")), keys(), ["Account No"], 3))
    table.merge(accounts((1, "y")), keys(), ["Account No"], 3)
    assert owners(made) == {1: "x", 2: "B"}, "of two runs of one batch, the first counts"


def test_a_merge_that_loses_the_race_to_a_compaction_is_done_again(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made.claimed()
    for number in range(3):
        table.merge(accounts((number, "a"), (10 + number, "a")), keys(), ["Account No"], number)

    def compact() -> None:
        assert made.open().compact(1 << 20) == (3, 1)

    interposed(made, monkeypatch, compact)
    table.merge(accounts((1, "b")), keys(2), ["Account No"], 3)
    assert owners(made) == {0: "a", 1: "b", 10: "a", 11: "a", 12: "a"}
    assert len(made.rows()) == 5


@pytest.mark.parametrize("partition_by", [[], ["country"]])
def test_readers_see_each_batch_of_changes_at_once(made: Made, partition_by: list[str]) -> None:
    def batch(rows: list[tuple[Any, ...]], *deleted: int) -> None:
        schema = pa.schema([("id", pa.int64()), ("key", pa.binary()), ("country", pa.string()), ("owner", pa.string())])
        columns = zip(*rows, strict=True) if rows else [()] * len(schema)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        changes: Any = Rows(pa.table(arrays, schema=schema))
        number = len(wanted)
        made.claimed(number, partition_by).merge(changes, keys(*deleted), ["country", "id"], number)
        wanted.append({row["id"]: row["owner"] for row in made.rows()})

    wanted: list[dict[int, str]] = []
    # The last as of before the table had a key, which it has no value for.
    batch(
        [(1, b"1", "DE", "a"), (2, b"2", "FR", "b"), (3, b"3", "DE", "c"), (4, b"3", "FR", "d"), (6, b"6", None, "f")]
    )
    batch([(1, b"1", "DE", "A"), (5, b"5", "FR", "e")], 1, 2, 9)
    assert wanted[-1] == {1: "A", 3: "c", 4: "d", 5: "e", 6: "f"}, "1 was deleted, and then written again"
    batch([], 3, 6)
    assert wanted[-1] == {1: "A", 5: "e"}, "both rows of one record, and the one without a country"
    batch([], 3)
    batch([(3, b"7", "DE", "C")], 5)
    assert wanted[-1] == {1: "A", 3: "C"}
    seen = [{row["id"]: row["owner"] for row in state.to_pylist()} for state in states(made.open())]
    assert seen == wanted


@pytest.mark.parametrize("deleted", [keys(), keys(1)])
def test_a_row_that_is_replaced_keeps_nothing_of_columns_that_the_batch_lacks(made: Made, deleted: pa.Array) -> None:
    nested = pa.struct([("tags", pa.map_(pa.string(), pa.list_(pa.decimal128(9, 2))))])
    full = {"Account No": [1, 2], "owner": ["a", "b"], "key": [b"1", b"2"]}
    more = pa.array([{"tags": [("a", [Decimal("0.01")])]}] * 2, nested)
    table = made.claimed()
    table.merge(rows_of(**full, more=more), keys(), ["Account No"], 0)
    table.merge(rows_of(**{"Account No": [1, 3], "key": [b"1", b"3"]}), deleted, ["Account No"], 1)
    rows = {row["Account No"]: (row["owner"], row["more"]) for row in table.batches().read_all().to_pylist()}
    assert rows == {1: (None, None), 2: ("b", more[1].as_py()), 3: (None, None)}


@pytest.mark.parametrize("key", ["id", "key"])
def test_a_tombstone_deletes_the_rows_of_its_own_record_alone(made: Made, key: str) -> None:
    def rows(*rows: tuple[int | None, bytes]) -> Any:
        ids, record_keys = zip(*rows, strict=True) if rows else ((), ())
        return rows_of(id=pa.array(ids, pa.int64()), key=pa.array(record_keys, pa.binary()))

    def left() -> list[tuple[int | None, bytes]]:
        return [(row["id"], row["key"]) for row in made.rows()]

    table = made.claimed()
    # As of before the table had a key: none for some, and the same one for several records.
    table.append(rows((None, b"1"), (None, b"2"), (7, b"1"), (7, b"3"), (8, b"4")), 0, small=True)
    table.merge(rows(), keys(1), [key], 1)
    assert set(left()) == {(None, b"2"), (7, b"3"), (8, b"4")}
    table.merge(rows((8, b"4")), keys(2, 4), [key], 2)
    assert set(left()) == {(7, b"3"), (8, b"4")}


STRUCT = pa.struct([("shop", pa.string()), ("places", pa.list_(pa.int64()))])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (STRUCT, [{"shop": "a", "places": [1]}, {"shop": "a", "places": [None]}, {"shop": None, "places": []}]),
        (pa.list_(pa.decimal128(9, 2)), [[Decimal("0.10")], [Decimal("0.10"), None], []]),
    ],
)
def test_a_key_may_be_a_struct_or_a_list(made: Made, kind: pa.DataType, values: list[Any]) -> None:
    def rows(**owners: str) -> Any:
        numbers = [int(name[1:]) for name in owners]
        return rows_of(
            id=pa.array([values[number] for number in numbers], kind),
            owner=pa.array(owners.values(), pa.string()),
            key=pa.array([b"%d" % number for number in numbers], pa.binary()),
        )

    def left() -> list[tuple[Any, str]]:
        found = [(row["id"], row["owner"]) for row in table.batches().read_all().to_pylist()]
        return sorted(found, key=lambda row: str(row[1]))

    table = made.claimed()
    table.append(rows(_0="a", _1="b", _2="c"), 0, small=True)
    table.merge(rows(_0="A"), keys(0, 1), ["id"], 1)
    assert left() == [(values[0], "A"), (values[2], "c")]
    table.merge(rows(), keys(2, 0), ["id"], 2)
    assert left() == []


def test_files_that_cannot_have_a_key_of_the_batch_stay_as_they_are(tmp_path: Path) -> None:
    made = Made(tmp_path, "iceberg")
    table = made.claimed()
    for number in range(4):
        table.merge(accounts((2 * number, "a"), (2 * number + 1, "a")), keys(), ["Account No"], number)
    opened: list[str] = []
    stored = made.iceberg()
    new_input = type(stored.io).new_input

    def noted(self: Any, path: str) -> Any:
        opened.append(path)
        return new_input(self, path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(stored.io), "new_input", noted)
        table.merge(accounts((2, "b"), (3, "b")), keys(3), ["Account No"], 4)
    before = {path for path in opened if re.search(r"/data/part-", path)}
    assert len(before) == 2, "the file with both, and the new one"
    assert owners(made) == {0: "a", 1: "a", 2: "b", 3: "b", 4: "a", 5: "a", 6: "a", 7: "a"}
    assert len(table.file_sizes()) == 4


def test_rows_that_another_writer_deletes_from_an_iceberg_table_stay_deleted(tmp_path: Path) -> None:
    made = Made(tmp_path, "iceberg")
    table = made.claimed()
    table.merge(accounts((1, "a"), (2, "b"), (3, "c")), keys(), ["Account No"], 0)
    made.iceberg().delete("owner == 'b'")
    table.merge(accounts((1, "A")), keys(), ["Account No"], 1)
    assert owners(made) == {1: "A", 3: "c"}

"""Tables in an object store, which is one of this machine that speaks S3."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.spark.delta_source import FileTask, read_files
from penstock.spark.pipelines.compact import compact_tables
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import existing_tables, open_table
from penstock.spark.pipelines.tables.data_files import write_data_file
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.spark.pipelines.tables.iceberg import IcebergTable
from penstock.spark.pipelines.tables.stores import DeltaStore
from penstock.spark.pipelines.tables.table import VACUUM_KEEP_S_MIN
from tests.manual import blocks, page
from tests.spark.pipelines.conftest import Bench, order
from tests.spark.pipelines.object_store import BUCKET, SECRET, ObjectStore, object_store
from tests.spark.pipelines.rows_by_hand import accounts, ids_from, keys

URL = f"s3://{BUCKET}/sales"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with object_store() as running:
        yield running


@pytest.fixture
def pipeline(store: ObjectStore, tmp_path: Path) -> Pipeline:
    values = {
        "name": "sales",
        "topics": ["orders"],
        "directory": URL,
        "checkpoints": str(tmp_path / "checkpoints"),
        "storage": store.options,
        "bronze": {},
        "silver": {},
    }
    return Pipeline.model_validate(values)


def append(pipeline: Pipeline, batch_id: int, stage: str = "bronze", name: str = "orders") -> None:
    table = open_table(pipeline, stage, name)
    table.claim("query-1", batch_id, "checkpoint")
    table.append(ids_from(10 * batch_id), batch_id, small=True)


def ids(pipeline: Pipeline, store: ObjectStore) -> list[int]:
    table = DeltaTable(pipeline.table("bronze", "orders"), storage_options=store.options)
    return sorted(table.to_pyarrow_table()["id"].to_pylist())


def test_each_batch_is_appended_once(pipeline: Pipeline, store: ObjectStore) -> None:
    for batch_id in (0, 0, 1, 0, 1):
        append(pipeline, batch_id)
    assert ids(pipeline, store) == list(range(20))
    assert all(key.startswith("sales/bronze/orders/") for key in store.sizes())


def test_delta_tables_have_partitions_of_any_value(store: ObjectStore) -> None:
    path = f"{URL}/silver/orders"
    table = DeltaLakeTable(None, path, store.options, partition_by=["owner"])
    table.claim("query-1", 0, "checkpoint")
    for batch_id in range(2):
        table.append(accounts((batch_id, "New York"), (2 + batch_id, "a/b %41")), batch_id, small=True)
    options: Any = store.options
    for _ in range(2):
        by_library = DeltaTable(path, storage_options=store.options).to_pyarrow_table().to_pylist()
        for rows in (by_library, pl.read_delta(path, storage_options=options).to_dicts()):
            owners = {row["Account No"]: row["owner"] for row in rows}
            assert owners == {0: "New York", 1: "New York", 2: "a/b %41", 3: "a/b %41"}
        table.compact(1 << 20)
    assert len(table.file_sizes()) == 2


def test_iceberg_tables_have_partitions_keys_and_rebuilds_there_too(store: ObjectStore, tmp_path: Path) -> None:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": URL,
        "s3.endpoint": store.options["AWS_ENDPOINT_URL"],
        "s3.access-key-id": store.options["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": store.options["AWS_SECRET_ACCESS_KEY"],
        "s3.region": store.options["AWS_REGION"],
    }

    def opened() -> IcebergTable:
        path, identifier = f"{URL}/silver/orders", ("silver", "orders")
        table = IcebergTable(None, path, URL, identifier, properties, partition_by=["owner"])
        table.claim("query-1", 0, "checkpoint")
        return table

    def rows() -> list[tuple[int, str]]:
        found = opened().batches().read_all().to_pylist()
        return sorted((row["Account No"], row["owner"]) for row in found)

    table = opened()
    for _ in range(2):
        table.merge(accounts((1, "a"), (2, "b"), (3, "b")), keys(), ["Account No"], 0)
    table.merge(accounts((2, "B")), keys(3), ["Account No"], 1)
    assert rows() == [(1, "a"), (2, "B")]
    data = pickle.loads(pickle.dumps(table.log.data))
    assert SECRET not in repr(data)
    version = table.log.version_of_batch("query-1", 1)
    task = FileTask(tuple(table.log.files(version)))
    schema = pa.schema([("Account No", pa.int64())])
    read = pa.Table.from_batches(read_files(data, task, schema))
    assert sorted(read["Account No"].to_pylist()) == [1, 2]
    table.append(accounts((4, "a")), 2, small=True)
    assert table.compact(1 << 20) == (3, 2)
    assert rows() == [(1, "a"), (2, "B"), (4, "a")]
    columns = pa.schema([*schema, ("owner", pa.string())])
    assert table.replace(table.handle(), "query-1", 2, [], columns)
    assert (rows(), table.last_batch("query-1")) == ([], 2)


@pytest.mark.parametrize("batch_id", [0, 1])
def test_two_runs_that_commit_one_batch_at_once_append_it_once(
    pipeline: Pipeline, store: ObjectStore, batch_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for earlier in range(batch_id):
        append(pipeline, earlier)
    commit = DeltaLakeTable._commit
    raced: list[bool] = []

    def commit_late(*given: Any) -> None:
        if not raced:
            raced.append(True)
            append(pipeline, batch_id)
        commit(*given)

    monkeypatch.setattr(DeltaLakeTable, "_commit", commit_late)
    append(pipeline, batch_id)
    assert ids(pipeline, store) == list(range(10 * (batch_id + 1)))


def test_tables_are_found_and_compacted(pipeline: Pipeline, store: ObjectStore) -> None:
    for batch_id in range(3):
        append(pipeline, batch_id)
    append(pipeline, 0, "silver", "shop/orders")
    assert existing_tables(pipeline) == [("bronze", "orders"), ("silver", "shop/orders")]
    done = dict(compact_tables(pipeline, file_bytes=1 << 20, keep_s=VACUUM_KEEP_S_MIN, kinds=["bronze"]))
    assert done["bronze/orders"][:2] == (3, 1)
    assert ids(pipeline, store) == list(range(30))


def test_the_program_of_the_manual_reads_a_table_with_credentials_of_the_environment(
    pipeline: Pipeline, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(pipeline, 0, "silver")
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)
    [program] = [each for each in blocks("python", page("docs/pipelines-tables.md")) if "s3://" in each]
    names: dict[str, Any] = {}
    exec(program, names)
    assert sorted(names["orders"].to_pyarrow_table()["id"].to_pylist()) == list(range(10))


def test_a_task_writes_files_with_the_credentials_of_the_driver(store: ObjectStore) -> None:
    sent = pickle.dumps(DeltaStore(f"{URL}/bronze/orders", store.options))
    received: DeltaStore = pickle.loads(sent)
    assert SECRET not in repr(received), "what is logged of it has no secrets"
    rows = pa.table({"id": pa.array(range(100_000), pa.int64())})
    file = write_data_file(rows.to_batches(), rows.schema, received)
    assert file is not None
    assert file.size_bytes == store.sizes()[f"sales/bronze/orders/{file.name}"]


def test_a_pipeline_writes_to_an_object_store_and_keeps_checkpoints_on_disk(
    bench: Callable[..., Bench], store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.pipelines.topic_stage.is_small", lambda rows: False)
    made = bench(directory=URL, checkpoints=str(tmp_path / "checkpoints"), storage=store.options, bronze={})
    made.client.send_many(made.topic, [order(n) for n in range(10)])
    made.run_once()
    made.forget_last_commit("topics")
    made.client.send(made.topic, order(10))
    made.run_once()
    assert made.rows("bronze").num_rows == len(made.places()) == 11
    assert {key.split("/")[1] for key in store.sizes()} == {"bronze"}, "nothing but tables is in the store"

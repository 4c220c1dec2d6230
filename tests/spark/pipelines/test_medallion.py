"""Silver made again from bronze, rows by key, expectations, and gold out of silver: on a real Spark and a real broker."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines import rebuild
from penstock.spark.pipelines.assembly import reference_of
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.rebuild import Rebuild, Rebuilt
from penstock.spark.pipelines.running import Outcome
from penstock.spark.pipelines.schemas import Plans
from penstock.spark.pipelines.tables.iceberg import IcebergTable
from tests.spark.pipelines.conftest import Bench, order
from tests.spark.pipelines.table_formats import FORMATS, states

MakeBench = Callable[..., Bench]
WAIT_S_MAX = 120
WHOLE = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "amount": {"type": "integer"}}}
FRACTIONS = {**WHOLE, "properties": {"id": {"type": "integer"}, "amount": {"type": "number"}}}


def rebuilt(bench: Bench, on_chunk: Callable[[int, int], None] = lambda done, chunks: None) -> Rebuilt:
    reference = reference_of(bench.pipeline, bench.client, bench.topic)
    assert reference is not None
    plan = Plans(bench.client, bench.topic, reference, LocalFiles(), "nowhere").newest()
    return Rebuild(bench.spark, bench.pipeline, LocalFiles(), bench.topic, plan, on_chunk)()


def number(value: int, amount: float) -> bytes:
    return json.dumps({"id": value, "amount": amount}).encode()


@pytest.mark.parametrize("table_format", FORMATS)
def test_silver_is_remade_from_bronze_by_another_version_after_the_topic_has_lost_the_records(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    made = bench(schema=WHOLE, format=table_format, bronze={}, silver={})
    client, topic = made.client, made.topic
    client.send_many(topic, [number(n, n) for n in range(20)])
    client.send_many(topic, [number(20, 2.5), b"nonsense"], partition=1)
    made.run_once()
    assert made.ids() == list(range(20))
    client.truncate_topic(topic, "latest")
    client.schemas.register(topic, json.dumps(FRACTIONS))
    client.send(topic, number(21, 0.5))
    failed = made.run(once=True)()
    assert f"rebuild FILE silver/{topic}" in failed.message

    # Killed after the first of its chunks, and done by the next attempt.
    def killed(done: int, chunks: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rebuild, "CHUNK_BYTES", 1)
    with pytest.raises(KeyboardInterrupt):
        rebuilt(made, killed)
    assert made.rows("silver").schema.field("amount").type == "int64", "nothing is seen of it yet"
    done = rebuilt(made)
    assert replace(done, chunks=0) == Rebuilt(rows=21, rejects=1, dropped=0, batch=0, chunks=0, resumed=1)
    assert made.ids() == list(range(21)), "what did not fit the version before does now"
    assert made.rows("silver").schema.field("amount").type == "double"
    assert made.rows("rejects")["value"].to_pylist() == [b"nonsense"]
    assert not Path(made.pipeline.directory, "_rebuilds", "silver", topic).exists()
    made.run_once()
    assert made.ids() == list(range(22))

    # A table that was lost, or a stage that came later, is made in the same way.
    silver = made.table("silver")
    if isinstance(silver, IcebergTable):
        silver._opened_catalog().drop_table(silver._identifier)
    Path(silver.path).rename(made.pipeline.directory + "/elsewhere")
    client.send(topic, number(22, 0))
    failed = made.run(once=True)()
    assert "is gone, but its checkpoint" in failed.message
    assert rebuilt(made).rows == 22
    made.run_once()
    assert made.ids() == list(range(23))


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_rebuild_beside_a_running_pipeline_neither_loses_nor_doubles_a_batch(
    bench: MakeBench, table_format: str
) -> None:
    made = bench(format=table_format, bronze={}, silver={}, batch_records_max=7)
    made.client.send_many(made.topic, [order(n) for n in range(100)])
    begun, outcomes = threading.Event(), list[Outcome]()
    run = made.run(on_batch=lambda stage: begun.set())
    thread = threading.Thread(target=lambda: outcomes.append(run()))
    thread.start()
    try:
        assert begun.wait(WAIT_S_MAX)
        for _ in range(2):
            rebuilt(made)
        run.stop()
    finally:
        run.stop()
        thread.join(WAIT_S_MAX)
    assert [outcome.state for outcome in outcomes] == ["stopped"]
    made.pipeline = made.pipeline.model_copy(update={"batch_records_max": 1000})
    made.run_once()
    assert made.ids() == list(range(100))
    assert len(made.places()) == made.rows("bronze").num_rows == 100


@pytest.mark.parametrize(
    ("table_format", "key", "chunk_bytes"),
    [("delta", [], 1), ("delta", [], 1 << 20), ("delta", ["id"], 1), ("iceberg", ["id"], 1)],
)
def test_batches_that_silver_lacks_are_added_by_a_rebuild_as_new_rows(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, table_format: str, key: list[str], chunk_bytes: int
) -> None:
    monkeypatch.setattr(rebuild, "CHUNK_BYTES", chunk_bytes)
    made = bench(format=table_format, bronze={}, silver={"key": key})
    view = made.topic.replace("-", "_")
    gold = [] if key else [{"name": "all", "sql": f"SELECT id, timestamp FROM {view}"}]
    whole = made.pipeline.model_validate({**made.pipeline.model_dump(), "gold": gold})
    bronze_alone = made.pipeline.model_copy(update={"silver": None})
    sent = missed = 0

    def send() -> None:
        nonlocal sent
        made.client.send_many(made.topic, [order(n) for n in range(sent, sent + 10)])
        sent += 10

    for missing in (1, 3):
        send()
        made.pipeline = whole
        last = next(stage for stage in made.run_once().stages if stage.name.startswith("silver")).batch_id
        made.pipeline = bronze_alone
        for _ in range(missing):
            send()
            made.client.send(made.topic, b"nonsense")
            made.run_once()
        missed += missing
        made.pipeline = whole
        send()
        failed = made.run(once=True)()
        assert f"lacks batches {last + 1} to {last + missing}" in failed.message
        done = rebuilt(made)
        assert (done.batch, done.rows) == (last + missing, sent - 10)
        made.run_once()
        assert made.ids() == list(range(sent))
        assert made.rows("rejects")["value"].to_pylist() == [b"nonsense"] * missed
        assert done.rejects == len(made.rows("rejects"))
        if gold:
            assert sorted(made.rows("gold", "all")["id"].to_pylist()) == list(range(sent)), "silver as a stream"


@pytest.mark.parametrize("table_format", FORMATS)
def test_rows_by_key_with_expectations_in_partitions(bench: MakeBench, table_format: str) -> None:
    rules = {
        "key": ["id"],
        "partition_by": ["country"],
        "expect": {"amount >= 0": "reject", "country <> 'XX'": "drop"},
    }
    made = bench(format=table_format, bronze={"partition_by": ["date"]}, silver=rules)
    client, topic = made.client, made.topic

    def send(value: bytes | None, key: int) -> None:
        client.send(topic, value, key=b"%d" % key, partition=key % 2)

    def found() -> dict[int, tuple[str, float]]:
        rows = made.rows("silver").to_pylist()
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: (row["country"], row["amount"]) for row in rows}

    for key in range(6):
        send(order(key, amount=1), key)
    send(order(1, amount=2), 1)
    send(None, 2)
    send(None, 3)
    send(order(3, amount=3), 3)
    send(order(7, amount=-1), 7)
    send(order(8, country="XX"), 8)
    outcome = made.run_once()
    silver = next(stage for stage in outcome.stages if stage.name.startswith("silver"))
    assert (silver.rejects, silver.dropped) == (1, 1)
    first = {0: ("DE", 1.0), 1: ("FR", 2.0), 3: ("FR", 3.0), 4: ("DE", 1.0), 5: ("FR", 1.0)}
    assert found() == first
    [letter] = client.dead_letters.list(topic)
    assert (letter.reason, json.loads(letter.value or b"")["id"]) == ("does not meet amount >= 0", 7)

    send(None, 0)
    send(order(4, amount=9, country="FR"), 4)
    send(order(6, amount=1), 6)
    made.run_once()
    second = {key: row for key, row in first.items() if key} | {4: ("FR", 9.0), 6: ("DE", 1.0)}
    assert found() == second
    made.forget_last_commit("topics")
    made.run_once()
    assert found() == second, "a batch that is done again changes nothing"
    assert len(client.dead_letters.list(topic)) == 1
    done = rebuilt(made)
    assert (done.rows, done.rejects, done.dropped) == (5, 1, 1)
    assert found() == second, "from bronze it comes out the same"
    send(None, 5)
    made.run_once()
    assert set(found()) == {1, 3, 4, 6}
    seen = [set(state["id"].to_pylist()) for state in states(made.table("silver"))]
    assert seen == [set(first), set(second), set(second), {1, 3, 4, 6}], "a reader sees whole batches, and the rebuild"
    assert made.table("bronze").read().where("date IS NOT NULL").count() == 16
    made.pipeline = made.pipeline.model_validate({**made.pipeline.model_dump(), "silver": {"key": ["id"]}})
    send(order(9), 9)
    failed = made.run(once=True)()
    assert "is partitioned by country, and the file says nothing" in failed.message


@pytest.mark.parametrize("table_format", FORMATS)
def test_rows_have_a_struct_and_a_list_for_a_key(bench: MakeBench, table_format: str) -> None:
    place = {"type": "object", "properties": {"shop": {"type": "string"}, "shelf": {"type": "integer"}}}
    tags = {"type": "array", "items": {"type": "string"}}
    schema = {"type": "object", "properties": {"place": place, "tags": tags, "count": {"type": "integer"}}}
    made = bench(schema=schema, format=table_format, bronze={}, silver={"key": ["place", "tags"]})

    def send(shelf: int, count: int | None) -> None:
        row = {"place": {"shop": "a", "shelf": shelf}, "tags": ["x"] * shelf, "count": count}
        value = None if count is None else json.dumps(row).encode()
        made.client.send(made.topic, value, key=b"%d" % shelf, partition=0)

    def found() -> dict[int, int]:
        return {row["place"]["shelf"]: row["count"] for row in made.rows("silver").to_pylist()}

    for shelf in range(4):
        send(shelf, shelf)
    made.run_once()
    assert found() == {0: 0, 1: 1, 2: 2, 3: 3}
    send(1, 10)
    send(2, None)
    send(3, None)
    send(3, 30)
    made.run_once()
    assert found() == {0: 0, 1: 10, 3: 30}


def test_gold_reads_silver_and_tells_of_rows_that_are_late_or_from_the_future(bench: MakeBench) -> None:
    made = bench(bronze={}, silver={"expect": {"id > nonsense": "drop"}})
    sql = "SELECT window(at, '10 minutes').start AS start, count(*) AS orders FROM {} GROUP BY window(at, '10 minutes')"
    gold: dict[str, Any] = {
        "name": "windows",
        "sql": sql.format(made.topic.replace("-", "_")),
        "event_time": "at",
        "watermark_ms": 1,
    }
    client, topic = made.client, made.topic
    client.send_many(topic, [order(n) for n in range(30)])
    failed = made.run(once=True)()
    assert "the expectation 'id > nonsense' of [silver] is refused" in failed.message
    settings = {**made.pipeline.model_dump(), "silver": {}, "gold": [gold]}
    made.pipeline = made.pipeline.model_validate(settings)
    client.send(topic, order(30, at="2099-01-01T00:00:00Z"))
    made.run_once()
    client.send_many(topic, [order(0), order(40)])
    last = {stage.name: stage for stage in made.run_once().stages}["gold/windows"]
    assert last.late == 1, "its window was done when the first run had seen all orders"
    client.send(topic, order(41, at="2098-01-01T00:00:00Z"))
    last = {stage.name: stage for stage in made.run_once().stages}["gold/windows"]
    assert (last.future, last.late) == (1, 0)
    windows = [(row["start"].minute, row["orders"]) for row in made.rows("gold", "windows").to_pylist()]
    assert sorted(windows) == [(0, 10), (10, 10), (20, 10)], "the far future has ended no window"
    assert made.rows("silver").num_rows == 34
    offsets = Path(made.pipeline.checkpoint("gold", "windows"), "offsets", "0").read_text()
    assert '"version"' in offsets, "a version of silver, no offset of the topic"
    assert {stage.lag for stage in made.batches if stage.name == "gold/windows"} == {0}, "Spark tells what silver has"

    shutil.rmtree(made.table("silver").path)
    done = rebuilt(made)
    assert done.to_remove == (made.table("gold", "windows").path, made.pipeline.checkpoint("gold", "windows"))
    client.send(topic, order(60))
    failed = made.run(once=True)()
    assert "was removed, or replaced by another, since it was read: remove the checkpoint" in failed.message
    for directory in done.to_remove:
        shutil.rmtree(directory)
    made.run_once()
    windows = [(row["start"].minute, row["orders"]) for row in made.rows("gold", "windows").to_pylist()]
    assert sorted(windows) == [(0, 11), (10, 10), (20, 10), (40, 1)]


def test_a_table_that_cannot_be_remade_says_why(bench: MakeBench) -> None:
    made = bench(bronze={}, silver={})
    with pytest.raises(ConfigError, match=r"there is no table .* to make silver from"):
        rebuild.check_rebuildable(made.pipeline, f"silver/{made.topic}")
    with pytest.raises(ConfigError, match=r"there is no checkpoint .* run it first"):
        rebuilt(made)

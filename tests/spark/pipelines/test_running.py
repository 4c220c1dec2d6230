"""Pipelines from topics to tables on a real Spark and a real broker: every record once, through stops, crashes and new schemas."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ConfigError, InvalidRequest, TopicNotFound
from penstock.spark.pipelines.compact import compact_tables
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.lock import DirectoryLock
from penstock.spark.pipelines.progress import StageProgress
from penstock.spark.pipelines.replay import ReplayRequest, replay
from penstock.spark.pipelines.running import Outcome
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.spark.pipelines.tables.table import VACUUM_KEEP_S_MIN
from tests.spark.pipelines.conftest import ORDER, Bench, order

MakeBench = Callable[..., Bench]
WAIT_S_MAX = 120

GOLD_SQL = """
  SELECT window(at, '10 minutes').start AS start, country, count(*) AS orders, sum(amount) AS amount
  FROM {view} GROUP BY window(at, '10 minutes'), country
"""


def values_of(bench: Bench, topic: str) -> list[bytes]:
    return [record.value or b"" for record in bench.client.records(topic)]


@pytest.mark.timeout(400)
def test_every_record_reaches_its_tables_once_through_crashes_and_a_new_schema(bench: MakeBench) -> None:
    made = bench(bronze={}, silver={})
    results = f"{made.topic}-results"
    gold = {
        "name": "revenue",
        "sql": GOLD_SQL.format(view=made.topic.replace("-", "_")),
        "event_time": "at",
        "watermark_ms": 1,
        "topic": results,
        "key": "country",
    }
    made.pipeline = made.pipeline.model_validate({**made.pipeline.model_dump(), "gold": [gold]})
    client, topic = made.client, made.topic

    # A first run: what is there, some of which does not fit.
    client.send_many(topic, [(b"k", order(n)) for n in range(40)])
    client.send_many(topic, [b"nonsense", json.dumps({"id": "x"}).encode()], partition=1)
    outcome = made.run_once()
    stages = {stage.name: stage for stage in outcome.stages}
    assert stages[f"bronze/{topic}"].rows == 42
    assert (stages[f"silver/{topic}"].rows, stages[f"silver/{topic}"].rejects) == (42, 2)
    assert all(stage.state == "finished" and stage.lag == 0 for stage in outcome.stages)
    assert made.rows("bronze").num_rows == 42
    assert made.ids() == list(range(40))
    [first] = [row for row in made.rows("silver").to_pylist() if row["id"] == 0]
    assert (first["country"], first["amount"], first["key"], first["topic"]) == ("DE", 0.0, b"k", topic)
    letters = client.dead_letters.list(topic)
    rejected = made.rows("rejects").to_pylist()
    assert sorted(row["value"] for row in rejected) == sorted(letter.value for letter in letters)
    assert {row["reason"] for row in rejected} == {letter.reason for letter in letters}
    assert (letters[0].value, letters[0].partition, letters[0].attempts) == (b"nonsense", 1, 1)
    assert letters[0].reason.startswith("not a JSON document")
    assert f"({topic}-v1)" in letters[0].reason

    # The lag and the last report are the broker's to show.
    assert sum(client.lag(topic, made.pipeline.name, partition).lag for partition in (0, 1)) == 0
    [reported] = [each for each in client.pipelines.list() if each.name == made.pipeline.name]
    assert (reported.state, reported.alive) == ("finished", False)
    assert {stage.name: stage.rejects for stage in reported.stages}[f"silver/{topic}"] == 2

    # A second one continues, with a new version of the schema.
    wider = {**ORDER, "properties": {**ORDER["properties"], "note": {"type": "string"}}}  # type: ignore[dict-item]
    client.schemas.register(topic, json.dumps(wider))
    client.send_many(topic, [order(n, note=f"n{n}") for n in range(40, 60)])
    client.send(topic, b"more nonsense")
    made.run_once()
    assert made.ids() == list(range(60))
    assert sorted(made.rows("silver")["note"].drop_null().to_pylist()) == [f"n{n}" for n in range(40, 60)]
    gold_rows = made.rows("gold", "revenue").to_pylist()
    windows = [(row["start"].minute, row["country"], row["orders"]) for row in gold_rows]
    assert sorted(windows) == [(ten, country, 5) for ten in range(0, 50, 10) for country in ("DE", "FR")]
    told = values_of(made, results)
    assert len(told) == 10
    assert json.loads(told[0]).keys() == {"start", "country", "orders", "amount"}

    # A crash before a batch was noted as done: it is done again, and nothing is seen of that.
    made.forget_last_commit("topics")
    made.forget_last_commit("gold", "revenue")
    made.batches.clear()
    made.run_once()
    assert {stage.name for stage in made.batches} >= {f"bronze/{topic}", f"silver/{topic}"}, "it was done again"
    assert (made.rows("bronze").num_rows, made.ids()) == (63, list(range(60)))
    assert len(client.dead_letters.list(topic)) == made.rows("rejects").num_rows == 3
    assert (made.rows("gold", "revenue").num_rows, len(values_of(made, results))) == (10, 10)

    # Fewer files, the same rows, and it continues after them.
    compacted = dict(compact_tables(made.pipeline, file_bytes=1 << 20, keep_s=VACUUM_KEEP_S_MIN))
    assert compacted[f"bronze/{topic}"].files_after == 1
    assert compacted[f"silver/{topic}"].files_after == 1
    assert (made.rows("bronze").num_rows, made.ids()) == (63, list(range(60)))
    client.send(topic, order(60))
    made.run_once()
    assert (made.rows("bronze").num_rows, made.ids()) == (64, list(range(61)))

    # And back into a topic.
    options = made.pipeline.broker_options(None)
    again = ReplayRequest(f"{topic}-again", table=f"bronze/{topic}")
    assert replay(made.spark, made.pipeline, LocalFiles(), options, again) == 64
    assert sorted(values_of(made, f"{topic}-again")) == sorted(values_of(made, topic))
    with pytest.raises(InvalidRequest, match="was done at"):
        replay(made.spark, made.pipeline, LocalFiles(), options, again)
    (Path(made.pipeline.directory) / "_replays" / f"{again.name}.json").unlink()
    replay(made.spark, made.pipeline, LocalFiles(), options, again)
    assert len(values_of(made, f"{topic}-again")) == 64, (
        "a crash after the commit and before it was noted doubles nothing"
    )
    now_ms = time.time_ns() // 1_000_000
    recent = ReplayRequest(f"{topic}-recent", topic=f"{topic}-again", since_ms=now_ms - 3_600_000, id="recent")
    assert replay(made.spark, made.pipeline, LocalFiles(), options, recent) == 64
    future = ReplayRequest(f"{topic}-future", table=f"silver/{topic}", since_ms=now_ms + 3_600_000)
    assert replay(made.spark, made.pipeline, LocalFiles(), options, future) == 0


def test_a_topic_that_appears_under_a_pattern_is_read_from_its_beginning_once_it_has_a_schema(bench: MakeBench) -> None:
    made = bench(schema=None, silver={}, starting="latest")
    first, second = f"{made.topic}.a", f"{made.topic}.b"
    made.client.create_topic(first, 1)
    made.client.schemas.register(first, json.dumps(ORDER))
    made.pipeline = made.pipeline.model_copy(update={"topics": [f"{made.topic}.*"]})
    notes: list[str] = []
    noted, read = threading.Event(), threading.Event()

    def on_note(note: str) -> None:
        notes.append(note)
        noted.set()

    def on_batch(stage: StageProgress) -> None:
        if stage.rows == 5:
            read.set()

    run = made.run(on_batch=on_batch, on_note=on_note, new_topics_every_s=0)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run()))
    thread.start()
    give_up_s = time.monotonic() + WAIT_S_MAX
    while [stage.state for stage in run.progress.stages()] != ["running"] and time.monotonic() < give_up_s:
        noted.wait(0.05)
    made.client.create_topic(second, 1)
    made.client.send_many(second, [order(n) for n in range(5)])
    try:
        assert noted.wait(WAIT_S_MAX)
        assert f"topic {second} waits: topic {second} has no schema: register one" in notes[0]
        made.client.schemas.register(second, json.dumps(ORDER))
        assert read.wait(WAIT_S_MAX)
    finally:
        run.stop()
        thread.join(WAIT_S_MAX)
    assert [(stage.name, stage.rows) for stage in outcomes[0].stages] == [
        (f"silver/{first}", 0),
        (f"silver/{second}", 5),
    ]
    assert made.rows("silver", second).num_rows == 5
    assert (len(notes), notes[-1]) == (2, ""), "it waits no more"


def test_a_version_that_changes_a_type_stops_silver_with_a_way_to_continue(bench: MakeBench) -> None:
    whole = {"type": "object", "properties": {"id": {"type": "integer"}, "amount": {"type": "integer"}}}
    made = bench(schema=whole, silver={})
    made.client.send(made.topic, b'{"id": 1, "amount": 1}')
    made.run_once()
    broken = {**whole, "properties": {"id": {"type": "integer"}, "amount": {"type": "number"}}}
    made.client.schemas.register(made.topic, json.dumps(broken))
    made.client.send_many(made.topic, [b'{"id": 2, "amount": 2}', b'{"id": 3, "amount": 2.5}', b"nonsense"])
    failed = made.run(once=True)()
    assert failed.state == "failed"
    assert (
        f"version 2 of schema {made.topic} makes column amount double, and the table has it as bigint" in failed.message
    )
    assert f'schemas = {{ "{made.topic}" = "{made.topic}:1" }} under [silver]' in failed.message
    assert made.client.dead_letters.list(made.topic) == [], "nothing of the batch was done"

    silver = {"schemas": {made.topic: f"{made.topic}:1"}}
    made.pipeline = made.pipeline.model_validate({**made.pipeline.model_dump(), "silver": silver})
    made.run_once()
    assert made.ids() == [1, 2]
    assert sorted(letter.value for letter in made.client.dead_letters.list(made.topic)) == [
        b"nonsense",
        b'{"id": 3, "amount": 2.5}',
    ]


def test_gold_does_a_batch_again_by_the_version_it_was_begun_with_and_the_next_by_the_newest(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def schema(*countries: str) -> str:
        return json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "country": {"enum": countries}}})

    made = bench(bronze={})
    client, topic = made.client, f"{made.topic}-few"
    client.create_topic(topic, 1)
    client.schemas.register(topic, schema("DE"))
    gold = {"name": "all", "sql": f"SELECT id, country FROM {topic.replace('-', '_')}", "topic": f"{topic}-results"}
    settings = {"topics": [topic], "bronze": None, "gold": [gold]}
    made.pipeline = made.pipeline.model_validate({**made.pipeline.model_dump(), **settings})
    client.send_many(topic, [b'{"id": 1, "country": "DE"}', b'{"id": 2, "country": "FR"}'])

    def fails(*given: object, **settings: object) -> None:
        raise OSError("the disk went away")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLakeTable, "append", fails)
        failed = made.run(once=True)()
    # Spark tells of an error in Python with or without its kind.
    assert failed.message in {"gold/all: OSError: the disk went away", "gold/all: Spark: the disk went away"}
    client.schemas.register(topic, schema("DE", "FR"))
    client.send(topic, b'{"id": 3, "country": "FR"}')
    outcome = made.run_once()
    assert sorted(made.rows("gold", "all")["id"].to_pylist()) == [1, 3], "the second was no order when it was read"
    assert sorted(json.loads(value)["id"] for value in values_of(made, f"{topic}-results")) == [1, 3]
    assert [(stage.name, stage.state, stage.rows, stage.lag) for stage in outcome.stages] == [
        ("gold/all", "finished", 3, 0)
    ]


def test_iceberg_takes_each_batch_once_too(bench: MakeBench) -> None:
    made = bench(format="iceberg", silver={})
    made.client.send_many(made.topic, [order(n) for n in range(10)])
    made.run_once()
    wider = {**ORDER, "properties": {**ORDER["properties"], "note": {"type": "string"}}}  # type: ignore[dict-item]
    made.client.schemas.register(made.topic, json.dumps(wider))
    made.client.send_many(made.topic, [order(n, note="x") for n in range(10, 20)])
    made.run_once()
    assert made.forget_last_commit("topics") == 1
    made.client.send(made.topic, order(20, note="x"))
    made.run_once()
    assert made.ids() == list(range(21))
    assert made.rows("silver")["note"].to_pylist().count("x") == 11
    [(_, compacted)] = compact_tables(made.pipeline, file_bytes=1 << 20, keep_s=VACUUM_KEEP_S_MIN)
    assert compacted.files_after < compacted.files_before
    assert made.ids() == list(range(21))


def test_a_run_is_stopped_through_the_broker_and_the_next_continues(bench: MakeBench) -> None:
    made = bench(bronze={}, batch_records_max=2)
    made.client.send_many(made.topic, [order(n) for n in range(60)])
    seen, outcomes = threading.Event(), []
    run = made.run(on_batch=lambda stage: seen.set())
    thread = threading.Thread(target=lambda: outcomes.append(run()))
    thread.start()
    assert seen.wait(WAIT_S_MAX)
    assert made.client.pipelines.stop(made.pipeline.name)
    thread.join(WAIT_S_MAX)
    assert [outcome.state for outcome in outcomes] == ["stopped"]
    [reported] = [each for each in made.client.pipelines.list() if each.name == made.pipeline.name]
    assert (reported.state, reported.alive) == ("stopped", False)
    assert outcomes[0].stages[0].rows < 60, "it was in the middle of its work"
    made.pipeline = made.pipeline.model_copy(update={"batch_records_max": 1000})
    made.run_once()
    assert made.rows("bronze").num_rows == len(made.places()) == 60


def test_a_checkpoint_and_a_table_that_do_not_belong_together_are_refused(bench: MakeBench) -> None:
    made = bench(bronze={})
    made.client.send(made.topic, order(1))
    made.run_once()
    table, checkpoint = Path(made.table("bronze").path), Path(made.pipeline.checkpoint("topics", made.topic))
    checkpoint.rename(checkpoint.with_name("elsewhere"))
    failed = made.run(once=True)()
    assert failed.state == "failed"
    assert "was not written with checkpoint" in failed.message
    shutil.rmtree(checkpoint)
    checkpoint.with_name("elsewhere").rename(checkpoint)
    shutil.rmtree(table)
    made.client.send(made.topic, order(2))
    failed = made.run(once=True)()
    assert failed.state == "failed"
    assert "is gone, but its checkpoint" in failed.message


def test_a_topic_without_a_schema_is_refused_or_passed_on_undecoded(bench: MakeBench) -> None:
    made = bench(schema=None, silver={})
    made.client.send(made.topic, b"anything")
    with pytest.raises(ConfigError, match="has no schema: register one"):
        made.run(once=True)()
    made.pipeline = made.pipeline.model_validate({**made.pipeline.model_dump(), "silver": {"without_schema": "pass"}})
    made.run_once()
    assert made.rows("silver")["value"].to_pylist() == [b"anything"]


def test_records_that_do_not_fit_can_end_the_run_instead(bench: MakeBench) -> None:
    made = bench(silver={"rejects": "fail"})
    made.client.send(made.topic, b"nonsense", partition=1)
    failed = made.run(once=True)()
    assert failed.state == "failed"
    assert "1 records of topic" in failed.message
    assert "partition 1, offset 0: not a JSON document" in failed.message
    assert made.client.dead_letters.list(made.topic) == []


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM nowhere", "it can use orders_"),
        ("SELEC", "is refused"),
        ("SELECT 1 AS one", "reads none of the pipeline's topics"),
        ("SELECT id FROM {view}", "its sql gives id"),
    ],
)
def test_sql_that_makes_no_sense_is_refused_in_one_line(bench: MakeBench, sql: str, message: str) -> None:
    made = bench(bronze={})
    text = sql.format(view=made.topic.replace("-", "_"))
    gold = {"name": "g", "sql": text, "event_time": "at", "topic": "result", "key": "country"}
    made.pipeline = made.pipeline.model_validate({**made.pipeline.model_dump(), "bronze": None, "gold": [gold]})
    with pytest.raises(ConfigError) as caught:
        made.run(once=True)()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_start_says_why(bench: MakeBench) -> None:
    made = bench(bronze={})
    with DirectoryLock(Path(made.pipeline.directory)), pytest.raises(ConfigError, match="is in use by process"):
        made.run(once=True)()
    with pytest.raises(ConfigError, match="has no stage gold"):
        made.run(once=True, kinds=["gold"])()
    made.pipeline = made.pipeline.model_copy(update={"topics": ["gone-*"]})
    with pytest.raises(TopicNotFound, match="penstock topic create"):
        made.run(once=True)()

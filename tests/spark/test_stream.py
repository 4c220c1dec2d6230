"""The stream reader against a real broker, without Spark: asked as Spark asks it, with the offsets going through JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from penstock.errors import DataLoss, InvalidRequest, TopicNotFound
from penstock.protocols.flymq.sync import Blocks, FlyMQClient
from penstock.testing import RunningBroker
from tests.spark.by_hand import Source, maintain, through_json


@pytest.fixture
def client(running: RunningBroker) -> FlyMQClient:
    return running.connect()


@pytest.fixture
def source(running: RunningBroker) -> Source:
    return Source(running.address, subscribe="orders")


def send(client: FlyMQClient, *values: bytes, topic: str = "orders", partition: int | None = None) -> None:
    client.send_many(topic, list(values), partition)


# -- how a query goes -----------------------------------------------------------------------------------------------------------


def test_a_stream_begins_with_what_comes_and_continues(client: FlyMQClient, source: Source) -> None:
    send(client, b"before")
    stream = source.stream()
    assert stream.values() == [], "the first batch puts on record what the latest offset was"
    assert stream.values() is None
    send(client, b"one")
    send(client, b"two")
    assert stream.values() == [b"one", b"two"]
    assert stream.values() is None
    send(client, b"three")
    assert stream.values() == [b"three"]


def test_a_stream_that_begins_at_the_earliest_record(client: FlyMQClient, source: Source) -> None:
    send(client, b"one", b"two")
    stream = source.stream(startingOffsets="earliest")
    assert stream.values() == [b"one", b"two"]
    assert stream.values() is None


def test_a_stream_that_begins_at_offsets_or_times(running: RunningBroker, client: FlyMQClient, source: Source) -> None:
    send(client, b"zero", b"one")
    running.clock.advance(60)
    send(client, b"two")
    assert source.stream(startingOffsets='{"orders":{"0":1}}').values() == [b"one", b"two"]
    assert source.stream(startingOffsets='{"orders":{"0":-1}}').values() == []
    now_ms = running.clock.now_ms()
    assert source.stream(startingTimestamp=str(now_ms)).values() == [b"two"]
    assert source.stream(startingOffsetsByTimestamp=f'{{"orders":{{"0":{now_ms}}}}}').values() == [b"two"]
    never: dict[str, Any] = {"startingTimestamp": str(now_ms + 1)}
    with pytest.raises(InvalidRequest, match="has no record at or after"):
        source.stream(**never).values()
    assert source.stream(**never, startingOffsetsByTimestampStrategy="latest").values() == []


def test_offsets_are_written_as_kafkas_with_the_ids_of_topics(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders", 2)
    send(client, b"x", partition=1)
    stream = source.stream(startingOffsets="earliest")
    stream.batch()
    topic_id = client.describe_topic("orders").config["id"]
    assert json.dumps(stream.offsets[0], separators=(",", ":")) == (
        '{"__epochs__":{"orders":{"0":0,"1":0}},"__from__":{"orders":{"0":0,"1":0}},'
        f'"__ids__":{{"orders":"{topic_id}"}},"__query__":"{stream.offsets[0]["__query__"]}","orders":{{"0":0,"1":1}}}}'
    )
    send(client, b"y", partition=0)
    stream.batch()
    assert list(stream.offsets[1]) == ["__epochs__", "__ids__", "__query__", "orders"]
    assert stream.offsets[1]["orders"] == {"0": 1, "1": 1}


def test_an_idle_stream_returns_the_very_offset_it_was_given(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders", 12)
    send(client, *[b"x"] * 24)
    stream = source.stream(startingOffsets="earliest")
    stream.batch()
    for _ in range(3):
        assert stream.next_end() == stream.start
        assert json.dumps(stream.next_end()) == json.dumps(stream.start)
    # Whatever order the keys are in: Spark compares texts.
    shuffled = dict(reversed(stream.start.items()))
    assert list(stream.reader.latestOffset(shuffled, ReadAllAvailable())) == list(shuffled)


def test_the_latest_offset_is_reported_without_asking_again(client: FlyMQClient, source: Source) -> None:
    stream = source.stream(startingOffsets="earliest", maxOffsetsPerTrigger="1")
    send(client, b"one", b"two")
    assert stream.reader.reportLatestOffset() is None
    stream.batch()
    reported = stream.reader.reportLatestOffset()
    assert reported is not None
    assert reported["orders"] == {"0": 2}
    assert stream.offsets[0]["orders"] == {"0": 1}


def test_a_stream_waits_for_a_record_instead_of_being_asked_over_and_over(
    client: FlyMQClient, running: RunningBroker
) -> None:
    client.create_topic("orders")
    stream = Source(running.address, subscribe="orders", pollWaitMs="500").stream()
    stream.batch()
    send(client, b"x")
    assert stream.values() == [b"x"], "what is there already is not waited for"
    assert stream.values() is None


def noted_waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long each request was ready to wait for records; none does."""
    waits: list[int] = []
    plan = Blocks.plan

    def noted(blocks: Blocks, *spans: Any, wait_ms: int = 0, **more: Any) -> Any:
        waits.append(wait_ms)
        return plan(blocks, *spans, wait_ms=0, **more)

    monkeypatch.setattr(Blocks, "plan", noted)
    return waits


def test_a_query_with_another_source_that_has_records_does_not_wait_for_this_one(
    client: FlyMQClient, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic("orders")
    stream = source.stream(pollWaitMs="500")
    stream.batch()
    waits = noted_waits(monkeypatch)
    for _ in range(3):
        assert stream.batch() is None
        stream.reader.commit(stream.start)  # Spark does so for each source with every batch, whichever has records
    assert waits == [0, 0, 0]
    assert stream.batch() is None
    assert stream.batch() is None
    assert waits[3:] == [0, 500], "once there are no batches it waits"


@pytest.mark.parametrize("what", ["too few records", "a topic that is gone"])
def test_an_idle_stream_waits_at_the_broker_whatever_there_is_that_makes_no_batch(
    client: FlyMQClient, running: RunningBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    client.create_topic("a")
    client.create_topic("b")
    source = Source(running.address, subscribe="a,b", pollWaitMs="500", minOffsetsPerTrigger="1000")
    stream = source.stream(failOnDataLoss="false")
    stream.batch()
    if what == "too few records":
        send(client, b"one", topic="a")
    else:
        client.delete_topic("b")
        assert stream.values() == []
    waits = noted_waits(monkeypatch)
    for _ in range(3):
        assert stream.batch() is None
    assert waits[1:] == [500, 500], "asking over and over would keep a processor busy"


# -- a batch that is done again ---------------------------------------------------------------------------------------------------


def test_the_first_batch_is_the_same_after_a_crash_whatever_has_come_since(client: FlyMQClient, source: Source) -> None:
    send(client, b"before")
    crashed = source.stream()
    end = crashed.next_end()
    send(client, b"since")
    again = source.stream()
    assert through_json(again.reader.initialOffset()) == crashed.start
    assert again.replay(crashed.start, end) == []
    again.offsets.append(end)
    assert again.values() == [b"since"], "nothing is lost between the latest offset and the second batch"


def test_the_first_batch_begins_at_one_place_however_often_spark_asks(client: FlyMQClient, source: Source) -> None:
    send(client, b"before")
    stream = source.stream()
    stream.next_end()
    send(client, b"after the query began")
    assert stream.values() == [b"after the query began"]


def test_any_batch_is_the_same_when_it_is_done_again(client: FlyMQClient, source: Source) -> None:
    stream = source.stream(startingOffsets="earliest", maxOffsetsPerTrigger="3")
    send(client, *[b"%d" % at for at in range(8)])
    batches = [stream.batch() for _ in range(3)]
    send(client, b"more")
    again = source.stream(startingOffsets="latest")
    starts = [stream.reader.initialOffset(), *stream.offsets]
    for batch, start, end in zip(batches, starts, stream.offsets, strict=False):
        assert again.replay(start, end) == batch


def test_a_broker_that_restarts_is_no_more_than_a_pause(
    running: RunningBroker, client: FlyMQClient, source: Source
) -> None:
    send(client, b"one")
    stream = source.stream(startingOffsets="earliest")
    start, end = stream.start, stream.next_end()
    running.restart()
    assert [row["value"] for row in stream.replay(start, end)] == [b"one"]
    stream.offsets.append(end)
    send(client, b"two")
    running.restart()
    assert stream.values() == [b"two"]


# -- how much at once -------------------------------------------------------------------------------------------------------------


def test_rows_are_limited_and_shared_out_by_what_waits(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders", 3)
    for partition, count in enumerate((90, 9, 0)):
        if count:
            send(client, *[b"x"] * count, partition=partition)
    stream = source.stream(startingOffsets="earliest", maxOffsetsPerTrigger="11")
    stream.batch()
    assert stream.offsets[0]["orders"] == {"0": 10, "1": 1, "2": 0}
    sizes = [len(stream.batch() or []) for _ in range(12)]
    assert sum(sizes) + 11 == 99
    assert max(sizes) <= 12
    assert stream.batch() is None


def test_one_row_at_a_time_starves_nobody(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders", 2)
    send(client, b"a", b"b", partition=0)
    send(client, b"c", partition=1)
    stream = source.stream(startingOffsets="earliest", maxOffsetsPerTrigger="1")
    assert stream.values() == [b"a", b"c"]
    assert stream.values() == [b"b"]


def test_bytes_are_limited(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders", 2)
    for _ in range(40):
        client.send_many("orders", [b"x" * 10_000] * 10, 0)
    send(client, *[b"y"] * 10, partition=1)
    stream = source.stream(startingOffsets="earliest", maxBytesPerTrigger="1 MB")
    sizes: list[int] = []
    while (found := stream.batch()) is not None:
        sizes.append(sum(len(row["value"]) for row in found))
    assert sum(sizes) == 4_000_010
    assert max(sizes) <= 1_300_000
    assert len(sizes) >= 4


def test_bytes_and_rows_may_both_be_limited(client: FlyMQClient, source: Source) -> None:
    for _ in range(20):
        client.send_many("orders", [b"x" * 1000] * 100)
    stream = source.stream(startingOffsets="earliest", maxBytesPerTrigger="100 KB", maxOffsetsPerTrigger="5")
    assert len(stream.batch() or []) == 5
    stream = source.stream(startingOffsets="earliest", maxBytesPerTrigger="500 KB", maxOffsetsPerTrigger="1500")
    assert 300 <= len(stream.batch() or []) <= 700


def test_a_block_larger_than_the_limit_goes_through_alone(client: FlyMQClient, source: Source) -> None:
    client.send("orders", b"a" * 300_000)
    client.send("orders", b"b" * 300_000)
    stream = source.stream(startingOffsets="earliest", maxBytesPerTrigger="1000")
    assert [len(stream.batch() or []) for _ in range(2)] == [1, 1]


def test_the_default_limit_is_the_option(source: Source) -> None:
    assert isinstance(source.stream().reader.getDefaultReadLimit(), ReadAllAvailable)
    assert source.stream(maxOffsetsPerTrigger="7").reader.getDefaultReadLimit() == ReadMaxRows(7)
    assert source.stream(maxBytesPerTrigger="7 KB").reader.getDefaultReadLimit() == ReadMaxBytes(7000)


def test_a_trigger_that_wants_all_gets_all(client: FlyMQClient, source: Source) -> None:
    send(client, *[b"x"] * 10)
    stream = source.stream(startingOffsets="earliest", maxOffsetsPerTrigger="3")
    assert len(stream.batch(ReadAllAvailable()) or []) == 10


def test_few_records_wait_for_more_but_not_forever(
    client: FlyMQClient, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    client.create_topic("orders")
    stream = source.stream(minOffsetsPerTrigger="3", maxTriggerDelay="10s", maxOffsetsPerTrigger="5")
    assert stream.values() == []
    send(client, b"one", b"two")
    assert stream.values() is None
    send(client, b"three")
    assert stream.values() == [b"one", b"two", b"three"]
    send(client, b"four")
    assert stream.values() is None
    now_s += 9.9
    assert stream.values() is None
    now_s += 0.1
    assert stream.values() == [b"four"]


def test_available_now_ends_where_the_topics_ended_when_it_began(client: FlyMQClient, source: Source) -> None:
    send(client, *[b"%d" % at for at in range(5)])
    stream = source.stream(startingOffsets="earliest", maxOffsetsPerTrigger="2", minOffsetsPerTrigger="2")
    stream.reader.prepareForTriggerAvailableNow()
    send(client, b"later")
    found: list[bytes | None] = []
    while (values := stream.values()) is not None:
        found += values
    assert found == [b"%d" % at for at in range(5)]
    assert len(stream.offsets) == 3
    resumed = source.stream()
    resumed.offsets = stream.offsets
    resumed.reader.prepareForTriggerAvailableNow()
    assert resumed.values() == [b"later"]
    assert resumed.values() is None


def test_available_now_over_an_empty_topic_ends(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders")
    stream = source.stream(startingOffsets="earliest")
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.values() == []
    assert stream.values() is None


# -- topics come and go -----------------------------------------------------------------------------------------------------------


def test_topics_that_come_to_match_a_pattern_are_read_from_their_start(
    running: RunningBroker, client: FlyMQClient
) -> None:
    client.send("orders-eu", b"one")
    stream = Source(running.address, subscribePattern="orders-.*").stream()
    assert stream.values() == []
    client.create_topic("orders-empty", 2)
    assert stream.values() == [], "it is on record from now on"
    assert stream.values() is None
    client.send("orders-us", b"two")
    client.send("payments", b"none of ours")
    assert stream.values() == [b"two"]
    client.send("orders-empty", b"three", partition=1)
    client.send("orders-eu", b"four")
    assert stream.values() == [b"three", b"four"]
    assert stream.offsets[-1]["orders-empty"] == {"0": 0, "1": 1}
    client.send("orders-empty", b"five", partition=0)
    assert stream.values() == [b"five"]
    assert stream.values() is None


def test_where_a_new_topic_begins_is_on_record_with_the_batch_that_first_sees_it(
    running: RunningBroker, client: FlyMQClient
) -> None:
    client.send("orders-eu", b"one")
    stream = Source(running.address, subscribePattern="orders-.*").stream()
    stream.batch()
    client.create_topic("orders-us", 2)
    client.send("orders-us", b"two", partition=1)
    assert stream.values() == [b"two"]
    assert stream.offsets[-1]["orders-us"] == {"0": 0, "1": 1}
    assert stream.offsets[-1]["__from__"] == {"orders-us": {"0": 0, "1": 0}}
    client.send("orders-us", b"three", partition=0)
    assert stream.values() == [b"three"]
    assert "__from__" not in stream.offsets[-1]


@pytest.mark.parametrize("seen", ["with records", "while it was empty"])
def test_retention_in_a_topic_that_a_batch_was_the_first_to_see_is_a_loss_when_it_is_done_again(
    running: RunningBroker, client: FlyMQClient, seen: str
) -> None:
    source = Source(running.address, subscribePattern="orders.*")
    stream = source.stream()
    stream.batch()
    client.create_topic("orders", segment_bytes=1 << 16, retention_ms=60_000)
    if seen == "while it was empty":
        assert stream.values() == []
    send(client, *[b"x" * 1000] * 150)
    start, end = stream.start, stream.next_end()
    first = fill_and_retain(running, client)
    assert first > 0
    again = source.stream()
    with pytest.raises(
        DataLoss, match=f"retention or truncation has removed offsets 0 to {first - 1} of orders-0 before they"
    ):
        again.replay(start, end)
    assert source.stream(failOnDataLoss="false").replay(start, end) == []


def test_a_batch_of_a_checkpoint_from_before_starts_were_on_record_is_done_again(
    running: RunningBroker, client: FlyMQClient
) -> None:
    client.send("orders-eu", b"one")
    stream = Source(running.address, subscribePattern="orders-.*").stream()
    stream.batch()
    client.send("orders-us", b"two")
    start, end = stream.start, stream.next_end()
    del end["__from__"]
    assert [row["value"] for row in stream.replay(start, end)] == [b"two"]
    stream.offsets.append(end)
    client.send("orders-us", b"three")
    assert stream.values() == [b"three"]


def test_available_now_leaves_topics_to_the_next_run_that_came_after_it_began(
    running: RunningBroker, client: FlyMQClient
) -> None:
    source = Source(running.address, subscribePattern="orders-.*")
    client.send("orders-eu", b"one")
    stream = source.stream(startingOffsets="earliest")
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.values() == [b"one"]
    client.send("orders-us", b"two")
    assert stream.values() is None
    resumed = source.stream()
    resumed.offsets = stream.offsets
    resumed.reader.prepareForTriggerAvailableNow()
    assert resumed.values() == [b"two"]


def test_a_topic_that_is_no_longer_subscribed_to_is_left_out_and_no_loss(
    running: RunningBroker, client: FlyMQClient
) -> None:
    client.send("a", b"one")
    client.send("b", b"two")
    both = Source(running.address, subscribe="a,b").stream(startingOffsets="earliest")
    assert both.values() == [b"one", b"two"]
    one = Source(running.address, subscribe="b").stream()
    assert [row["value"] for row in one.replay(both.reader.initialOffset(), both.offsets[0])] == [b"one", b"two"]
    one.offsets = both.offsets
    client.send("b", b"three")
    assert one.values() == [b"three"]
    assert list(one.offsets[-1]) == ["__epochs__", "__ids__", "__query__", "b"]


def test_a_pattern_that_matches_nothing_yet(running: RunningBroker, client: FlyMQClient) -> None:
    stream = Source(running.address, subscribePattern="orders-.*").stream(startingOffsets="earliest")
    assert stream.values() == []
    client.send("orders-eu", b"one")
    assert stream.values() == [b"one"]


def test_a_topic_that_is_not_there_is_named(source: Source) -> None:
    with pytest.raises(TopicNotFound, match="topic not found: orders"):
        source.stream().batch()


def test_a_topic_that_was_created_again_is_another_topic(client: FlyMQClient, source: Source) -> None:
    send(client, b"old", b"older")
    strict = source.stream(startingOffsets="earliest")
    lenient = source.stream(startingOffsets="earliest", failOnDataLoss="false")
    strict.batch()
    lenient.batch()
    client.delete_topic("orders")
    send(client, b"new")
    with pytest.raises(DataLoss, match="topic orders was deleted and created again"):
        strict.batch()
    assert lenient.values() == [b"new"]
    assert lenient.values() is None


def test_a_topic_that_was_created_again_between_a_batch_and_its_replay(client: FlyMQClient, source: Source) -> None:
    send(client, b"old")
    stream = source.stream(startingOffsets="earliest")
    start, end = stream.start, stream.next_end()
    client.delete_topic("orders")
    send(client, b"new")
    with pytest.raises(DataLoss, match="topic orders was deleted before all of it was read"):
        stream.replay(start, end)
    assert source.stream(failOnDataLoss="false").replay(start, end) == []


def test_a_topic_that_was_deleted_is_a_loss_or_left_out(running: RunningBroker, client: FlyMQClient) -> None:
    client.send("a", b"one")
    client.send("b", b"two")
    source = Source(running.address, subscribe="a,b")
    strict = source.stream(startingOffsets="earliest")
    lenient = source.stream(startingOffsets="earliest", failOnDataLoss="false")
    strict.batch()
    lenient.batch()
    client.delete_topic("a")
    client.send("b", b"three")
    with pytest.raises(DataLoss, match="topic a was deleted before all of it was read; set the option failOnDataLoss"):
        strict.batch()
    assert lenient.values() == [b"three"]
    assert lenient.values() is None


def fill_and_retain(running: RunningBroker, client: FlyMQClient) -> int:
    for _ in range(40):
        client.send_many("orders", [b"x" * 1000] * 5)
    running.clock.advance(3600)
    maintain(running)
    return client.describe_topic("orders").partitions[0].start_offset


def test_retention_that_overtakes_a_stream_is_a_loss(
    running: RunningBroker, client: FlyMQClient, source: Source
) -> None:
    client.create_topic("orders", segment_bytes=1 << 16, retention_ms=60_000)
    send(client, b"one")
    strict = source.stream(startingOffsets="earliest")
    lenient = source.stream(startingOffsets="earliest", failOnDataLoss="false")
    strict.batch()
    lenient.batch()
    start = fill_and_retain(running, client)
    with pytest.raises(DataLoss, match=f"retention or truncation has removed offsets 1 to {start - 1} of orders-0"):
        strict.batch()
    send(client, b"next")
    assert lenient.values() == [b"next"]
    assert lenient.batch() is None


def test_retention_that_overtakes_a_batch_between_planning_and_reading(
    running: RunningBroker, client: FlyMQClient, source: Source
) -> None:
    client.create_topic("orders", segment_bytes=1 << 16, retention_ms=60_000)
    send(client, *[b"x" * 1000] * 150)
    stream = source.stream(startingOffsets="earliest")
    start, end = stream.start, stream.next_end()
    tasks = stream.reader.partitions(start, end)
    fill_and_retain(running, client)
    with pytest.raises(DataLoss, match="retention or truncation has removed"):
        [list(stream.reader.read(task)) for task in tasks]
    with pytest.raises(DataLoss, match="retention or truncation has removed"):
        stream.replay(start, end)


def test_a_checkpoint_of_another_source_is_refused(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders")
    with pytest.raises(InvalidRequest, match="the checkpoint belongs to another source"):
        source.stream().reader.latestOffset({"logOffset": 3}, ReadAllAvailable())

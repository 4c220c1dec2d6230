"""What requests do, and where the two dialects differ in it, over a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.protocols.rustlog.codec import binary_client
from penstock.protocols.rustlog.codec.messages import (
    CreateTopic,
    DescribePartition,
    Fetch,
    Metrics,
    OffsetCommit,
    OffsetFetch,
)
from penstock.protocols.rustlog.wire import PAYLOAD_BYTES_MAX
from penstock.testing import RunningBroker
from tests.protocols.rustlog.wire_client import WireClient


def produce(wire: WireClient, values: list[bytes], topic: str = "orders", partition: int = 0) -> bytes:
    return wire.ask(binary_client.encode_produce(topic, partition, values))[4:]


def fetch(
    wire: WireClient,
    offset: int = 0,
    max_bytes: int = 1 << 20,
    group: str = "",
    topic: str = "orders",
    partition: int = 0,
) -> tuple[list[bytes], int]:
    """Records and next offset, in binary."""
    reply = wire.ask(binary_client.encode_call(Fetch(topic, partition, offset, max_bytes, group)))
    assert reply[4] == 2, reply
    fetched = binary_client.decode_fetched(reply[4:])
    return list(fetched.values), fetched.next_offset


def fetch_json(wire: WireClient, offset: int = 0, max_bytes: int = 1 << 20, group: str | None = None) -> dict[str, Any]:
    fields = {"topic": "orders", "partition": 0, "offset": offset, "max_bytes": max_bytes, "group_id": group}
    reply: dict[str, Any] = json.loads(wire.ask_json(json.dumps({"Fetch": fields})))
    return reply


def offsets_in(reply: dict[str, Any]) -> list[int]:
    return [record["offset"] for record in reply["Fetch"]["records"]]


def failure(reply: bytes) -> tuple[int, str]:
    assert reply[4] == 0xFE, reply
    failed = binary_client.decode_error(reply[4:])
    return failed.code, failed.message


@pytest.fixture
def orders(broker: RunningBroker, wire: WireClient) -> WireClient:
    """A topic with ten records of one byte, their own offset."""
    wire.ask(binary_client.encode_call(CreateTopic("orders", 2)))
    produce(wire, [bytes((number,)) for number in range(10)])
    return wire


# --- producing ---


def test_no_records_are_no_write(orders: WireClient) -> None:
    assert binary_client.decode_produced(produce(orders, [])).offsets == range(0)
    assert orders.ask_json('{"Produce":{"topic":"orders","partition":0,"records":[]}}') == '{"Produce":{"offsets":[]}}'
    assert fetch(orders, 10) == ([], 10)
    assert failure(orders.ask(binary_client.encode_produce("orders", 2, [])))[0] == 10
    assert failure(orders.ask(binary_client.encode_produce("none", 0, [])))[0] == 10


def test_requests_that_are_pipelined_are_answered_in_order(orders: WireClient) -> None:
    requests = [
        binary_client.encode_produce("orders", 1, [b"a", b"b"]),
        binary_client.encode_produce("orders", 1, [b"c"]),
        binary_client.encode_produce("none", 1, [b"d"]),
        binary_client.encode_produce("orders", 1, [b"e"]),
        binary_client.encode_call(Fetch("orders", 1, 0, 1000, "")),
        binary_client.encode_call(OffsetCommit("orders", 1, "g", 4)),
        binary_client.encode_call(OffsetFetch("orders", 1, "g")),
    ]
    orders.say(b"".join(requests))
    replies = [orders.hear()[4:] for _ in requests]
    assert [list(binary_client.decode_produced(replies[i]).offsets) for i in (0, 1, 3)] == [[0, 1], [2], [3]]
    assert replies[2][0] == 0xFE
    assert binary_client.decode_fetched(replies[4]).values == [b"a", b"b", b"c", b"e"]
    assert binary_client.decode_committed_offset(replies[6]) == 4


def test_of_frames_that_were_joined_only_the_one_at_fault_fails() -> None:
    with (
        RunningBroker(limits={"record_bytes_max": 100}, topics=[{"name": "orders"}]) as broker,
        WireClient(broker.addresses["rustlog"]) as wire,
    ):
        frames = [
            binary_client.encode_produce("orders", 0, values)
            for values in ([b"x" * 60, b"y" * 60], [b"z" * 101], [b"w"])
        ]
        wire.say(b"".join(frames))
        first, second, third = (wire.hear() for _ in frames)
        assert list(binary_client.decode_produced(first[4:]).offsets) == [0, 1]
        code, text = failure(second)
        assert (code, text.startswith("Failed to write record: ")) == (500, True)
        assert list(binary_client.decode_produced(third[4:]).offsets) == [2]


def test_internal_topics_are_out_of_reach(wire: WireClient) -> None:
    assert failure(wire.ask(binary_client.encode_produce("__groups", 0, [b"x"])))[0] == 500
    assert failure(wire.ask(binary_client.encode_call(Fetch("__groups", 0, 0, 10, ""))))[0] == 4
    assert failure(wire.ask(binary_client.encode_call(CreateTopic("__mine", 1))))[0] == 500


@pytest.mark.parametrize("name", ["", "a//b", "x" * 250, "a\nb"])
def test_names_that_the_broker_refuses_are_refused_with_its_reason(wire: WireClient, name: str) -> None:
    code, text = failure(wire.ask(binary_client.encode_call(CreateTopic(name, 1))))
    assert (code, text.startswith("Topic creation failed: topic name ")) == (500, True)


# --- fetching ---


def test_binary_counts_twelve_bytes_a_record_and_json_none(orders: WireClient) -> None:
    for max_bytes, count in ((0, 1), (1, 1), (13, 1), (25, 1), (26, 2), (39, 3), (1 << 32, 10)):
        assert len(fetch(orders, 0, min(max_bytes, (1 << 32) - 1))[0]) == count
    for max_bytes, count in ((0, 1), (1, 1), (2, 2), (9, 9), (1 << 63, 10)):
        assert len(offsets_in(fetch_json(orders, 0, max_bytes))) == count


def test_beyond_the_end_binary_repeats_the_offset_and_json_names_the_end(orders: WireClient) -> None:
    for offset in (10, 11, (1 << 64) - 1):
        assert fetch(orders, offset) == ([], offset)
        assert fetch_json(orders, offset) == {"Fetch": {"records": [], "next_offset": 10}}


def test_a_group_continues_where_it_has_committed_unless_more_is_asked_for(orders: WireClient) -> None:
    assert fetch(orders, 3, group="g") == ([bytes((n,)) for n in range(3, 10)], 10)
    orders.ask(binary_client.encode_call(OffsetCommit("orders", 0, "g", 6)))
    assert fetch(orders, 0, group="g") == ([bytes((n,)) for n in range(6, 10)], 10)
    assert fetch(orders, 8, group="g") == ([bytes((n,)) for n in range(8, 10)], 10)
    assert offsets_in(fetch_json(orders, 0, group="g")) == [6, 7, 8, 9]
    assert offsets_in(fetch_json(orders, 8, group="g")) == [8, 9]


def test_a_group_may_wait_for_its_topic_in_binary_only(wire: WireClient) -> None:
    assert fetch(wire, 5, group="g") == ([], 0)
    assert fetch_json(wire, 5, group="g") == {"Error": {"message": "partition not found: topic=orders, partition=0"}}
    wire.ask(binary_client.encode_call(OffsetCommit("orders", 0, "g", 42)))
    assert failure(wire.ask(binary_client.encode_call(Fetch("orders", 0, 0, 10, "g"))))[0] == 10


def test_expired_records_are_passed_over(broker: RunningBroker, wire: WireClient) -> None:
    flymq = broker.connect()
    flymq.create_topic("orders")
    for value, ttl_s in ((b"0", 1.0), (b"1", None), (b"2", 1.0), (b"3", None)):
        flymq.send("orders", value, ttl_s=ttl_s)
    flymq.send("orders", b"4", ttl_s=1.0)
    assert fetch(wire)[0] == [b"0", b"1", b"2", b"3", b"4"]
    broker.clock.advance(2)
    # Binary records have no offsets of their own, so a batch ends at a gap.
    assert fetch(wire, 0) == ([b"1"], 2)
    assert fetch(wire, 2) == ([b"3"], 4)
    assert fetch(wire, 4) == ([], 5)
    reply = fetch_json(wire)
    assert (offsets_in(reply), reply["Fetch"]["next_offset"]) == ([1, 3], 4)
    assert fetch_json(wire, 4) == {"Fetch": {"records": [], "next_offset": 5}}


def test_reading_may_begin_anywhere_in_a_block(broker: RunningBroker, wire: WireClient) -> None:
    broker.connect().create_topic("orders")
    produce(wire, [bytes((number,)) for number in range(200)])
    assert [len(fetch(wire, offset)[0]) for offset in (0, 63, 64, 199)] == [200, 137, 136, 1]


def test_what_retention_has_taken_is_out_of_range_in_json_and_nothing_in_binary(broker: RunningBroker) -> None:
    flymq = broker.connect()
    flymq.create_topic("orders", segment_bytes=65536, retention_bytes=65536)
    with WireClient(broker.addresses["rustlog"]) as wire:
        for _ in range(4):
            produce(wire, [b"x" * 1000] * 70)
        partition = broker.server.engine.partition("orders", 0)
        start = broker._thread.run(partition.delete_before(150))  # type: ignore[union-attr]  # the log lives on that loop
        assert start > 0
        reply = fetch_json(wire, 0)
        assert reply["Error"]["message"] == (
            f"offset out of range: topic=orders, partition=0, offset=0: the first record left is {start}"
        )
        assert fetch(wire, 0) == ([], 0)
        assert len(fetch(wire, start)[0]) == 280 - start
        described = wire.ask_json('{"DescribePartition":{"topic":"orders","partition":0}}')
        assert json.loads(described)["DescribePartition"] == {
            "topic": "orders",
            "partition": 0,
            "high_watermark": 280,
            "start_offset": start,
        }


def test_no_reply_outgrows_a_frame(orders: WireClient) -> None:
    big = [bytes((200 + number,)) * 3_000_000 for number in range(4)]
    for value in big:
        produce(orders, [value], partition=1)
    first = orders.ask(binary_client.encode_call(Fetch("orders", 1, 0, 0xFFFF_FFFF, "")))
    assert len(first) <= 4 + PAYLOAD_BYTES_MAX
    fetched = binary_client.decode_fetched(first[4:])
    assert (fetched.values, fetched.next_offset) == (big[:3], 3)
    assert fetch(orders, 3, partition=1) == (big[3:], 4)
    text = orders.ask_json('{"Fetch":{"topic":"orders","partition":1,"offset":0,"max_bytes":1}}')
    assert "does not fit into a reply of 10485760 bytes: go on at 1" in text


def test_json_replies_are_cut_by_what_they_take_as_text(orders: WireClient) -> None:
    produce(orders, [b"\xff" * 100_000] * 40, partition=1)
    text = orders.ask_json('{"Fetch":{"topic":"orders","partition":1,"offset":0,"max_bytes":10000000}}')
    assert len(text) <= PAYLOAD_BYTES_MAX
    records = json.loads(text)["Fetch"]["records"]
    assert [record["offset"] for record in records] == list(range(26))
    assert all(record["payload"] == [255] * 100_000 for record in records)


def test_a_record_that_fits_into_no_binary_reply_is_an_error() -> None:
    with (
        RunningBroker(topics=[{"name": "orders"}]) as broker,
        WireClient(broker.addresses["rustlog"]) as wire,
    ):
        flymq = broker.connect()
        flymq.send("orders", b"x" * PAYLOAD_BYTES_MAX)
        flymq.send("orders", b"y" * (PAYLOAD_BYTES_MAX - 17))
        code, text = failure(wire.ask(binary_client.encode_call(Fetch("orders", 0, 0, 1, ""))))
        assert (code, text.startswith("Fetch failed: the record at offset 0 does not fit")) == (4, True)
        values, following = fetch(wire, 1)
        assert (len(values[0]), following) == (PAYLOAD_BYTES_MAX - 17, 2)


def test_records_of_other_protocols_are_read_with_their_values(broker: RunningBroker, wire: WireClient) -> None:
    flymq = broker.connect()
    flymq.create_topic("orders")
    flymq.send_many("orders", [(b"key", b"value"), (None, b"")])
    assert fetch(wire) == ([b"value", b""], 2)


# --- groups ---


def test_binary_commits_for_topics_that_do_not_exist_are_remembered(wire: WireClient) -> None:
    assert wire.ask(binary_client.encode_call(OffsetCommit("nowhere", 3, "g", 42)))[4:] == b"\x03\x01"
    assert (
        binary_client.decode_committed_offset(wire.ask(binary_client.encode_call(OffsetFetch("nowhere", 3, "g")))[4:])
        == 42
    )


@pytest.mark.parametrize(
    "commit",
    [OffsetCommit("orders", 2, "g", 1), OffsetCommit("orders", 0, "", 1), OffsetCommit("orders", 0, "g", 1 << 63)],
)
def test_commits_that_make_no_sense_are_refused(orders: WireClient, commit: OffsetCommit) -> None:
    code, text = failure(orders.ask(binary_client.encode_call(commit)))
    assert (code, text.startswith("Offset commit failed: ")) == (5, True)


def test_a_commit_may_go_back(orders: WireClient) -> None:
    for offset in (7, 3):
        orders.ask(binary_client.encode_call(OffsetCommit("orders", 0, "g", offset)))
    assert fetch(orders, 0, group="g")[0][0] == b"\x03"


def test_what_is_committed_here_another_protocol_reads_and_the_other_way(
    orders: WireClient, broker: RunningBroker
) -> None:
    flymq = broker.connect()
    orders.ask(binary_client.encode_call(OffsetCommit("orders", 0, "g", 4)))
    assert flymq.committed("orders", "g", 0) == 4
    flymq.commit("orders", "g", 0, 9)
    assert (
        orders.ask_json('{"OffsetFetch":{"topic":"orders","partition":0,"group_id":"g"}}')
        == '{"OffsetFetch":{"offset":9}}'
    )


# --- the broker ---


def test_metrics_have_every_name_that_deployed_brokers_have(orders: WireClient) -> None:
    fetch(orders)
    orders.ask(binary_client.encode_call(OffsetCommit("orders", 0, 'g"\\', 4)))
    reply = orders.ask(binary_client.encode_call(Metrics()))
    lines = binary_client.decode_metrics(reply[4:]).splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert (len(names), len(set(names))) == (23, 23)
    assert "messages_produced_total 10" in lines
    assert "messages_fetched_total 10" in lines
    assert "bytes_in_total 10" in lines
    assert "active_connections 1" in lines
    assert 'consumer_lag{topic="orders",partition="0",group="g\\"\\\\"} 6' in lines
    assert any(line.startswith("produce_latency_ns_p99 ") for line in lines)


def test_requests_are_counted_by_name(orders: WireClient, broker: RunningBroker) -> None:
    orders.ask(binary_client.encode_call(DescribePartition("orders", 9)))
    orders.ask(b"\x00\x00\x00\x01\x33")
    stats = broker.server.sessions["rustlog"]
    assert stats.requests_by_name() == {"produce": 1, "create_topic": 1, "describe_partition": 1, "unknown": 1}
    assert (stats.errors, stats.internal_errors) == (2, 0)

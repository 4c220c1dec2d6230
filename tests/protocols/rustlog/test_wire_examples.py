"""Requests and replies byte for byte, against a fresh broker: those of deployed clients and those of the contract."""

from __future__ import annotations

import pytest

from penstock.testing import RunningBroker
from tests.protocols.rustlog.wire_client import WireClient

CREATE_ORDERS = "00 00 00 0d 05 00 06 6f 72 64 65 72 73 00 00 00 02"
PRODUCE_TWO = (
    "00 00 00 22 01 00 06 6f 72 64 65 72 73 00 00 00 00 00 00 00 0200 00 00 05 62 79 74 65 73 00 00 00 04 6d 6f 72 65"
)
FETCH_ONE = "00 00 00 1b 02 00 00 00 06 6f 72 64 65 72 73 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01"
FETCH_BEYOND = "00 00 00 1b 02 00 00 00 06 6f 72 64 65 72 73 00 00 00 00 00 00 00 00 00 00 01 f4 00 00 04 00"
COMMIT_TWO = "00 00 00 18 03 00 01 67 00 06 6f 72 64 65 72 73 00 00 00 00 00 00 00 00 00 00 00 02"
OFFSET_OF_G = "00 00 00 10 04 00 01 67 00 06 6f 72 64 65 72 73 00 00 00 00"


def error(code: int, message: str) -> bytes:
    text = message.encode()
    payload = b"\xfe" + code.to_bytes(2, "big") + len(text).to_bytes(2, "big") + text
    return len(payload).to_bytes(4, "big") + payload


def framed(text: str) -> bytes:
    return len(text).to_bytes(4, "big") + text.encode()


class Spoken:
    """Requests and replies in hexadecimal."""

    def __init__(self, wire: WireClient) -> None:
        self.wire = wire

    def __call__(self, request: str) -> bytes:
        return self.wire.ask(bytes.fromhex(request))


@pytest.fixture
def spoken(wire: WireClient) -> Spoken:
    return Spoken(wire)


# --- binary ---


def test_ping(spoken: Spoken) -> None:
    assert spoken("00 00 00 01 ff") == bytes.fromhex("00 00 00 01 ff")


def test_create_topic_and_again(spoken: Spoken) -> None:
    assert spoken(CREATE_ORDERS) == bytes.fromhex("00 00 00 02 05 01")
    assert spoken(CREATE_ORDERS) == bytes.fromhex(
        "00 00 00 22 fe 00 0b 00 1d 54 6f 70 69 63 20 27 6f 72 64 65 72 73 27 20 61 6c 72 65 61 64 79 20 65 78 69 73 74 73"
    )


def test_produce_then_fetch_then_beyond_the_end(spoken: Spoken) -> None:
    spoken(CREATE_ORDERS)
    assert spoken(PRODUCE_TWO) == bytes.fromhex("00 00 00 0d 01 00 00 00 00 00 00 00 00 00 00 00 02")
    third = spoken("00 00 00 1a 01 00 06 6f 72 64 65 72 73 00 00 00 00 00 00 00 01 00 00 00 05 74 68 69 72 64")
    assert third == bytes.fromhex("00 00 00 0d 01 00 00 00 00 00 00 00 02 00 00 00 01")
    assert spoken(FETCH_ONE) == bytes.fromhex(
        "00 00 00 16 02 00 00 00 01 00 00 00 05 62 79 74 65 73 00 00 00 00 00 00 00 01"
    )
    assert spoken(FETCH_BEYOND) == bytes.fromhex("00 00 00 0d 02 00 00 00 00 00 00 00 00 00 00 01 f4")


def test_commit_an_offset_and_ask_for_it(spoken: Spoken) -> None:
    spoken(CREATE_ORDERS)
    assert spoken(OFFSET_OF_G) == bytes.fromhex("00 00 00 02 04 00")
    assert spoken(COMMIT_TWO) == bytes.fromhex("00 00 00 02 03 01")
    assert spoken(OFFSET_OF_G) == bytes.fromhex("00 00 00 0a 04 01 00 00 00 00 00 00 00 02")


def test_list_topics_of_an_empty_broker_and_of_one_with_two(spoken: Spoken) -> None:
    assert spoken("00 00 00 01 06") == bytes.fromhex("00 00 00 05 06 00 00 00 00")
    spoken(CREATE_ORDERS)
    spoken("00 00 00 08 05 00 01 61 00 00 00 01")
    assert spoken("00 00 00 01 06") == bytes.fromhex(
        "00 00 00 18 06 00 00 00 02 00 01 61 00 00 00 01 00 06 6f 72 64 65 72 73 00 00 00 02"
    )


def test_describe_a_partition_and_a_topic(spoken: Spoken) -> None:
    spoken(CREATE_ORDERS)
    assert spoken("00 00 00 0d 08 00 06 6f 72 64 65 72 73 00 00 00 01") == bytes.fromhex(
        "00 00 00 15 08 00 06 6f 72 64 65 72 73 00 00 00 01 00 00 00 00 00 00 00 00"
    )
    assert spoken("00 00 00 09 07 00 06 6f 72 64 65 72 73") == bytes.fromhex(
        "00 00 00 29 07 00 06 6f 72 64 65 72 73 00 00 00 02 00 00 00 02"
        "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00"
    )
    spoken(PRODUCE_TWO)
    # Deployed brokers say 0 whatever was written; this one says what is there.
    assert spoken("00 00 00 0d 08 00 06 6f 72 64 65 72 73 00 00 00 00")[-8:] == (2).to_bytes(8, "big")


def test_produce_to_a_topic_that_is_missing(spoken: Spoken) -> None:
    reply = spoken("00 00 00 16 01 00 06 6f 72 64 65 72 73 00 00 00 00 00 00 00 01 00 00 00 01 78")
    assert reply[:9] == bytes.fromhex("00 00 00 41 fe 00 0a 00 3c")
    assert reply == error(10, "Topic or partition does not exist: topic=orders, partition=0")
    assert spoken("00 00 00 01 06") == bytes.fromhex("00 00 00 05 06 00 00 00 00")


def test_an_opcode_nobody_knows(spoken: Spoken) -> None:
    reply = spoken("00 00 00 01 0a")
    assert reply[:9] == bytes.fromhex("00 00 00 2b fe 00 02 00 26")
    assert reply == error(2, "Decode error: unknown request type: 10")
    assert spoken("00 00 00 01 ff") == bytes.fromhex("00 00 00 01 ff")


def test_an_empty_frame_ends_the_conversation(spoken: Spoken) -> None:
    reply = spoken("00 00 00 00")
    assert reply[:9] == bytes.fromhex("00 00 00 35 fe 00 01 00 30")
    assert reply == error(1, "Frame error: invalid protocol: zero-length frame")
    assert spoken.wire.is_closed()


def test_a_frame_that_is_too_long_ends_a_binary_conversation(spoken: Spoken) -> None:
    spoken("00 00 00 01 ff")
    reply = spoken("00 a0 00 01")
    assert reply[:9] == bytes.fromhex("00 00 00 41 fe 00 01 00 3c")
    assert reply == error(1, "Frame error: frame too large: 10485761 bytes (max: 10485760)")
    assert spoken.wire.is_closed()


@pytest.mark.parametrize("before", [b"", framed('{"Ping":{}}')])
def test_a_frame_that_is_too_long_ends_any_other_conversation(wire: WireClient, before: bytes) -> None:
    if before:
        wire.ask(before)
    reply = wire.ask(bytes.fromhex("ff ff ff ff"))
    assert reply[4:].decode() == '{"Error":{"message":"max frame size exceeded: 4294967295 bytes (max: 10485760)"}}'
    assert wire.is_closed()


def test_the_codes_that_deployed_clients_expect(spoken: Spoken) -> None:
    assert spoken("00 00 00 09 07 00 06 6f 72 64 65 72 73") == error(
        13, "DescribeTopic failed: Topic 'orders' not found"
    )
    missing = error(14, "DescribePartition failed: Partition 7 not found in topic 'orders'")
    assert spoken("00 00 00 0d 08 00 06 6f 72 64 65 72 73 00 00 00 07") == missing
    assert spoken(FETCH_ONE) == error(10, "Topic or partition does not exist: topic=orders, partition=0")
    spoken(CREATE_ORDERS)
    assert spoken(CREATE_ORDERS) == error(11, "Topic 'orders' already exists")
    assert spoken("00 00 00 0d 08 00 06 6f 72 64 65 72 73 00 00 00 07") == missing
    assert spoken("00 00 00 08 05 00 01 61 00 00 00 00") == error(12, "Invalid partition count: 0")
    assert spoken("00 00 00 08 05 00 01 61 00 00 03 e9") == error(12, "Invalid partition count: 1001")


# --- JSON ---


def test_the_examples_of_the_contract(wire: WireClient, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders")
    empty = '{"Fetch":{"records":[],"next_offset":0}}'
    fetch = '{"Fetch":{"topic":"orders","partition":0,"offset":0,"max_bytes":1024,"group_id":null}}'
    for prefix, request, reply_prefix, reply in (
        ("00000056", fetch, "00000028", empty),
        (
            "00000042",
            '{"Produce":{"topic":"orders","partition":0,"records":[[104,105]]}}',
            "0000001b",
            '{"Produce":{"offsets":[0]}}',
        ),
        ("00000056", fetch, "00000048", '{"Fetch":{"records":[{"offset":0,"payload":[104,105]}],"next_offset":1}}'),
        (
            "0000003f",
            '{"OffsetFetch":{"topic":"orders","partition":0,"group_id":"g"}}',
            "0000001f",
            '{"OffsetFetch":{"offset":null}}',
        ),
        (
            "0000004b",
            '{"OffsetCommit":{"topic":"orders","partition":0,"group_id":"g","offset":1}}',
            "00000021",
            '{"OffsetCommit":{"success":true}}',
        ),
        (
            "0000003f",
            '{"OffsetFetch":{"topic":"orders","partition":0,"group_id":"g"}}',
            "0000001c",
            '{"OffsetFetch":{"offset":1}}',
        ),
        (
            "00000055",
            '{"Fetch":{"topic":"orders","partition":99,"offset":0,"max_bytes":1024,"group_id":""}}',
            "00000047",
            '{"Error":{"message":"partition not found: topic=orders, partition=99"}}',
        ),
    ):
        expected = bytes.fromhex(reply_prefix) + reply.encode()
        assert wire.ask(bytes.fromhex(prefix) + request.encode()) == expected


def test_the_contracts_first_conversation(wire: WireClient, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders")
    # The contract's example begins at 1000, behind a thousand records that are not in it.
    thousand = ",".join(["[1]"] * 1000)
    wire.ask_json(f'{{"Produce":{{"topic":"orders","partition":0,"records":[{thousand}]}}}}')
    two = '{\n  "Produce": {\n    "topic": "orders",\n    "partition": 0,\n    "records": [[10, 20], [30, 40]]\n  }\n}'
    assert wire.ask_json(two) == '{"Produce":{"offsets":[1000,1001]}}'
    one = '{"Produce": {"topic": "orders", "partition": 0, "records": [[50, 60]]}}'
    assert wire.ask_json(one) == '{"Produce":{"offsets":[1002]}}'
    fetch = '{"Fetch": {"topic": "orders", "partition": 0, "offset": 1000, "max_bytes": 1048576, "group_id": "order-processor"}}'
    assert wire.ask_json(fetch) == (
        '{"Fetch":{"records":[{"offset":1000,"payload":[10,20]},{"offset":1001,"payload":[30,40]},'
        '{"offset":1002,"payload":[50,60]}],"next_offset":1003}}'
    )


def test_the_contracts_conversation_with_a_group(wire: WireClient, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders")
    wire.ask_json('{"Produce":{"topic":"orders","partition":0,"records":[[10,20],[30,40]]}}')
    fetch = '{"Fetch":{"topic":"orders","partition":0,"offset":0,"max_bytes":1048576,"group_id":"processor"}}'
    assert wire.ask_json(fetch) == (
        '{"Fetch":{"records":[{"offset":0,"payload":[10,20]},{"offset":1,"payload":[30,40]}],"next_offset":2}}'
    )
    commit = '{"OffsetCommit":{"topic":"orders","partition":0,"group_id":"processor","offset":2}}'
    assert wire.ask_json(commit) == '{"OffsetCommit":{"success":true}}'
    wire.ask_json('{"Produce":{"topic":"orders","partition":0,"records":[[50,60]]}}')
    assert wire.ask_json(fetch) == '{"Fetch":{"records":[{"offset":2,"payload":[50,60]}],"next_offset":3}}'


def test_the_contracts_errors(wire: WireClient) -> None:
    fetch = '{"Fetch":{"topic":"nonexistent","partition":0,"offset":0,"max_bytes":1048576,"group_id":null}}'
    missing = '{"Error":{"message":"partition not found: topic=nonexistent, partition=0"}}'
    assert wire.ask_json(fetch) == missing
    assert wire.ask_json('{"Produce":{"topic":"nonexistent","partition":0,"records":[[1]]}}') == missing
    commit = '{"OffsetCommit":{"topic":"nonexistent","partition":0,"group_id":"g","offset":1}}'
    assert wire.ask_json(commit) == '{"OffsetCommit":{"success":false}}'
    assert wire.ask_json("{").startswith('{"Error":{"message":"failed to parse request: ')


def test_the_requests_that_json_has_beyond_the_contract(wire: WireClient) -> None:
    assert wire.ask_json('{"CreateTopic":{"topic":"orders","partition_count":2}}') == '{"CreateTopic":{"success":true}}'
    assert wire.ask_json('{"CreateTopic":{"topic":"orders","partition_count":2}}') == (
        '{"Error":{"message":"Topic \'orders\' already exists"}}'
    )
    assert wire.ask_json('"ListTopics"') == '{"ListTopics":{"topics":[{"topic":"orders","partition_count":2}]}}'
    assert wire.ask_json('{"DescribePartition":{"topic":"orders","partition":1}}') == (
        '{"DescribePartition":{"topic":"orders","partition":1,"high_watermark":0,"start_offset":0}}'
    )
    assert wire.ask_json('{"DescribeTopic":{"topic":"orders"}}') == (
        '{"DescribeTopic":{"topic":"orders","partition_count":2,"partitions":['
        '{"partition":0,"high_watermark":0,"start_offset":0},{"partition":1,"high_watermark":0,"start_offset":0}]}}'
    )
    for ping in ('"Ping"', '{"Ping":{}}', '{"Ping":null}', '\t{"Ping":{}}', '\r\n {"Ping":{}} \n'):
        assert wire.ask_json(ping) == '{"Ping":{}}'
    assert wire.ask_json('{"MetricsFetch":{}}').startswith(
        '{"MetricsFetch":{"metrics":"# HELP messages_produced_total '
    )

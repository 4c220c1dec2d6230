"""Frames as they stand in the contract and as deployed clients and brokers sent them, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocols.flymq.codec.frames import Call, ProducedRun, Reply, ReplyDecoder, RequestDecoder
from penstock.protocols.flymq.codec.record_layouts import (
    Fetched,
    Placed,
    ProduceRun,
    Rows,
    decode_fetched,
    encode_consumed,
    encode_fetched,
    encode_produce,
    encode_produce_many,
    encode_produced,
)
from penstock.protocols.flymq.errors import decode_error, encode_error
from penstock.protocols.flymq.operations.access import (
    AclDescription,
    AclGet,
    Auth,
    LoginState,
    UserDescription,
    UserGet,
    Whoami,
    encode_authenticated,
    encode_not_authenticated,
)
from penstock.protocols.flymq.operations.operation import Operation, encode_reply, encode_request
from penstock.protocols.flymq.operations.records import Consume, ConsumeZeroCopy, Fetch, FetchBinary
from penstock.protocols.flymq.operations.topics import (
    ClusterMetadata,
    Commit,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DescribeGroup,
    Done,
    GetLag,
    GetOffset,
    GroupLag,
    GroupState,
    ListGroups,
    ListTopics,
    Metadata,
    ResetOffset,
    SeekToTimestamp,
    Subscribe,
)

TEST = "00 04 74 65 73 74"
G1 = "00 02 67 31"

# Request frames, the message they mean, and what our own encoder makes (None if it writes another form).
REQUESTS: list[tuple[str, str, Operation[Any], bytes | None]] = [
    ("list topics", "af 01 08 01 00 00 00 00", ListTopics(), encode_request(ListTopics())),
    (
        "create topic",
        f"af 01 03 01 00 00 00 0a {TEST} 00 00 00 03",
        CreateTopic("test", 3, []),
        encode_request(CreateTopic("test", 3)),
    ),
    (
        "create topic with settings",
        f"af 01 03 01 00 00 00 1d {TEST} 00 00 00 03 00 00 00 01 00 07 63 6c 65 61 6e 75 70 00 04 6b 65 65 70",
        CreateTopic("test", 3, [("cleanup", "keep")]),
        encode_request(CreateTopic("test", 3, [("cleanup", "keep")])),
    ),
    (
        "delete topic",
        f"af 01 09 01 00 00 00 06 {TEST}",
        DeleteTopic("test"),
        encode_request(DeleteTopic("test")),
    ),
    ("metadata", f"af 01 04 01 00 00 00 06 {TEST}", Metadata("test"), encode_request(Metadata("test"))),
    (
        "consume",
        f"af 01 02 01 00 00 00 12 {TEST} 00 00 00 00 00 00 00 00 00 00 00 2a",
        Consume("test", 0, 42),
        encode_request(Consume("test", 0, 42)),
    ),
    (
        "fetch as in the contract",
        f"af 01 07 01 00 00 00 16 {TEST} 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 0a",
        Fetch("test", 0, 0, 10, None),
        encode_request(Fetch("test", 0, 0, 10)),
    ),
    (
        "fetch as deployed clients send it",
        f"af 01 07 01 00 00 00 18 {TEST} 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 0a 00 00",
        Fetch("test", 0, 0, 10, ""),
        encode_request(Fetch("test", 0, 0, 10, "")),
    ),
    (
        "fetch with a filter",
        f"af 01 07 01 00 00 00 1b {TEST} 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 0a 00 03 65 72 72",
        Fetch("test", 0, 0, 10, "err"),
        encode_request(Fetch("test", 0, 0, 10, "err")),
    ),
    (
        "subscribe as deployed clients send it",
        f"af 01 05 01 00 00 00 17 {TEST} {G1} 00 00 00 00 08 65 61 72 6c 69 65 73 74",
        Subscribe("test", "g1", 0, "earliest", native=True),
        encode_request(Subscribe("test", "g1", 0, "earliest", native=True)),
    ),
    (
        "subscribe as in the contract",
        f"af 01 05 01 00 00 00 18 {TEST} {G1} 00 00 00 00 00 08 65 61 72 6c 69 65 73 74",
        Subscribe("test", "g1", 0, "earliest", native=False),
        encode_request(Subscribe("test", "g1", 0, "earliest")),
    ),
    (
        "commit",
        f"af 01 06 01 00 00 00 16 {TEST} {G1} 00 00 00 00 00 00 00 00 00 00 00 2b",
        Commit("test", "g1", 0, 43),
        encode_request(Commit("test", "g1", 0, 43)),
    ),
    (
        "get offset",
        f"af 01 60 01 00 00 00 0e {TEST} {G1} 00 00 00 00",
        GetOffset("test", "g1", 0),
        encode_request(GetOffset("test", "g1", 0)),
    ),
    (
        "reset to latest",
        f"af 01 61 01 00 00 00 15 {TEST} {G1} 00 00 00 00 06 6c 61 74 65 73 74",
        ResetOffset("test", "g1", 0, "latest", None),
        encode_request(ResetOffset("test", "g1", 0, "latest")),
    ),
    (
        "reset to an offset",
        f"af 01 61 01 00 00 00 1d {TEST} {G1} 00 00 00 00 06 6f 66 66 73 65 74 00 00 00 00 00 00 00 07",
        ResetOffset("test", "g1", 0, "offset", 7),
        encode_request(ResetOffset("test", "g1", 0, "offset", 7)),
    ),
    (
        "reset with a wide mode and an offset nobody asked for",
        f"af 01 61 01 00 00 00 1e {TEST} {G1} 00 00 00 00 00 06 6c 61 74 65 73 74 00 00 00 00 00 00 00 00",
        ResetOffset("test", "g1", 0, "latest", 0),
        None,
    ),
    ("list groups", "af 01 62 01 00 00 00 00", ListGroups(), encode_request(ListGroups())),
    (
        "describe group",
        f"af 01 63 01 00 00 00 0a {TEST} {G1}",
        DescribeGroup("test", "g1", group_only=False),
        encode_request(DescribeGroup("test", "g1")),
    ),
    (
        "describe group, any topic",
        f"af 01 63 01 00 00 00 06 00 00 {G1}",
        DescribeGroup("", "g1", group_only=False),
        encode_request(DescribeGroup("", "g1")),
    ),
    (
        "describe group, no topic field",
        f"af 01 63 01 00 00 00 04 {G1}",
        DescribeGroup("", "g1", group_only=True),
        None,
    ),
    (
        "get lag",
        f"af 01 64 01 00 00 00 0e {TEST} {G1} 00 00 00 00",
        GetLag("test", "g1", 0),
        encode_request(GetLag("test", "g1", 0)),
    ),
    (
        "delete group",
        f"af 01 65 01 00 00 00 0a {TEST} {G1}",
        DeleteGroup("test", "g1"),
        encode_request(DeleteGroup("test", "g1")),
    ),
    ("delete group, no topic field", f"af 01 65 01 00 00 00 04 {G1}", DeleteGroup("", "g1"), None),
    (
        "seek to timestamp",
        f"af 01 66 01 00 00 00 16 {TEST} {G1} 00 00 00 00 00 00 01 8d 5a 3b 2c 00",
        SeekToTimestamp("test", "g1", 0, 1_706_615_843_840),
        encode_request(SeekToTimestamp("test", "g1", 0, 1_706_615_843_840)),
    ),
    (
        "cluster metadata",
        f"af 01 53 01 00 00 00 06 {TEST}",
        ClusterMetadata("test"),
        encode_request(ClusterMetadata("test")),
    ),
    ("cluster metadata without a payload", "af 01 53 01 00 00 00 00", ClusterMetadata(""), None),
    (
        "auth",
        "af 01 70 01 00 00 00 0f 00 05 61 64 6d 69 6e 00 06 73 65 63 72 65 74",
        Auth("admin", "secret"),
        encode_request(Auth("admin", "secret")),
    ),
    ("whoami", "af 01 72 01 00 00 00 00", Whoami(), encode_request(Whoami())),
]


@pytest.mark.parametrize(("frame", "body", "encoded"), [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS])
def test_request(frame: str, body: Operation[Any], encoded: bytes | None) -> None:
    data = bytes.fromhex(frame)
    assert RequestDecoder().feed(data) == [Call(data[2], body, len(data))]
    assert encoded is None or encoded == data


def test_produce_without_a_key() -> None:
    data = bytes.fromhex(f"af 01 01 01 00 00 00 17 {TEST} 00 00 00 00 00 00 00 05 68 65 6c 6c 6f ff ff ff ff")
    assert RequestDecoder().feed(data) == [ProduceRun("test", -1, None, [b"hello"], len(data))]
    assert encode_produce("test", b"hello") == data
    assert encode_produce_many("test", [b"hello"]) == data


def test_produce_with_a_key_and_a_partition() -> None:
    data = bytes.fromhex(f"af 01 01 01 00 00 00 15 {TEST} 00 00 00 02 6b 31 00 00 00 01 76 00 00 00 02")
    assert RequestDecoder().feed(data) == [ProduceRun("test", 2, [b"k1"], [b"v"], len(data))]
    assert encode_produce("test", b"v", b"k1", 2) == data
    assert encode_produce_many("test", [b"v"], [b"k1"], 2) == data


def test_fetch_binary_and_zero_copy_consume_are_read_like_their_twins() -> None:
    fetch = encode_request(FetchBinary("test", 0, 0, 10))
    consume = bytearray(encode_request(Consume("test", 0, 42)))
    consume[2] = ConsumeZeroCopy.opcode
    assert RequestDecoder().feed(fetch + bytes(consume)) == [
        Call(0x0B, FetchBinary("test", 0, 0, 10, None), len(fetch)),
        Call(0x0A, ConsumeZeroCopy("test", 0, 42), len(consume)),
    ]


REPLIES: list[tuple[str, str, bytes]] = [
    (
        "produce, the contract's example",
        f"af 01 01 01 00 00 00 22 {TEST} 00 00 00 00 00 00 00 00 00 00 00 2a 00 00 01 8d 5a 3b 2c 00 ff ff ff ff 00 00 00 05",
        encode_produced("test", None, [b"hello"], [Placed(slice(None), 0, 42, 1_706_615_843_840)]),
    ),
    (
        "produce, as a deployed broker sent it",
        "af01010100000020 0002 7431 00000000 0000000000000000 000001a1e0a287ce ffffffff 00000005",
        encode_produced("t1", None, [b"hello"], [Placed(slice(None), 0, 0, 0x1A1E0A287CE)]),
    ),
    ("consume", "af 01 02 01 00 00 00 0b 00 00 00 02 6b 31 00 00 00 01 76", encode_consumed(0x02, b"k1", b"v")),
    (
        "consume without a key",
        "af 01 0a 01 00 00 00 09 00 00 00 00 00 00 00 01 76",
        encode_consumed(0x0A, None, b"v"),
    ),
    ("create topic", "af 01 03 01 00 00 00 05 01 00 02 6f 6b", encode_reply(CreateTopic, Done(True, "ok"))),
    ("list topics", "af 01 08 01 00 00 00 0b 00 00 00 02 00 01 61 00 02 62 63", encode_reply(ListTopics, ["a", "bc"])),
    ("delete topic", "af 01 09 01 00 00 00 01 01", encode_reply(DeleteTopic, True)),
    (
        "fetch in the deployed layout",
        "af010b0100000034 00000002 0000000000000002 0000000000000000 00000000 00000005 68656c6c6f 0000000000000001 000000026b310000000176",
        encode_fetched(0x0B, [Rows(range(2), [None, b"k1"], [b"hello", b"v"])], 2, native=True),
    ),
    (
        "fetch in the contract's layout",
        "af01070100000034 00000002 00000000 00000005 68656c6c6f 0000000000000000 000000026b310000000176 0000000000000001 0000000000000002",
        encode_fetched(0x07, [Rows(range(2), [None, b"k1"], [b"hello", b"v"])], 2, native=False),
    ),
    (
        "fetch of nothing",
        "af0107010000000c 00000000 0000000000000032",
        encode_fetched(0x07, [], 50, native=True),
    ),
    (
        "fetch of nothing is the same in both layouts",
        "af0107010000000c 00000000 0000000000000032",
        encode_fetched(0x07, [], 50, native=False),
    ),
    ("subscribe", "af01050100000008 0000000000000003", encode_reply(Subscribe, 3)),
    (
        "get lag",
        "af01640100000020 0000000000000002 0000000000000002 0000000000000003 0000000000000001",
        encode_reply(GetLag, GroupLag(2, 2, 3, 1)),
    ),
    (
        "describe group",
        "af0163010000001c 0002 7431 0002 6731 00000001 00000001 00000000 0000000000000001",
        encode_reply(DescribeGroup, GroupState("t1", "g1", 1, {0: 1})),
    ),
    (
        "auth in the deployed layout",
        "af01710100000014 01 0005 61646d696e 00000001 05 61646d696e 0000",
        encode_authenticated("admin", ["admin"], native=True),
    ),
    (
        "auth in the contract's layout",
        "af01710100000015 01 0000 0005 61646d696e 00000001 0005 61646d696e",
        encode_authenticated("admin", ["admin"], native=False),
    ),
    (
        "auth refused in the deployed layout",
        "af01710100000025 00 0000 00000000 001c " + b"invalid username or password".hex(),
        encode_not_authenticated("invalid username or password", native=True),
    ),
    (
        "auth refused in the contract's layout",
        "af01710100000025 00 001c " + b"invalid username or password".hex() + " 0000 00000000",
        encode_not_authenticated("invalid username or password", native=False),
    ),
    ("whoami of no one", "af0172010000000b 0000000000000000000000", encode_reply(Whoami, LoginState.of("", [], []))),
    (
        "whoami of someone",
        "af0172010000001f 01 0005 61646d696e 00000002 0005 61646d696e 0000 00000001 0004 72656164",
        encode_reply(Whoami, LoginState.of("admin", ["admin"], ["read"])),
    ),
    (
        "get user",
        "af0177010000002e 0003 626f62 00000001 0008 636f6e73756d6572 00000001 0004 72656164 01 000000006afa0519 000000006afa0519",
        encode_reply(UserGet, UserDescription("bob", ["consumer"], ["read"], True, 0x6AFA0519, 0x6AFA0519)),
    ),
    (
        "get ACL",
        "af01790100000020 0004 70726976 01 00 00 00000001 0003 677573 00000001 0008 70726f6475636572",
        encode_reply(AclGet, AclDescription("priv", True, False, False, ["gus"], ["producer"])),
    ),
    (
        "error in the contract's form",
        "af01ff010000001b 00 0018 453a20 746f706963206e6f7420666f756e643a206e6f7065",
        encode_error("topic not found: nope"),
    ),
    (
        "error in the deployed form",
        "af01ff010000001b 00000001 0015 746f706963206e6f7420666f756e643a206e6f7065",
        encode_error("topic not found: nope", native=True),
    ),
]


@pytest.mark.parametrize(("frame", "encoded"), [row[1:] for row in REPLIES], ids=[row[0] for row in REPLIES])
def test_reply(frame: str, encoded: bytes) -> None:
    assert encoded.hex(" ") == bytes.fromhex(frame).hex(" ")


def test_the_client_reads_a_produce_reply() -> None:
    data = bytes.fromhex(REPLIES[0][1])
    assert ReplyDecoder().feed(data) == [ProducedRun("test", [0], [42], [1_706_615_843_840])]


@pytest.mark.parametrize("native", [True, False], ids=["deployed", "contract"])
def test_the_client_reads_a_fetch_reply(native: bool) -> None:
    data = encode_fetched(0x07, [Rows(range(2), [None, b"k1"], [b"hello", b"v"])], 2, native=native)
    [reply] = ReplyDecoder().feed(data)
    assert isinstance(reply, Reply)
    assert decode_fetched(reply.payload, native=native) == Fetched([0, 1], [None, b"k1"], [b"hello", b"v"], 2)


@pytest.mark.parametrize(
    "payload",
    [
        "00 0018 453a20 746f706963206e6f7420666f756e643a206e6f7065",
        "00 0015 746f706963206e6f7420666f756e643a206e6f7065",
        "00000001 0015 746f706963206e6f7420666f756e643a206e6f7065",
        "746f706963206e6f7420666f756e643a206e6f7065",
    ],
    ids=["ours", "contract", "code and text", "bare text"],
)
def test_the_client_reads_every_form_of_error(payload: str) -> None:
    assert decode_error(bytes.fromhex(payload)) == "topic not found: nope"


def test_clients_that_drop_six_bytes_of_an_error_see_the_message_whole() -> None:
    payload = encode_error("topic not found: nope")[8:]
    claimed = int.from_bytes(payload[4:6])
    assert claimed > len(payload) - 6, "else they would take the mark for a length"
    assert payload[6:] == b"topic not found: nope"


def test_an_error_text_is_cut_before_clients_misread_it() -> None:
    payload = encode_error("é" * 50_000)[8:]
    assert len(payload) < 14_000
    assert set(decode_error(payload)) == {"é"}

"""Transaction requests: the bytes of deployed clients, and our own behind them."""

from __future__ import annotations

import pytest

from penstock.protocols.flymq.codec.frames import Call, RequestDecoder
from penstock.protocols.flymq.operations.operation import BadRequest, encode_request
from penstock.protocols.flymq.operations.transactions import (
    GroupOffset,
    TxnBegin,
    TxnCommit,
    TxnProduce,
    TxnRollback,
    encode_txn_produces,
)
from penstock.protocols.flymq.wire import frame

TXN_1 = "00 05 74 78 6e 2d 31"
TEST = "00 04 74 65 73 74"


@pytest.mark.parametrize(
    ("sent", "body", "ours"),
    [
        ("af 01 40 01 00 00 00 00", TxnBegin(), encode_request(TxnBegin())),
        (
            f"af 01 43 01 00 00 00 13 {TXN_1} {TEST} 00 00 00 02 68 69",
            TxnProduce("txn-1", "test", [b"hi"]),
            encode_txn_produces("txn-1", "test", [b"hi"]),
        ),
        (
            f"af 01 43 01 00 00 00 1d {TXN_1} {TEST} 00 00 00 02 68 69 00 00 00 02 6b 31 ff ff ff ff",
            TxnProduce("txn-1", "test", [b"hi"], [b"k1"]),
            encode_txn_produces("txn-1", "test", [b"hi"], [b"k1"]),
        ),
        (
            f"af 01 43 01 00 00 00 1b {TXN_1} {TEST} 00 00 00 02 68 69 00 00 00 00 00 00 00 03",
            TxnProduce("txn-1", "test", [b"hi"], None, [3]),
            encode_txn_produces("txn-1", "test", [b"hi"], [None], 3),
        ),
        (f"af 01 41 01 00 00 00 07 {TXN_1}", TxnCommit("txn-1"), encode_request(TxnCommit("txn-1"))),
        (
            f"af 01 41 01 00 00 00 20 {TXN_1} 00 00 00 01 00 01 67 {TEST} 00 00 00 02 00 00 00 00 00 00 00 2a",
            TxnCommit("txn-1", [GroupOffset("g", "test", 2, 42)]),
            encode_request(TxnCommit("txn-1", [GroupOffset("g", "test", 2, 42)])),
        ),
        (f"af 01 42 01 00 00 00 07 {TXN_1}", TxnRollback("txn-1"), encode_request(TxnRollback("txn-1"))),
    ],
)
def test_requests_are_read_as_they_are_written(sent: str, body: object, ours: bytes) -> None:
    data = bytes.fromhex(sent)
    (call,) = RequestDecoder().feed(data)
    assert isinstance(call, Call)
    assert call.body == body
    assert ours == data


@pytest.mark.parametrize(
    ("opcode", "payload", "fault"),
    [
        (0x40, "00", "1 unexpected bytes"),
        (0x41, "", "length of transaction needs 2 bytes"),
        (0x41, f"{TXN_1} ff ff ff ff", "offsets are announced"),
        (0x41, f"{TXN_1} 00 00 00 00 00", "1 unexpected bytes"),
        (0x42, f"{TXN_1} 00", "1 unexpected bytes"),
        (0x43, f"{TXN_1} {TEST} 00 00 00 09 68", "value needs 9 bytes"),
        (0x43, f"{TXN_1} {TEST} 00 00 00 01 68 00", "length of key needs 4 bytes"),
        (0x43, f"{TXN_1} {TEST} 00 00 00 01 68 00 00 00 00 00 00 00 00 00", "1 unexpected bytes"),
    ],
)
def test_requests_that_are_broken_say_where(opcode: int, payload: str, fault: str) -> None:
    (call,) = RequestDecoder().feed(frame(opcode, bytes.fromhex(payload)))
    assert isinstance(call, Call)
    assert isinstance(call.body, BadRequest)
    assert fault in call.body.message

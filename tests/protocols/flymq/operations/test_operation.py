"""What follows from the declaration of an operation."""

from __future__ import annotations

import pytest

from penstock.protocols.flymq.operations.layout import Bool, Str
from penstock.protocols.flymq.operations.operation import OPERATIONS, Operation, decode_reply, encode_reply
from penstock.protocols.flymq.operations.topics import Done, GetLag, GroupLag
from penstock.protocols.flymq.server.dispatch import HANDLERS, WRITERS

CONTRACT = {*range(0x01, 0x0C), *range(0x10, 0x16), *range(0x20, 0x23), 0x30, 0x31, 0x35, *range(0x40, 0x44)}
CONTRACT |= {*range(0x50, 0x53), *range(0x60, 0x67), 0x70, *range(0x72, 0x7E)}
DEPLOYED = {0x53, 0x80, 0x81}
"""Not in the contract, and known to deployed clients."""
TAKEN_BY_DEPLOYED_CLIENTS = {0xA0, 0xA1}
"""Deployed Python and Java clients number their audit requests so."""
OWN = range(0xC0, 0xFF)


def test_the_contract_is_complete_and_our_own_operations_have_a_range_of_their_own() -> None:
    own = set(OPERATIONS) - CONTRACT - DEPLOYED
    assert set(OPERATIONS) >= CONTRACT | DEPLOYED
    assert own <= set(OWN)
    assert not own & TAKEN_BY_DEPLOYED_CLIENTS


def test_every_operation_has_one_handler() -> None:
    handled = [kind.opcode_name for kind in [*HANDLERS, *WRITERS]]
    assert sorted(handled) == sorted(kind.opcode_name for kind in OPERATIONS.values() if kind.opcode_name != "PRODUCE")


def test_the_name_is_that_of_the_class() -> None:
    assert (GetLag.opcode_name, GetLag.opcode, GetLag.reply_opcode) == ("GET_LAG", 0x64, 0x64)


def test_an_opcode_is_taken_once() -> None:
    with pytest.raises(TypeError, match="opcode 0x64 of ANOTHER is taken by GET_LAG"):

        class Another(Operation[Bool], opcode=0x64):
            topic: Str


def test_bytes_after_the_last_field_of_a_reply_are_ignored() -> None:
    lag = GroupLag(1, 2, 3, 4)
    payload = encode_reply(GetLag, lag)[8:]
    assert decode_reply(GetLag, payload + b"more") == lag


def test_a_message_that_a_deployed_broker_leaves_out_is_empty() -> None:
    assert decode_reply(OPERATIONS[0x03], b"\x01") == Done(True, "")

"""What an endpoint reads off datagrams that it cannot decrypt, and the answers that need no state."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.quic.core import QuicCore
from penstock.quic.packets import (
    CID_BYTES,
    VERSION,
    LongHeader,
    long_header,
    retry,
    short_destination,
    stateless_reset,
    version_negotiation,
)
from penstock.quic.settings import QuicSettings
from penstock.quic.tls import TlsSettings, reset_token


def first_datagram() -> tuple[QuicCore, bytes]:
    tls = TlsSettings(verify=False, server_name="localhost")
    core = QuicCore.connect(QuicSettings(), tls, ("127.0.0.1", 1), time.monotonic())
    return core, core.take_datagrams(time.monotonic(), 1)[0][0]


def test_a_datagram_of_a_connection_begins_with_its_destination() -> None:
    cid = b"abcdefgh"
    assert short_destination(b"\x40" + cid + bytes(20)) == cid
    assert short_destination(b"\x7f" + cid + bytes(1_000)) == cid


@pytest.mark.parametrize("datagram", [b"", b"\x40", b"\x40" + bytes(20), b"\x00" + bytes(60), b"\xc0" + bytes(60)])
def test_anything_else_is_for_nobody(datagram: bytes) -> None:
    assert short_destination(datagram) is None


def test_a_first_datagram_has_both_connection_ids() -> None:
    core, datagram = first_datagram()
    header = long_header(datagram)
    assert header == LongHeader(VERSION, True, core.ids.initial, core.ids.local, b"")


def test_of_an_unknown_version_only_the_ids_are_read() -> None:
    datagram = bytes.fromhex("c0 faceb00c 03 010203 02 0909") + bytes(1_200)
    header = long_header(datagram)
    assert header == LongHeader(0xFACEB00C, False, b"\x01\x02\x03", b"\x09\x09", b"")
    assert header is not None
    assert version_negotiation(header)[1:] == bytes.fromhex("00000000 02 0909 03 010203 00000001")


@given(st.binary(max_size=200))
def test_garbage_is_read_without_an_error(datagram: bytes) -> None:
    short_destination(datagram)
    header = long_header(datagram)
    assert header is None or len(header.destination_cid) <= 255


@given(st.integers(0, 99), st.integers(0, 255))
def test_a_first_datagram_that_was_changed_is_read_without_an_error(place: int, value: int) -> None:
    changed = bytearray(FIRST)
    changed[place] = value
    long_header(bytes(changed))
    long_header(bytes(changed[:place]))


FIRST = first_datagram()[1]


def test_a_client_follows_a_retry_that_is_for_it() -> None:
    core, datagram = first_datagram()
    header = long_header(datagram)
    assert header is not None
    answer = retry(header, b"retry-id", b"a token")
    core.receive(answer, len(answer), ("127.0.0.1", 1), time.monotonic())
    again = long_header(core.take_datagrams(time.monotonic(), 1)[0][0])
    assert again == LongHeader(VERSION, True, b"retry-id", core.ids.local, b"a token")


def test_a_reset_is_shorter_than_what_it_answers_and_looks_like_any_datagram() -> None:
    token = reset_token(b"key", b"abcdefgh")
    assert token is not None
    for size in (22, 30, 44, 1_452):
        answer = stateless_reset(bytes(size), token, random.Random(1).randbytes)
        assert answer is not None
        assert len(answer) < size
        assert answer.endswith(token)
        assert answer[0] & 0xC0 == 0x40
    assert stateless_reset(bytes(21), token, random.Random(1).randbytes) is None


def test_tokens_of_resets_differ_by_connection_and_by_key() -> None:
    tokens = {reset_token(key, cid) for key in (b"one", b"two") for cid in (bytes(CID_BYTES), b"abcdefgh")}
    assert len(tokens) == 4
    assert reset_token(b"", b"abcdefgh") is None

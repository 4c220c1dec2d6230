"""Reading fields: what does not fit is refused by name, before anything is taken."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidRequest, ProtocolViolation
from penstock.protocols.bytes import ByteReader, blob32, text8, text16, texts16


def test_what_was_written_is_read_back() -> None:
    reader = ByteReader(text16("héllo") + text8("") + blob32(b"\0\xff") + texts16(["a", "bc"]) + b"\x01")
    assert reader.text16("first") == "héllo"
    assert reader.text8("second") == ""
    assert reader.blob32("third") == b"\0\xff"
    assert reader.texts16("fourth", 2) == ["a", "bc"]
    assert reader.boolean("fifth") is True
    reader.finish("fifth")


def test_numbers_are_big_endian_and_signed_where_they_say_so() -> None:
    reader = ByteReader(bytes.fromhex("ff fffe fffffffd fffffffc fffffffffffffffb fffffffffffffffa"))
    assert reader.u8("a") == 0xFF
    assert reader.u16("b") == 0xFFFE
    assert reader.u32("c") == 0xFFFFFFFD
    assert reader.i32("d") == -4
    assert reader.u64("e") == (1 << 64) - 5
    assert reader.i64("f") == -6
    assert reader.remaining == 0


def test_a_length_that_lies_names_the_field_and_takes_nothing() -> None:
    reader = ByteReader(bytes.fromhex("ffffffff 00"))
    with pytest.raises(ProtocolViolation, match="buffer too small: key needs 4294967295 bytes, 1 are left"):
        reader.blob32("key")


def test_a_count_that_cannot_fit_is_refused_before_the_first_item() -> None:
    with pytest.raises(ProtocolViolation, match="invalid binary format: 4294967295 roles are announced"):
        ByteReader(bytes.fromhex("ffffffff 0000 0000")).texts16("roles", 100)


def test_a_list_longer_than_its_maximum_is_refused_before_the_first_item() -> None:
    reader = ByteReader(bytes.fromhex("00000003 ffff") + bytes(4))
    with pytest.raises(ProtocolViolation, match="too many roles: 3, at most 2"):
        reader.texts16("roles", 2)
    assert ByteReader(texts16(["a", "b"])).texts16("roles", 2) == ["a", "b"]


def test_text_that_is_not_utf8_names_the_field_and_the_byte() -> None:
    with pytest.raises(ProtocolViolation, match="topic is not valid UTF-8 at byte 1"):
        ByteReader(b"\x00\x02a\xff").text16("topic")


def test_surrogates_are_not_utf8() -> None:
    with pytest.raises(ProtocolViolation, match="not valid UTF-8"):
        ByteReader(b"\x00\x03\xed\xa0\x80").text16("topic")


def test_trailing_bytes_are_counted() -> None:
    reader = ByteReader(b"\x01\x02\x03")
    reader.u8("flag")
    with pytest.raises(ProtocolViolation, match="2 unexpected bytes after flag"):
        reader.finish("flag")


def test_a_boolean_is_zero_or_one() -> None:
    with pytest.raises(ProtocolViolation, match="success must be 0 or 1, not 2"):
        ByteReader(b"\x02").boolean("success")


def test_text_that_does_not_fit_its_length_field_is_not_written() -> None:
    with pytest.raises(InvalidRequest, match="at most 65535"):
        text16("x" * 65_536)
    with pytest.raises(InvalidRequest, match="at most 255"):
        text8("x" * 256)

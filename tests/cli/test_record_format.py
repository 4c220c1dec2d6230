"""`consume --format`."""

from __future__ import annotations

import pytest
import typer

from penstock.cli.record_format import compile_format
from penstock.clients.records import Record

RECORD = Record("orders", 2, 7, b"k\t", b"a\n\xff", 1700000000000, (("trace", b"ab"), ("none", None), ("x", b"\x1b")))
EMPTY = Record("orders", 0, 0, None, None)


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("%t %p %o", b"orders 2 7"),
        ("%T", b"1700000000000"),
        ("[%k] [%s] [%v]", b"[k\t] [a\\n\\xff] [a\\n\\xff]"),
        ("%K %S", b"2 3"),
        ("%h", b"trace=ab,none,x=\\x1b"),
        ("100%%\\n", b"100%\n"),
        ("\\t\\r\\0\\\\\\x41", b"\t\r\0\\A"),
        ("gr\u00fcn", "gr\u00fcn".encode()),
        ("", b""),
    ],
)
def test_fields_and_escapes_are_replaced(template: str, shown: bytes) -> None:
    assert compile_format(template, raw=False)(RECORD) == shown


def test_raw_keeps_every_byte_of_a_field() -> None:
    assert compile_format("%k|%v|%h", raw=True)(RECORD) == b"k\t|a\n\xff|trace=ab,none,x=\x1b"


def test_what_a_record_does_not_have_is_empty_and_its_length_is_negative() -> None:
    assert compile_format("[%k]%K[%v]%S[%h]%T", raw=False)(EMPTY) == b"[]-1[]-1[]-1"


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("%q", "%q is not a field: use %t, %p,"),
        ("100%", "% is not a field"),
        ("\\q", "\\q is not an escape: use \\n,"),
        ("\\x4", "\\x is not an escape"),
        ("end\\", "\\ is not an escape"),
    ],
)
def test_what_is_no_field_is_named(template: str, fault: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        compile_format(template, raw=False)
    assert fault in str(refused.value)

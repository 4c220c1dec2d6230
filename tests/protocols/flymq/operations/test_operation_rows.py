"""Lists in replies: none is built further than a frame holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import pytest

from penstock.errors import LimitExceeded
from penstock.protocols.bytes import ByteReader
from penstock.protocols.flymq.operations import operation
from penstock.protocols.flymq.operations.layout import Columns, Items, Layout, Record, Sized
from penstock.protocols.flymq.operations.operation import OPERATIONS, Operation, encode_reply
from penstock.protocols.flymq.operations.topics import ListTopics

PAYLOAD_BYTES_MAX = 2000


@dataclass
class Endless:
    """Items of a list that has no end, and how many were taken."""

    item: Any
    taken: int = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.taken += 1
            yield self.item


def smallest(layout: Layout) -> Any:
    if isinstance(layout, Columns):
        return smallest(layout.head), smallest(layout.details)
    inner = layout.record if isinstance(layout, Sized) else layout
    return inner.read(ByteReader(bytes(inner.bytes_min)), "item")


def endless_replies() -> Iterator[Any]:
    """Every reply with a list, and that list without an end."""
    for kind in OPERATIONS.values():
        if isinstance(kind.reply, Columns):
            rows = Endless(smallest(kind.reply))
            yield pytest.param(kind, rows, rows, id=kind.opcode_name)
        elif isinstance(kind.reply, Items):
            rows = Endless(smallest(kind.reply.item))
            yield pytest.param(kind, rows, rows, id=kind.opcode_name)
        elif isinstance(kind.reply, Record) and is_dataclass(kind.reply.kind):
            for field in kind.reply.fields:
                if type(field.layout) is Items:
                    rows = Endless(smallest(field.layout.item))
                    reply: Any = replace(smallest(kind.reply), **{field.name: rows})
                    yield pytest.param(kind, reply, rows, id=f"{kind.opcode_name} {field.name}")


@pytest.mark.parametrize(("kind", "reply", "rows"), list(endless_replies()))
def test_a_list_that_fits_no_frame_is_refused_at_the_first_item_that_does_not(
    kind: type[Operation[Any]], reply: Any, rows: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation, "PAYLOAD_BYTES_MAX", PAYLOAD_BYTES_MAX)
    with pytest.raises(LimitExceeded, match=f"{kind.opcode_name} takes a frame of at least .*: {kind.smaller}"):
        encode_reply(kind, reply)
    assert 0 < rows.taken <= PAYLOAD_BYTES_MAX


def test_rows_that_just_fit_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "PAYLOAD_BYTES_MAX", 24)
    assert encode_reply(ListTopics, ["01234567"] * 2)[8:] == b"\0\0\0\2" + b"\0\x0801234567" * 2
    with pytest.raises(LimitExceeded, match="at least 26 bytes, at most 24 are allowed"):
        encode_reply(ListTopics, ["01234567", "01234567", ""])

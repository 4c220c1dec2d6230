"""Hypothesis strategies of FlyMQ messages, derived from the layouts of the operations."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.protocols.flymq.operations.cells import Cells, HeaderCells
from penstock.protocols.flymq.operations.layout import (
    Blob,
    Columns,
    EitherText,
    Flag,
    Group,
    Items,
    Layout,
    Nullable,
    Number,
    OneOf,
    Opaque,
    Pairs,
    Record,
    Shared,
    ShortText,
    Sized,
    Text,
)
from penstock.protocols.flymq.operations.operation import OPERATIONS, Operation
from penstock.protocols.flymq.operations.records import ReplayFilter, ReplayTarget
from penstock.protocols.flymq.operations.schemas import ProduceWithSchema, SchemaReading
from penstock.protocols.flymq.operations.transactions import TxnProduce
from penstock.record_headers import encode_headers

ITEMS = 3
BOUNDS = {"B": (0, 0xFF), "H": (0, 0xFFFF), "i": (-(1 << 31), (1 << 31) - 1), "I": (0, (1 << 32) - 1)}
BOUNDS |= {"q": (-(1 << 63), (1 << 63) - 1), "Q": (0, (1 << 64) - 1)}
OFFSET_MAX = (1 << 48) - 1
"""Above it, the first bytes of an offset may be the length of an id."""

texts = st.text(max_size=12)
DECLARED = [kind for kind in OPERATIONS.values() if kind is not TxnProduce]
"""Every operation whose request has a layout that is not that of a run."""


def values(layout: Layout) -> st.SearchStrategy[Any]:
    """What a layout can carry."""
    match layout:
        case ReplayTarget():
            return texts | st.integers(0, OFFSET_MAX) | st.builds(ReplayFilter, texts, st.booleans())
        case Number():
            return st.integers(*BOUNDS[layout.code])
        case Flag():
            return st.booleans()
        case EitherText():
            return st.text(min_size=1, max_size=12)
        case Text() | ShortText():
            return texts
        case Blob() | Opaque():
            return st.binary(max_size=40)
        case HeaderCells():
            pairs = st.lists(st.tuples(texts, st.none() | st.binary(max_size=8)), max_size=ITEMS)
            return st.lists(st.none() | pairs.map(encode_headers), max_size=ITEMS)
        case Cells():
            return st.lists(st.none() | st.binary(max_size=40), max_size=ITEMS)
        case Nullable():
            return st.none() | values(layout.layout).filter(lambda value: value != layout.null)
        case Pairs():
            return st.lists(values(layout.item), max_size=ITEMS).map(dict)
        case Items():
            return st.lists(values(layout.item), max_size=ITEMS).map(layout.collect)
        case Group():
            return st.tuples(*map(values, layout.layouts))
        case Columns():
            return st.lists(st.tuples(values(layout.head), values(layout.details)), max_size=ITEMS)
        case OneOf():
            return values(layout.records[0])
        case Sized() | Shared():
            return values(layout.record)
        case Record():
            head = [values(field.layout) for field in layout.fields if field.tail is None]
            tail = [values(field.layout) for field in layout.fields if field.tail is not None]
            whole = st.builds(layout.kind, *head, *tail)
            return whole | st.builds(layout.kind, *head) if tail and not layout.always_sent else whole
    raise TypeError(f"no strategy for {layout}")


def requests(kind: type[Operation[Any]]) -> st.SearchStrategy[Operation[Any]]:
    if kind is ProduceWithSchema:
        keys = st.none() | st.binary(min_size=1, max_size=8)
        names = st.text(min_size=1, max_size=12)
        reading = st.builds(SchemaReading, names, st.binary(max_size=40), keys, st.integers(-1, 7))
        return st.builds(ProduceWithSchema, texts, st.lists(reading, min_size=1, max_size=1))
    request: st.SearchStrategy[Operation[Any]] = values(kind.payload)
    return request


any_request = st.one_of([requests(kind) for kind in DECLARED])

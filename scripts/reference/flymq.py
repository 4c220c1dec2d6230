"""docs/flymq-protocol.md: every FlyMQ operation, from the declarations in `penstock.protocols.flymq.operations`."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from penstock.docstrings import field_docs
from penstock.frame_bounds import REPLY_ITEMS_MAX
from penstock.protocols.flymq import operations
from penstock.protocols.flymq.operations.layout import Items, Layout, Record
from penstock.protocols.flymq.operations.operation import OPERATIONS, Operation
from penstock.protocols.flymq.wire import AUTH_RESPONSE, ERROR, PAYLOAD_BYTES_MAX
from scripts.reference.markdown import DOCS, GENERATED, wrapped

PAGE = DOCS / "flymq-protocol.md"
SECTIONS: dict[str, ModuleType] = {
    "Records": operations.records,
    "Topics, groups and the cluster": operations.topics,
    "Group members and lag": operations.groups,
    "Delayed records and open transactions": operations.monitoring,
    "Schemas": operations.schemas,
    "Transactions": operations.transactions,
    "Access and audit": operations.access,
    "Spark jobs": operations.spark,
    "Blocks": operations.blocks,
}

INTRODUCTION = f"""\
# FlyMQ operations

{GENERATED}

A frame is `AF 01`, a u8 opcode, a u8 of flags, a u32 length, and a payload of that length, at most
{PAYLOAD_BYTES_MAX:,} bytes. All integers are big-endian. A reply carries the opcode of its request
(AUTH is answered with 0x{AUTH_RESPONSE:02X}) or 0x{ERROR:02X} for ERROR. Replies come in the order of the requests,
and nothing is sent unasked.

ERROR is `bool 0, str message`, or `u32 1, str message` to clients that have shown that they are
deployed FlyMQ clients: see [dialects](protocols/flymq.md#deployed-clients-and-dialects).

Opcodes up to 0x7D are the contract's. 0x53, 0x80 and 0x81 are not in the contract, but deployed
clients and brokers have them. 0xC0 to 0xFE are Penstock's own: no deployed client uses a number of
this range.

| notation | layout |
|---|---|
| `u8` `u32` `u64` `i32` `i64` | integers |
| `bool` | a u8, 0 or 1 |
| `str` | a u16 length and UTF-8, at most 65,535 bytes |
| `s8` | a u8 length and UTF-8, at most 255 bytes |
| `blob` | a u32 length and bytes |
| `cells` | a column of byte strings: a u32 count, that many i32 lengths (-1: null), then the bytes of all; empty if no record has one |
| `header cells` | `cells`, of each header a u16 length of its name, an i32 length of its value (-1: null), little-endian, name, value |
| `T*` | a u32 count followed by that many `T`; in replies at most {REPLY_ITEMS_MAX:,} |
| `{{...}}` | a group of fields |
| `[...]` | a tail that may be absent as a whole |
| `A; or B` | two forms |
"""


def page() -> str:
    parts = [INTRODUCTION]
    for title, module in SECTIONS.items():
        parts.append(f"## {title}\n")
        kinds = sorted((each for each in OPERATIONS.values() if _module(each) is module), key=lambda each: each.opcode)
        parts += map(_operation, kinds)
    return "\n".join(parts)


def _module(kind: type[Operation[Any]]) -> ModuleType:
    return sys.modules[kind.__module__]


def _operation(kind: type[Operation[Any]]) -> str:
    lines = [f"### 0x{kind.opcode:02X} {kind.opcode_name}"]
    if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("):
        lines.append(wrapped(inspect.cleandoc(kind.__doc__)))
    lines.append("")
    request = kind.payload.fields_notation or "(empty)"
    reply = kind.reply.fields_notation if isinstance(kind.reply, Record) else kind.reply.notation
    lines += [f"- Request: `{request}`", *_notes(kind), f"- Reply: `{reply}`", ""]
    return "\n".join(lines)


def _notes(kind: type[Operation[Any]]) -> Iterator[str]:
    """What there is to say of single fields: their docstrings, and how long their lists may be."""
    documented = field_docs(kind)
    for field in kind.payload.fields:
        note = documented.get(field.name, "")
        if bound := _bound(field.layout):
            note = f"{note} At most {bound:,} items.".strip()
        if note:
            yield textwrap.indent(wrapped(f"- `{field.label.replace(' ', '_')}`: {note}", indent="  "), "  ")


def _bound(layout: Layout) -> int | None:
    return layout.items_max if isinstance(layout, Items) else None

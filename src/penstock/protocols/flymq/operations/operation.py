"""The base of every FlyMQ operation: a request, the layout of its payload, and the layout of its reply.

    class GetLag(Operation[GroupLag], opcode=0x64):
        topic: Str
        group: Str
        partition: I32

declares a dataclass, an opcode, and how both directions are encoded and decoded; the type of the reply is its layout as well. A
form that annotations cannot express overrides `read` and `write`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, dataclass_transform, get_args, get_origin

from penstock.errors import LimitExceeded, ProtocolViolation, RecordTooLarge
from penstock.frame_bounds import REPLY_ITEMS_MAX
from penstock.protocols.bytes import ByteReader
from penstock.protocols.flymq.operations.layout import AtMost, Layout, PayloadTooLarge, Pieces, Record, layout_of
from penstock.protocols.flymq.wire import PAYLOAD_BYTES_MAX, header

Reply = TypeVar("Reply")
Item = TypeVar("Item")

ReplyList = Annotated[Iterable[Item], AtMost(REPLY_ITEMS_MAX)]
"""A list in a reply. Its items may be made while they are encoded, so that work ends with the first that does not fit into a frame."""


class _Compiled:
    """Stands for a layout in the class of an operation until it is used: a program uses few of them, and compiling takes time."""

    def __init__(self, kind: type, name: str, compile_layout: Callable[[], Layout]) -> None:
        self._kind = kind
        self._name = name
        self._compile = compile_layout

    def __get__(self, instance: object, owner: type) -> Layout:
        layout = self._compile()
        setattr(self._kind, self._name, layout)
        return layout


@dataclass_transform(field_specifiers=(field,))
class Operation(Generic[Reply]):
    """A request. Subclasses are dataclasses whose fields are annotated with their layouts."""

    opcode: ClassVar[int]
    reply_opcode: ClassVar[int]
    opcode_name: ClassVar[str]
    """As the contract and the metrics spell it: GET_LAG."""
    repeatable: ClassVar[bool]
    """Whether a client sends the request again after it lost the connection: twice has the effect of once."""
    long_lists: ClassVar[bool]
    """Whether the request may have lists of tens of thousands of items, which are not decoded on the event loop."""
    smaller: ClassVar[str]
    """How to ask for a smaller reply, for the error that says it does not fit into a frame."""
    payload: ClassVar[Record]
    reply: ClassVar[Layout]

    def __init_subclass__(
        cls,
        *,
        opcode: int,
        reply_opcode: int | None = None,
        repeatable: bool = True,
        long_lists: bool = False,
        smaller: str = "ask for less at a time",
    ) -> None:
        dataclass(cls)
        cls.opcode = opcode
        cls.reply_opcode = opcode if reply_opcode is None else reply_opcode
        cls.opcode_name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()
        cls.repeatable = repeatable
        cls.long_lists = long_lists
        cls.smaller = smaller
        cls.payload = _Compiled(cls, "payload", partial(Record, cls))  # type: ignore[assignment]
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is Operation:
                compile_reply = partial(layout_of, get_args(base)[0], whole=True)
                cls.reply = _Compiled(cls, "reply", compile_reply)  # type: ignore[assignment]
        if opcode in _DECLARED:
            raise TypeError(f"opcode 0x{opcode:02x} of {cls.opcode_name} is taken by {_DECLARED[opcode].opcode_name}")
        _DECLARED[opcode] = cls

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        request: Self = cls.payload.read(reader)
        return request

    def write(self, pieces: Pieces) -> None:
        self.payload.write(self, pieces)

    @classmethod
    def refusal(cls, violation: str) -> str:
        """Return the ERROR text for a payload that cannot be read."""
        return violation

    @classmethod
    def last_label(cls) -> str:
        """What stands before bytes that do not belong to the request."""
        fields = cls.payload.fields
        return fields[-1].label if fields else f"the header of {cls.opcode_name}, which has no payload"


_DECLARED: dict[int, type[Operation[Any]]] = {}
OPERATIONS: Mapping[int, type[Operation[Any]]] = _DECLARED
"""By opcode. Complete once `penstock.protocols.flymq.operations` is imported."""


@dataclass(slots=True)
class BadRequest:
    """A frame that was read whole but cannot be carried out; the message is the ERROR text."""

    message: str


def encode_request(request: Operation[Any]) -> bytes:
    """Return the frame. Raises RecordTooLarge if the contract allows no frame of that size."""
    pieces = Pieces(PAYLOAD_BYTES_MAX)
    try:
        request.write(pieces)
    except PayloadTooLarge as too_large:
        raise RecordTooLarge(
            f"a request of {too_large} does not fit into a frame: at most {PAYLOAD_BYTES_MAX}"
        ) from None
    return pieces.join(header(request.opcode, pieces.size_bytes))


def decode_request(opcode: int, data: bytes, start: int = 0, end: int | None = None) -> Operation[Any] | BadRequest:
    """Return the request whose payload is `data[start:end]`, or what is wrong with it, so that the connection can answer and continue."""
    kind = OPERATIONS.get(opcode)
    if kind is None:
        return BadRequest(f"unknown opcode: {opcode}")
    reader = ByteReader(data, start, end)
    try:
        request = kind.read(reader)
        reader.finish(kind.last_label())
    except ProtocolViolation as violation:
        return BadRequest(kind.refusal(violation.message))
    return request


def encode_reply(kind: type[Operation[Reply]], value: Reply) -> bytes:
    """Return the frame. Raises LimitExceeded if the contract allows no frame of that size."""
    pieces = Pieces(PAYLOAD_BYTES_MAX)
    try:
        kind.reply.write(value, pieces)
    except PayloadTooLarge as too_large:
        raise _reply_too_large(kind, too_large) from None
    return pieces.join(header(kind.reply_opcode, pieces.size_bytes))


def join_reply(kind: type[Operation[Any]], parts: Sequence[bytes]) -> bytes:
    """Return the frame of a reply whose payload is coded by hand."""
    payload_bytes = sum(map(len, parts))
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise _reply_too_large(kind, PayloadTooLarge(payload_bytes))
    return b"".join((header(kind.reply_opcode, payload_bytes), *parts))


def _reply_too_large(kind: type[Operation[Any]], too_large: PayloadTooLarge) -> LimitExceeded:
    return LimitExceeded(
        f"{kind.opcode_name} takes a frame of {too_large}, at most {PAYLOAD_BYTES_MAX} are allowed: {kind.smaller}"
    )


def decode_reply(kind: type[Operation[Reply]], payload: bytes) -> Reply:
    """Bytes after the last field are ignored: a broker may know more than we do."""
    reply: Reply = kind.reply.read(ByteReader(payload), "reply")
    return reply

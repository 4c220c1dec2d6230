"""Fujin's commands and answers, decoded field by field for people.

A stream has no frames: what a byte means depends on how the stream began. So a stream is decoded from its first byte on or not at all.
Consecutive WRITEs to one topic are one line.
"""

from __future__ import annotations

import re
from typing import ClassVar

from penstock.errors import PenstockError
from penstock.inspection import Field, Frame, View, not_decoded
from penstock.protocols.fujin.codec.commands import Decoder
from penstock.protocols.fujin.codec.messages import Command, ConnectReader, Settle, Transact, WriteRun
from penstock.protocols.fujin.codec.reply_decoding import Answer, Done, ReplyDecoder, Settled
from penstock.protocols.fujin.wire import Reply, Request

_IDS = ("writer_id", "correlation_id", "correlation_ids", "id", "ids")
"""Fields whose bytes are numbers of the protocol's own, and no payload."""


class FujinDissector:
    from_start: ClassVar = True

    def __init__(self, view: View) -> None:
        self._view = view
        self._commands = Decoder()
        self._answers: ReplyDecoder | None = ReplyDecoder()

    def received(self, data: bytes) -> list[Frame]:
        frames = []
        for command in self._commands.feed(data):
            if isinstance(command, ConnectReader):
                self._answers = ReplyDecoder(with_ids=not command.auto_commit)
            frames.append(self._command(command))
        return frames

    def sent(self, data: bytes) -> list[Frame]:
        if self._answers is None:
            return [Frame("not decoded", len(data), ())]
        try:
            answers = self._answers.feed(data)
        except PenstockError as error:
            self._answers = None
            return [not_decoded(len(data), error)]
        # How much of what was sent each answer takes is not known: the first has it all.
        sizes = [len(data), *[0] * len(answers)]
        return [self._answer(answer, size) for answer, size in zip(answers, sizes, strict=False)]

    def _command(self, command: Command) -> Frame:
        name = _spelled(command)
        if isinstance(command, Transact | Settle):
            name = Request(command.request).name
        elif isinstance(command, WriteRun):
            name = Request.WRITE.name
        return Frame(name, command.size_bytes, self._fields(command))

    def _answer(self, answer: Answer, size_bytes: int) -> Frame:
        name = Reply(answer.reply).name if isinstance(answer, Done | Settled) else _spelled(answer)
        return Frame(name, size_bytes, self._fields(answer))

    def _fields(self, message: Command | Answer) -> tuple[Field, ...]:
        shown = self._view.fields(message, without=("size_bytes", "request", "reply", "results", *_IDS))
        ids = [Field(name, _ids(getattr(message, name))) for name in _IDS if hasattr(message, name)]
        if isinstance(message, Settled):
            ids.append(Field("results", self._view.text([error or "ok" for _, error in message.results])))
        return (*ids, *shown)


def _ids(value: object) -> str:
    """Return an id or ids as numbers or in hexadecimal."""
    view = View()
    if isinstance(value, bytes):
        return str(int.from_bytes(value, "big")) if len(value) == 4 else value.hex() or "none"
    if isinstance(value, list):
        return view.text([_ids(each) for each in value])
    return view.text(value)


def _spelled(message: Command | Answer) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(message).__name__).upper()

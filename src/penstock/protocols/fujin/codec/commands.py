"""What a Fujin client sends, as commands; without I/O.

`feed` takes a whole read and returns the commands that are complete, up to a bound; the rest is kept (`more`). The same bytes give the
same commands however they are cut. Consecutive WRITEs to one topic become one `WriteRun`: behind the first, one without headers costs one
comparison, one unpacking and two slices.

A command that is half received is kept as it came, and examined again only when as many bytes have come as it needs at least, so that
a peer that drips costs no more than one that pours. Nothing is allocated by the lengths that are announced: a body beyond the bound is
refused when its length is known, and skipped.

The field for headers is in the contract and in no deployed client, and nothing announces which of them is talking. With a, b and c
the three u16 behind the topic:

    a = 0,  b != 0    no headers field: a body of b bytes
    a = 0,  b = 0     a headers field with nothing in it, then the length of the body
    a != 0, b != 0    no headers field: a large body
    a != 0, b = 0     headers, if a is even and at most 256 and c, which is then the length of the first key, from 1 to 1024;
                      otherwise no headers field: a body of a * 65536 bytes

What the first WRITE shows holds for its stream, and for streams of its connection that have shown nothing yet. Ambiguous are a first
WRITE with an empty headers field and a body of 64 KiB or more, and an empty body without the field; for the latter, `is_undecided`
says that only time can tell (`decide_empty`). A listener may be told which form its clients use.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.protocols.bytes import U16, U32
from penstock.protocols.fujin.codec.messages import (
    BadCommand,
    Command,
    ConnectReader,
    ConnectWriter,
    Disconnect,
    Fetch,
    Headers,
    RefusedWrite,
    Settle,
    Transact,
    WriteRun,
)
from penstock.protocols.fujin.wire import (
    BODY_BYTES_MAX_DEFAULT,
    EMPTY_BODY,
    EMPTY_WRITER_TOPIC,
    HEADER_KEY_BYTES_MAX,
    HEADER_STRINGS_MAX,
    HEADERS_BYTES_MAX,
    ID_BYTES_MAX,
    IDS_MAX,
    TOPIC_BYTES_MAX,
    WRITER_ID_BYTES_MAX,
    Request,
)
from penstock.protocols.receive_buffer import UNBOUNDED

RUN_BYTES_MAX: Final = 1 << 20
"""About how much one run holds, so that what waits for its commit is released in parts."""
_WRITE, _FETCH, _DISCONNECT = int(Request.WRITE), int(Request.FETCH), int(Request.DISCONNECT)
_TRANSACT: Final = (int(Request.BEGIN), int(Request.COMMIT), int(Request.ROLLBACK))
_SETTLE: Final = (int(Request.ACK), int(Request.NACK))
_OF_WRITERS: Final = frozenset((_WRITE, *_TRANSACT, _DISCONNECT))
_FIXED_BYTES: Final = 9
"""Number, correlation id and the length of the topic."""
_READER_BYTES: Final = 7
"""Of a CONNECT READER: number, kind, auto commit and the length of the topic."""


class WriteForm(Enum):
    """Whether WRITEs have the field for headers that the contract's table shows, or are as deployed clients send them."""

    CODE = "code"
    TABLE = "table"


class SharedForm:
    """What the streams of one connection have shown of their client."""

    __slots__ = ("form", "numbers_writers")

    def __init__(self, form: WriteForm | None = None) -> None:
        self.form = form
        """None until a WRITE has shown it."""
        self.numbers_writers = False
        """Whether a CONNECT WRITER had a number for an id."""

    @property
    def follows_contract(self) -> bool:
        """Whether the client has sent what only the contract knows, and no deployed client sends."""
        return self.numbers_writers or self.form is WriteForm.TABLE


class _Role(Enum):
    FRESH = "fresh"
    WRITER = "writer"
    READER = "reader"
    OVER = "over"


def is_incomplete_reader(data: bytes) -> bool:
    """Whether these first bytes of a stream are a part of a CONNECT READER."""
    if data[0] != Request.CONNECT_READER:
        return False
    return len(data) < _READER_BYTES or len(data) < _READER_BYTES + min(_reader_topic_bytes(data), TOPIC_BYTES_MAX)


def topic_of_reader(data: bytes) -> str | None:
    """Return what the CONNECT READER that a stream begins with names; None if it is no such command, or names nothing that can exist."""
    if data[0] != Request.CONNECT_READER or len(data) < _READER_BYTES:
        return None
    topic_bytes = _reader_topic_bytes(data)
    try:
        return data[_READER_BYTES : _READER_BYTES + topic_bytes].decode() if topic_bytes <= TOPIC_BYTES_MAX else None
    except UnicodeDecodeError:
        return None


def _reader_topic_bytes(data: bytes) -> int:
    topic_bytes: int = U32.unpack_from(data, 3)[0]
    return topic_bytes


class _Incomplete(Exception):
    """The command needs at least this many bytes, counted from where it begins."""

    def __init__(self, needed_bytes: int) -> None:
        self.needed_bytes = needed_bytes


class Decoder:
    """One stream."""

    __slots__ = (
        "_body_bytes_max",
        "_commands_max",
        "_empty_at",
        "_form",
        "_ids_at",
        "_ids_left",
        "_kept",
        "_needed_bytes",
        "_role",
        "_shared",
        "_skip_bytes",
        "more",
    )

    violation: Final = None
    """What cannot be understood is a BadCommand, because it is answered."""

    def __init__(
        self,
        *,
        body_bytes_max: int = BODY_BYTES_MAX_DEFAULT,
        shared: SharedForm | None = None,
        commands_max: int = UNBOUNDED,
    ) -> None:
        """Decode at most `commands_max` commands or runs of WRITEs in one `feed`."""
        self._body_bytes_max = body_bytes_max
        self._commands_max = commands_max
        self.more = False
        """Whether commands were left undecoded because of that bound: `feed(b"")` continues with them."""
        self._shared = shared or SharedForm()
        self._form: WriteForm | None = None
        self._role = _Role.FRESH
        self._kept = bytearray()
        self._needed_bytes = 0
        self._skip_bytes = 0
        self._empty_at = -1
        self._ids_at = 0
        """How far the ids of an ACK that is kept were examined, and how many follow."""
        self._ids_left = 0

    @property
    def partial(self) -> bool:
        """Whether a command has begun that is not complete."""
        return (bool(self._kept) or self._skip_bytes > 0) and not self.announces_writer

    @property
    def kept_bytes(self) -> int:
        """Bytes received and not decoded."""
        return len(self._kept)

    @property
    def announces_writer(self) -> bool:
        """Whether what has come may be a CONNECT WRITER with a number for an id: only the next command tells."""
        return self._role is _Role.FRESH and len(self._kept) == 5 and self._kept[0] == Request.CONNECT_WRITER

    @property
    def is_undecided(self) -> bool:
        """Whether what has come so far is a WRITE of nothing in one form, and the beginning of a WRITE in the other."""
        return self._empty_at >= 0 and len(self._kept) == self._empty_at and self._shared.form is not WriteForm.TABLE

    def decide_empty(self) -> list[Command]:
        """Nothing has followed in good time: it was a WRITE of nothing."""
        if not self.is_undecided:
            return []
        refused = RefusedWrite(bytes(self._kept[1:5]), EMPTY_BODY, len(self._kept))
        self._kept = bytearray()
        self._empty_at = -1
        return [refused]

    def feed(self, data: bytes) -> list[Command]:
        """Every command that is complete."""
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(data))
            self._skip_bytes -= skipped
            data = data[skipped:]
        if self._kept:
            self._kept += data
            if len(self._kept) < self._needed_bytes or not self._has_all_ids():
                return []
            data = bytes(self._kept)
            self._kept = bytearray()
        self._empty_at = -1
        commands: list[Command] = []
        position, end = 0, len(data)
        commands_left = self._commands_max
        self.more = False
        while position < end and self._role is not _Role.OVER:
            if not commands_left:
                self.more = True
                self._needed_bytes = 0
                self._kept += memoryview(data)[position:]
                break
            commands_left -= 1
            try:
                position = self._command(data, position, end, commands)
            except _Incomplete as incomplete:
                self._needed_bytes = incomplete.needed_bytes
                self._kept += memoryview(data)[position:]
                if self._empty_at >= 0:
                    self._empty_at -= position
                break
        if position > end:
            self._skip_bytes = position - end
        return commands

    def forget(self) -> None:
        """Free what is kept: nothing is decoded any more."""
        self._kept = bytearray()

    def _has_all_ids(self) -> bool:
        """Look at the ids of a kept ACK from where the last look ended: each is examined once, in however many pieces they come."""
        kept = self._kept
        while self._ids_left:
            self._needed_bytes = self._ids_at + 4 * self._ids_left
            if len(kept) < self._needed_bytes:
                return False
            id_bytes: int = U32.unpack_from(kept, self._ids_at)[0]
            if id_bytes > ID_BYTES_MAX:
                self._ids_left = self._ids_at = 0
                return True  # the rest need not be waited for
            self._ids_at += 4 + id_bytes
            self._ids_left -= 1
        self._needed_bytes = self._ids_at
        return len(kept) >= self._ids_at

    # -- commands ---------------------------------------------------------------------------------------------------------

    def _command(self, data: bytes, at: int, end: int, commands: list[Command]) -> int:
        """Append one command, or a run; returns where the next begins. Raises _Incomplete."""
        number = data[at]
        role = self._role
        if role is _Role.WRITER:
            if number == _WRITE:
                return self._write(data, at, end, commands)
            if number in _TRANSACT:
                _need(end - at, 5)
                commands.append(Transact(number, data[at + 1 : at + 5]))
                return at + 5
        elif role is _Role.READER:
            if number == _FETCH:
                _need(end - at, 9)
                commands.append(Fetch(data[at + 1 : at + 5], U32.unpack_from(data, at + 5)[0]))
                return at + 9
            if number in _SETTLE:
                return self._settle(data, at, end, commands)
        elif number == Request.CONNECT_WRITER:
            return self._connect_writer(data, at, end, commands)
        elif number == Request.CONNECT_READER:
            return self._connect_reader(data, at, end, commands)
        if number == _DISCONNECT and role is not _Role.FRESH:
            self._role = _Role.OVER
            commands.append(Disconnect())
            return end
        return self._broken(commands, f"{number} is no command that a {role.value} stream takes", end)

    def _broken(self, commands: list[Command], reason: str, end: int) -> int:
        commands.append(BadCommand(reason, self._role is _Role.FRESH))
        self._role = _Role.OVER
        return end

    def _connect_writer(self, data: bytes, at: int, end: int, commands: list[Command]) -> int:
        _need(end - at, 5)
        number: int = U32.unpack_from(data, at + 1)[0]
        writer_id: bytes | int | None = None
        next_at = at + 5
        if number:
            # A number stands alone; a text follows its length. Nothing answers, so there is time to see what comes.
            _need(end - at, 6)
            if data[next_at] in _OF_WRITERS:
                writer_id = number
                self._shared.numbers_writers = True
            elif number > WRITER_ID_BYTES_MAX:
                return self._broken(
                    commands, f"a writer id of {number} bytes is longer than {WRITER_ID_BYTES_MAX}", end
                )
            else:
                _need(end - at, 5 + number)
                next_at += number
                writer_id = data[at + 5 : next_at]
        self._role = _Role.WRITER
        commands.append(ConnectWriter(writer_id, next_at - at))
        return next_at

    def _connect_reader(self, data: bytes, at: int, end: int, commands: list[Command]) -> int:
        _need(end - at, 7)
        topic_bytes: int = U32.unpack_from(data, at + 3)[0]
        if topic_bytes > TOPIC_BYTES_MAX:
            self._role = _Role.OVER
            commands.append(ConnectReader(data[at + 1], data[at + 2], None, 7))
            return end
        _need(end - at, 7 + topic_bytes)
        next_at = at + 7 + topic_bytes
        self._role = _Role.READER
        commands.append(ConnectReader(data[at + 1], data[at + 2], data[at + 7 : next_at], next_at - at))
        return next_at

    def _settle(self, data: bytes, at: int, end: int, commands: list[Command]) -> int:
        _need(end - at, 9)
        count: int = U32.unpack_from(data, at + 5)[0]
        if count > IDS_MAX:
            return self._broken(commands, f"{count} ids at once are more than {IDS_MAX}", end)
        ids: list[bytes] = []
        position = at + 9
        self._ids_at, self._ids_left = 9, count  # for the next look, should something be missing
        for left in range(count, 0, -1):
            if end - position < 4 * left:
                raise _Incomplete(position - at + 4 * left)
            id_bytes: int = U32.unpack_from(data, position)[0]
            if id_bytes > ID_BYTES_MAX:
                return self._broken(commands, f"an id of {id_bytes} bytes is longer than {ID_BYTES_MAX}", end)
            position += 4 + id_bytes
            if end < position:
                raise _Incomplete(position - at + 4 * (left - 1))
            ids.append(data[position - id_bytes : position])
        self._ids_at = self._ids_left = 0
        commands.append(Settle(data[at], data[at + 1 : at + 5], ids, position - at))
        return position

    # -- writes -----------------------------------------------------------------------------------------------------------

    def _write(self, data: bytes, at: int, end: int, commands: list[Command]) -> int:
        """One WRITE, and those that follow and are like it."""
        if end - at < _FIXED_BYTES:
            raise _Incomplete(_FIXED_BYTES)
        correlation_id = data[at + 1 : at + 5]
        topic_bytes: int = U32.unpack_from(data, at + 5)[0]
        if topic_bytes > TOPIC_BYTES_MAX:
            commands.append(RefusedWrite(correlation_id, f"a topic name of {topic_bytes} bytes is too long"))
            return self._broken(commands, "its end cannot be waited for", end)
        topic_end = at + _FIXED_BYTES + topic_bytes
        form = self._form or self._recognise(data, at, topic_end, end)
        strings: list[bytes] = []
        position = topic_end
        if form is WriteForm.TABLE:
            if end < topic_end + 2:
                raise _Incomplete(topic_end + 2 - at)
            count: int = U16.unpack_from(data, topic_end)[0]
            position = topic_end + 2
            for left in range(count, 0, -1):
                if end - position < 4 * left:
                    raise _Incomplete(position - at + 4 * left)
                string_bytes: int = U32.unpack_from(data, position)[0]
                position += 4 + string_bytes
                if position - topic_end > HEADERS_BYTES_MAX or count > HEADER_STRINGS_MAX:
                    limits = f"{HEADER_STRINGS_MAX} keys and values, {HEADERS_BYTES_MAX} bytes"
                    commands.append(RefusedWrite(correlation_id, f"too many headers: at most {limits}"))
                    return self._broken(commands, "their end cannot be waited for", end)
                if end < position:
                    raise _Incomplete(position - at + 4 * left)
                strings.append(data[position - string_bytes : position])
        if end < position + 4:
            raise _Incomplete(position + 4 - at)
        body_bytes: int = U32.unpack_from(data, position)[0]
        body_at = position + 4
        body_end = body_at + body_bytes
        if not topic_bytes or not 0 < body_bytes <= self._body_bytes_max or len(strings) % 2:
            commands.append(RefusedWrite(correlation_id, self._fault(topic_bytes, strings, body_bytes), body_at - at))
            return body_end
        if end < body_end:
            raise _Incomplete(body_end - at)
        try:
            topic = data[at + _FIXED_BYTES : topic_end].decode()
            headers = _pairs(strings) if strings else ()
        except UnicodeDecodeError:
            commands.append(RefusedWrite(correlation_id, "a topic name or a header's key is not UTF-8", body_end - at))
            return body_end
        last = commands[-1] if commands else None
        if not isinstance(last, WriteRun) or last.topic != topic or last.size_bytes > RUN_BYTES_MAX:
            last = WriteRun(topic, [], [], None, 0)
            commands.append(last)
        last.correlation_ids.append(correlation_id)
        last.values.append(data[body_at:body_end])
        if headers or last.headers is not None:
            column = last.headers
            if column is None:
                column = [()] * (len(last.values) - 1)
            column.append(headers)
            last.headers = column
        run_end = body_end
        if last.headers is None and run_end < end:
            run_end = self._extend(
                last, data, data[at + 5 : position if form is WriteForm.TABLE else topic_end], body_end
            )
        last.size_bytes += run_end - at
        return run_end

    def _extend(self, run: WriteRun, data: bytes, prefix: bytes, position: int) -> int:
        """Take the WRITEs without headers that follow and have the same `prefix` behind the correlation id; returns where they end."""
        end, stop = len(data), position + RUN_BYTES_MAX
        length_at = 5 + len(prefix)
        head_bytes = length_at + 4
        bytes_max = self._body_bytes_max
        unpack, starts_with = U32.unpack_from, data.startswith
        add_id, add_value = run.correlation_ids.append, run.values.append
        while end - position >= head_bytes and position < stop:
            if data[position] != _WRITE or not starts_with(prefix, position + 5):
                break
            body_at = position + head_bytes
            body_bytes = unpack(data, position + length_at)[0]
            body_end = body_at + body_bytes
            if body_end > end or not 0 < body_bytes <= bytes_max:
                break
            add_id(data[position + 1 : position + 5])
            add_value(data[body_at:body_end])
            position = body_end
        return position

    def _fault(self, topic_bytes: int, strings: list[bytes], body_bytes: int) -> str:
        if not topic_bytes:
            return EMPTY_WRITER_TOPIC
        if not body_bytes:
            return EMPTY_BODY
        if body_bytes > self._body_bytes_max:
            return f"a message of {body_bytes} bytes is too large: at most {self._body_bytes_max} are allowed"
        return f"{len(strings)} strings are no headers: each key must have a value"

    def _recognise(self, data: bytes, at: int, topic_end: int, end: int) -> WriteForm:
        """The form of this WRITE, from now on that of its stream."""
        form = self._shared.form
        if form is None:
            _need(end - at, topic_end + 4 - at)
            first, second = U16.unpack_from(data, topic_end)[0], U16.unpack_from(data, topic_end + 2)[0]
            form = WriteForm.CODE
            if not second and (not first or (first % 2 == 0 and first <= HEADER_STRINGS_MAX)):
                if end < topic_end + 6:
                    if not first:
                        self._empty_at = topic_end + 4
                    raise _Incomplete(topic_end + 6 - at)
                third: int = U16.unpack_from(data, topic_end + 4)[0]
                if not first or 1 <= third <= HEADER_KEY_BYTES_MAX:
                    form = WriteForm.TABLE
            self._shared.form = form
        self._form = form
        return form


def _need(there_bytes: int, needed_bytes: int) -> None:
    if there_bytes < needed_bytes:
        raise _Incomplete(needed_bytes)


def _pairs(strings: list[bytes]) -> Headers:
    return tuple([(strings[at].decode(), strings[at + 1]) for at in range(0, len(strings), 2)])

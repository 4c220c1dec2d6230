"""Frames of a connection as people read them: a name, a size, and fields as text.

A dissector of a protocol (`protocols/<name>/inspection.py`) takes what one stream has received and sent, cuts it into frames and decodes
each with the protocol's own codec. It is fed aside from the conversation, later, so it may take its time; what it makes of strange bytes is
text too and never an error.

Of keys, values and headers only the size is shown unless `payloads` are requested. Credentials are
never told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import msgspec

from penstock.errors import PenstockError

TEXT_CHARS_MAX: Final = 1_000
"""Per field."""
ITEMS_SHOWN_MAX: Final = 5
"""For a list in a field; the total is shown."""
DEPTH_MAX: Final = 4
HEAD_BYTES_MAX: Final = 16
"""In which every protocol with frames says how long a frame is."""
CREDENTIALS: Final = frozenset({"password", "old_password", "new_password", "token", "proof", "api_key", "secret"})
PAYLOADS: Final = frozenset({"key", "keys", "value", "values", "payload", "payloads", "headers"})
"""Fields that are parts of records, also where a protocol has them as text."""
HIDDEN: Final = "hidden"
QUOTES_RECORD: Final = "schema validation failed"
"""Prefixes of errors that go on to quote values of the record."""


class Field(NamedTuple):
    name: str
    value: str


class Frame(NamedTuple):
    name: str
    size_bytes: int
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class View:
    """What may be shown."""

    payloads: bool = False

    def fields(self, message: Any, *, without: Sequence[str] = ()) -> tuple[Field, ...]:
        """Return the fields of a message, whatever kind of object it is."""
        if _is_structure(message):
            return tuple(
                Field(name, self.text(value, name))
                for name, value in _members(message)
                if name not in without and value is not msgspec.UNSET
            )
        return (Field("reply", self.text(message)),)

    def text(self, value: Any, name: str = "", depth: int = 0) -> str:
        """Return a value in words."""
        if name in CREDENTIALS:
            return HIDDEN
        if isinstance(value, bytes | bytearray | memoryview):
            return self._bytes(bytes(value))
        if isinstance(value, str):
            return self._bytes(value.encode(errors="replace")) if name in PAYLOADS else self._words(value)
        if isinstance(value, Enum):
            return value.name
        if value is None or isinstance(value, bool | int | float):
            return str(value)
        if depth >= DEPTH_MAX:
            return "…"
        if _is_structure(value):
            parts = (f"{key}={self.text(each, key, depth + 1)}" for key, each in _members(value))
            return _cut(f"{{{', '.join(parts)}}}")
        if isinstance(value, Mapping):
            parts = (f"{self.text(key)}: {self.text(each, str(key), depth + 1)}" for key, each in value.items())
            return _cut(_listed(parts, len(value)))
        if hasattr(value, "__iter__"):
            count = len(value) if hasattr(value, "__len__") else None
            return _cut(_listed((self.text(each, name, depth + 1) for each in value), count))
        return _cut(str(value))

    def _words(self, text: str) -> str:
        before, quotes, _ = text.partition(QUOTES_RECORD)
        return _cut(f"{before}{quotes}: {HIDDEN}" if quotes and not self.payloads else text)

    def _bytes(self, data: bytes) -> str:
        if not self.payloads:
            return f"{len(data)} bytes"
        head = data[:TEXT_CHARS_MAX]
        try:
            return _cut(repr(head.decode())[1:-1] + ("…" if len(data) > len(head) else ""))
        except UnicodeDecodeError:
            return _cut(head.hex(" ") + ("…" if len(data) > len(head) else ""))


class Dissector(Protocol):
    """One stream, from the beginning of a frame on."""

    from_start: ClassVar[bool]
    """Whether it must have seen the stream from its first byte on."""

    def received(self, data: bytes) -> Iterable[Frame]:
        """Return the frames that are complete of what the client sent."""
        ...

    def sent(self, data: bytes) -> Iterable[Frame]:
        """Return the frames that are complete of what the broker sent."""
        ...


class DissectorFactory(Protocol):
    @property
    def from_start(self) -> bool: ...

    def __call__(self, view: View) -> Dissector: ...


class Cutter:
    """Cuts one direction into frames. `size_of` tells from its beginning how long a frame is, None while that is not known; it may raise
    PenstockError."""

    def __init__(self, size_of: Callable[[bytes], int | None], decode: Callable[[bytes], Frame]) -> None:
        self._size_of = size_of
        self._decode = decode
        self._kept = bytearray()
        self._lost = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the complete frames, each decoded on demand. Those that were not consumed come first the next time."""
        if self._lost:
            yield Frame("not decoded", len(data), ())
            return
        kept = self._kept
        kept += data
        at = 0
        try:
            while at < len(kept):
                try:
                    size = self._size_of(bytes(kept[at : at + HEAD_BYTES_MAX]))
                except PenstockError as error:
                    self._lost = True
                    lost_bytes, at = len(kept) - at, len(kept)
                    yield not_decoded(lost_bytes, error)
                    break
                if size is None or len(kept) - at < size:
                    break
                start, at = at, at + size
                yield self._whole(bytes(kept[start:at]))
        finally:
            del kept[:at]

    def _whole(self, data: bytes) -> Frame:
        try:
            return self._decode(data)
        except Exception as error:  # noqa: BLE001  whatever a codec makes of what a peer sent, it is shown
            return not_decoded(len(data), error)


class FramedDissector(ABC):
    """Dissects a protocol whose frames say how long they are."""

    from_start: ClassVar = False

    def __init__(self, view: View) -> None:
        self._view = view
        self._requests = Cutter(self._size_of, self._request)
        self._replies = Cutter(self._size_of, self._reply)

    def received(self, data: bytes) -> Iterator[Frame]:
        return self._requests.feed(data)

    def sent(self, data: bytes) -> Iterator[Frame]:
        return self._replies.feed(data)

    @staticmethod
    @abstractmethod
    def _size_of(data: bytes) -> int | None:
        """Return the size of the frame that begins so, None while that is not known. Raises PenstockError if it is no frame."""

    @abstractmethod
    def _request(self, data: bytes) -> Frame:
        """Decode a frame of the client's."""

    @abstractmethod
    def _reply(self, data: bytes) -> Frame:
        """Decode a frame of the broker's."""


def not_decoded(size_bytes: int, error: Exception) -> Frame:
    return Frame("not decoded", size_bytes, (Field("reason", _cut(str(error) or type(error).__name__)),))


def _is_structure(value: Any) -> bool:
    return is_dataclass(value) or isinstance(value, msgspec.Struct) or hasattr(value, "_fields")


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif is_dataclass(value):
        names = tuple(each.name for each in fields(value))
    else:
        names = value._fields
    return ((name, getattr(value, name)) for name in names)


def _listed(parts: Iterator[str], count: int | None) -> str:
    shown = list(islice(parts, ITEMS_SHOWN_MAX))
    if count is None or count > len(shown):
        shown.append("…" if count is None else f"… {count} in all")
    return f"[{', '.join(shown)}]"


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}…"

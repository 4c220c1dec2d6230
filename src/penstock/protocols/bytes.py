"""Reading and writing the big-endian fields that the TCP protocols share.

`ByteReader` walks over one payload that is already whole in memory. It checks what is left before it takes anything, so a length or
a count that lies costs nothing, and every refusal names the field at fault. Writing is the inverse, one small function a shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from penstock.errors import InvalidRequest, ProtocolViolation

U16 = Struct(">H")
U32 = Struct(">I")
I32 = Struct(">i")
U64 = Struct(">Q")
I64 = Struct(">q")

TEXT16_BYTES_MAX = 0xFFFF
TEXT8_BYTES_MAX = 0xFF


class ByteReader:
    """A cursor over one payload, which may be a part of `data`. Raises ProtocolViolation if a field does not fit or makes no sense."""

    __slots__ = ("_data", "_end", "position")

    def __init__(self, data: bytes, start: int = 0, end: int | None = None) -> None:
        self._data = data
        self._end = len(data) if end is None else end
        self.position = start

    @property
    def remaining(self) -> int:
        return self._end - self.position

    def peek(self, size: int) -> bytes:
        """Up to `size` of the bytes that are left, without taking them."""
        return self._data[self.position : min(self.position + size, self._end)]

    def fork(self) -> ByteReader:
        """Another cursor at the same place, for a payload that may have several layouts."""
        return ByteReader(self._data, self.position, self._end)

    def take(self, size: int, field: str) -> bytes:
        start = self._advance(size, field)
        return self._data[start : self.position]

    def boolean(self, field: str) -> bool:
        value = self.u8(field)
        if value > 1:
            raise ProtocolViolation(f"invalid binary format: {field} must be 0 or 1, not {value}")
        return value == 1

    def u8(self, field: str) -> int:
        return self._data[self._advance(1, field)]

    def u16(self, field: str) -> int:
        value: int = U16.unpack_from(self._data, self._advance(2, field))[0]
        return value

    def u32(self, field: str) -> int:
        value: int = U32.unpack_from(self._data, self._advance(4, field))[0]
        return value

    def i32(self, field: str) -> int:
        value: int = I32.unpack_from(self._data, self._advance(4, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = U64.unpack_from(self._data, self._advance(8, field))[0]
        return value

    def i64(self, field: str) -> int:
        value: int = I64.unpack_from(self._data, self._advance(8, field))[0]
        return value

    def text16(self, field: str) -> str:
        """UTF-8 behind a u16 length."""
        return decode_text(self.take(self.u16(f"length of {field}"), field), field)

    def text8(self, field: str) -> str:
        """UTF-8 behind a u8 length."""
        return decode_text(self.take(self.u8(f"length of {field}"), field), field)

    def blob32(self, field: str) -> bytes:
        """Raw bytes behind a u32 length."""
        return self.take(self.u32(f"length of {field}"), field)

    def count32(self, field: str, item_bytes_min: int, items_max: int) -> int:
        """A u32 count of at most `items_max` items that take at least `item_bytes_min` each.

        The maximum has no default: a list bounded by the payload alone costs seconds to decode.
        """
        count = self.u32(f"count of {field}")
        if count * item_bytes_min > self.remaining:
            raise ProtocolViolation(
                f"invalid binary format: {count} {field} are announced, "
                f"the {self.remaining} bytes left hold at most {self.remaining // item_bytes_min}"
            )
        if count > items_max:
            raise ProtocolViolation(f"invalid binary format: too many {field}: {count}, at most {items_max}")
        return count

    def texts16(self, field: str, items_max: int) -> list[str]:
        """A u32 count of UTF-8 strings, each behind a u16 length."""
        return [self.text16(field) for _ in range(self.count32(field, 2, items_max))]

    def finish(self, last_field: str) -> None:
        """Nothing may follow the last field."""
        if self.position != self._end:
            raise ProtocolViolation(f"invalid binary format: {self.remaining} unexpected bytes after {last_field}")

    def _advance(self, size: int, field: str) -> int:
        start = self.position
        if size > self._end - start:
            raise ProtocolViolation(f"buffer too small: {field} needs {size} bytes, {self._end - start} are left")
        self.position = start + size
        return start


def decode_text(data: bytes, field: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolViolation(f"invalid binary format: {field} is not valid UTF-8 at byte {error.start}") from None


def text16(text: str) -> bytes:
    """UTF-8 behind a u16 length."""
    data = text.encode()
    if len(data) > TEXT16_BYTES_MAX:
        raise InvalidRequest(f"a string of {len(data)} bytes does not fit: at most {TEXT16_BYTES_MAX} bytes of UTF-8")
    return U16.pack(len(data)) + data


def text8(text: str) -> bytes:
    """UTF-8 behind a u8 length."""
    data = text.encode()
    if len(data) > TEXT8_BYTES_MAX:
        raise InvalidRequest(f"a string of {len(data)} bytes does not fit: at most {TEXT8_BYTES_MAX} bytes of UTF-8")
    return bytes((len(data),)) + data


def blob32(data: bytes) -> bytes:
    """Raw bytes behind a u32 length."""
    return U32.pack(len(data)) + data


def texts16(texts: Iterable[str]) -> bytes:
    """A u32 count of UTF-8 strings, each behind a u16 length."""
    parts = [text16(text) for text in texts]
    return U32.pack(len(parts)) + b"".join(parts)

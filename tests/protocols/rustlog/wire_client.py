"""A RustLog peer that knows only frames: says bytes, reads bytes."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self


class WireClient:
    """A socket to a real listener."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, data: bytes) -> bytes:
        """Say something and hear one frame, its length included."""
        self.say(data)
        return self.hear()

    def hear(self) -> bytes:
        length = self._read(4)
        return length + self._read(int.from_bytes(length, "big"))

    def ask_json(self, text: str | bytes) -> str:
        """One JSON request and its reply, without their lengths."""
        payload = text.encode() if isinstance(text, str) else text
        return self.ask(len(payload).to_bytes(4, "big") + payload)[4:].decode()

    def is_closed(self) -> bool:
        """Whether the other side has hung up and said nothing more."""
        return self._socket.recv(1) == b""

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, f"closed after {bytes(data)!r}"
            data += part
        return bytes(data)

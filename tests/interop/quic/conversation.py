"""What a peer of any implementation does over its streams with a service of lines (`tests/net/quic_lines.py`)."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

WAIT_S_MAX: Final = 30.0
LINE_BYTES: Final = 1_000


class Peer(Protocol):
    """A QUIC client whose streams are pairs of asyncio's."""

    async def open_stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...

    async def accept_stream(self) -> asyncio.StreamReader: ...


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: bytes) -> bytes:
    """Send a line and return the one that answers it."""
    writer.write(line + b"\n")
    return (await asyncio.wait_for(reader.readline(), WAIT_S_MAX)).removesuffix(b"\n")


async def echo(peer: Peer, text: bytes = b"hello") -> None:
    """Send a line on a stream of its own and expect it back, and then the end of the stream."""
    reader, writer = await peer.open_stream()
    writer.write(b"echo " + text + b"\n")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), WAIT_S_MAX) == text + b"\n"


async def download(peer: Peer, size_bytes: int) -> None:
    """Have the service send this many bytes on one stream."""
    reader, writer = await peer.open_stream()
    writer.write(b"big %d\n" % size_bytes)
    writer.write_eof()
    assert len(await asyncio.wait_for(reader.read(), WAIT_S_MAX)) == size_bytes


async def both_ways(peer: Peer, size_bytes: int) -> None:
    """Send about this many bytes on one stream while they are echoed."""
    lines = [b"%d" % number + b"." * LINE_BYTES for number in range(-(-size_bytes // LINE_BYTES))]
    reader, writer = await peer.open_stream()
    reading = asyncio.ensure_future(reader.read())
    for line in lines:
        writer.write(b"echo " + line + b"\n")
        await writer.drain()
    writer.write_eof()
    assert await asyncio.wait_for(reading, WAIT_S_MAX) == b"".join(line + b"\n" for line in lines)

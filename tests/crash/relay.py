"""A relay in front of a server that can be cut off: silent for a while, or with every connection reset."""

from __future__ import annotations

import asyncio

READ_BYTES = 64 << 10
HOST = "127.0.0.1"


class Relay:
    """Passes bytes between clients and a server, unless it is told to hold them back or to reset their connections."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._writers: set[asyncio.StreamWriter] = set()
        self._conversations: set[asyncio.Task[None]] = set()
        self._requests_pass = asyncio.Event()
        self._answers_pass = asyncio.Event()
        self.cuts = 0

    async def start(self, port: int = 0, host: str = HOST) -> str:
        """Listen; returns the address."""
        await self.release()
        self._server = await asyncio.start_server(self._accept, host, port)
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def hold(self) -> None:
        """Pass nothing in either direction, and tell nobody, as a network does whose cable is out."""
        self._requests_pass.clear()
        self._answers_pass.clear()

    async def release(self) -> None:
        """Pass what was held back, and what comes."""
        self._requests_pass.set()
        self._answers_pass.set()

    async def hold_answers(self) -> None:
        """Pass requests only, so that what they ask for is done and nobody hears of it."""
        self._answers_pass.clear()

    async def cut(self, silence_s: float) -> None:
        """Keep answers back for a while, then reset every connection."""
        await self.hold_answers()
        await asyncio.sleep(silence_s)
        self._abort()
        self._answers_pass.set()
        self.cuts += 1

    async def close(self) -> None:
        self._server.close()
        self._abort()
        await self.release()
        await asyncio.gather(*self._conversations)
        await self._server.wait_closed()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.create_task(self._converse(reader, writer))
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._requests_pass.wait()
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, upstream_writer}
        self._writers |= both
        await asyncio.gather(
            self._pass(reader, upstream_writer, self._requests_pass),
            self._pass(upstream_reader, writer, self._answers_pass),
        )
        self._writers -= both

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                await passing.wait()
                if writer.transport.is_closing():
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        await passing.wait()
        writer.transport.abort()

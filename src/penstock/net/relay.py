"""Sessions that live on another node: bytes are passed on as they come, in both directions, within the bounds of the connection."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from penstock.errors import PenstockError
from penstock.net.peers import Dial, Introduction
from penstock.net.session import Connection

READ_BYTES: Final = 64 << 10
LOOK_S: Final = 1.0
"""How often it is looked whether another node leads."""

log = structlog.get_logger("penstock.net")


class RelaySession:
    """Implements `penstock.net.session.Session`: a client of this node whose session is on the node that leads."""

    def __init__(self, connection: Connection, dial: Dial) -> None:
        self._connection = connection
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        """Of the client. Their bytes are held, which bounds them."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._task = asyncio.get_running_loop().create_task(self._run(dial))

    def receive(self, data: bytes) -> None:
        self._connection.hold(len(data))
        self._waiting.put_nowait(data)

    def resume(self) -> None:
        self._writable.set()

    def closed(self) -> None:
        self._task.cancel()
        self._release_waiting()

    def _release_waiting(self) -> None:
        while not self._waiting.empty():
            self._connection.release(len(self._waiting.get_nowait()))

    async def _run(self, dial: Dial) -> None:
        """Relay until one side ends, and end the other then."""
        connection = self._connection
        try:
            await self._relay(dial)
        except PenstockError as error:
            log.warning("relay_failed", listener=connection.listener, peer=connection.peer, reason=str(error))
        except OSError as error:
            log.info("relay_ended", listener=connection.listener, peer=connection.peer, reason=str(error))
        except Exception:
            log.exception("relay_failed", listener=connection.listener, peer=connection.peer)
        finally:
            self._release_waiting()  # nobody will answer it, and a connection that owes answers stays open
            connection.close()

    async def _relay(self, dial: Dial) -> None:
        connection = self._connection
        introduction = Introduction(connection.listener, connection.peer, connection.principal_hint)
        reader, writer = await dial.dial(introduction)
        leader = dial.leader()
        sending = asyncio.get_running_loop().create_task(self._send(writer))
        try:
            while data := await self._read(reader, dial, leader):
                if not connection.writable:
                    self._writable.clear()
                    await self._writable.wait()
                connection.send(data)
        finally:
            sending.cancel()
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, dial: Dial, leader: str | None) -> bytes:
        """Return what comes next, nothing if that is the end: also because another node leads, whatever became of this one."""
        reading = asyncio.ensure_future(reader.read(READ_BYTES))
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=LOOK_S)
                if not reading.done() and dial.leader() not in (None, leader):
                    return b""
            return reading.result()
        finally:
            reading.cancel()

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        while True:
            data = await self._waiting.get()
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                return  # whoever reads finds out too
            finally:
                self._connection.release(len(data))

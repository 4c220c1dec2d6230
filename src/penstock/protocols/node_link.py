"""The way of one client's session to the node that leads or owns a shard, for what the session's own node does not answer.

Bytes go out as they are given, and what comes back is handed on while the client takes it: back-pressure reaches each side through the
other. A link that ends does so for good, also because another node has taken over: what was under way there has an unknown outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from penstock.broker.access.checks import Principal
from penstock.errors import PenstockError
from penstock.net.session import Connection, Introduction, Streams

READ_BYTES: Final = 64 << 10
LOOK_S: Final = 1.0
"""How often it is looked whether another node has taken over from the one at the other end, which may be frozen."""

log = structlog.get_logger(__name__)


class DialNode(Protocol):
    """How the node that owns a shard is reached, or that leads."""

    def owner(self, shard: int | None) -> str | None:
        """Who owns a shard, or for None who leads, as far as that is known."""

    async def dial(self, introduction: Introduction) -> Streams:
        """Connect, for a client. Raises NotLeading."""


def introduction_of(
    protocol: str,
    principal: Principal,
    *,
    native: bool | None = None,
    key_digest: bytes | None = None,
    tenant: str | None = None,
    codes: bool = False,
    shard: int | None = None,
) -> Introduction:
    """Return what a node says of a client that it speaks for. `key_digest` is that of the API key that the principal rests on."""
    return Introduction(
        protocol,
        principal.address,
        name=principal.name,
        roles=tuple(principal.roles),
        trusted=principal.trusted,
        native=native,
        tenant=tenant,
        key=None if key_digest is None else key_digest.hex(),
        codes=codes,
        shard=shard,
    )


def introduced_principal(introduction: Introduction) -> Principal:
    """Return the principal of a client that another node speaks for."""
    return Principal(introduction.name, frozenset(introduction.roles), introduction.trusted, address=introduction.peer)


def introduced_key(introduction: Introduction) -> bytes | None:
    """Return the digest of the API key that such a principal rests on, if it does."""
    return None if introduction.key is None else bytes.fromhex(introduction.key)


class NodeLink:
    """Connects when it is made. `received` is given what comes, never while the client's connection is not writable; `ended` is called
    once the link is over, unless it was closed here."""

    def __init__(
        self,
        connection: Connection,
        dial: DialNode,
        introduction: Introduction,
        *,
        received: Callable[[bytes], None],
        ended: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._dial = dial
        self._introduction = introduction
        self._received = received
        self._ended = ended
        self._waiting: asyncio.Queue[tuple[bytes, int]] = asyncio.Queue()
        """What is to be sent, and the bytes of requests that are held for it, which bounds it."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, data: bytes, held_bytes: int) -> None:
        """Send data. `held_bytes` are released once it is on its way."""
        if self._task.done():
            self._connection.release(held_bytes)
        else:
            self._waiting.put_nowait((data, held_bytes))

    def resume(self) -> None:
        """The client takes more."""
        self._writable.set()

    def close(self) -> None:
        """Nobody waits for what comes any more."""
        self._ended = _nothing
        self._received = _nothing
        self._task.cancel()
        self._release_waiting()

    def _release_waiting(self) -> None:
        while not self._waiting.empty():
            self._connection.release(self._waiting.get_nowait()[1])

    def _owner(self) -> str | None:
        return self._dial.owner(self._introduction.shard)

    async def _run(self) -> None:
        connection = self._connection
        reason = "it was closed there"
        try:
            before = self._owner()
            reader, writer = await self._dial.dial(self._introduction)
            await self._pass_on(reader, writer, self._owner() or before)
        except (PenstockError, OSError) as error:
            reason = str(error)
        except Exception:
            reason = "a bug"
            log.exception("node_link_failed", listener=connection.listener, peer=connection.peer)
        finally:
            self._release_waiting()
        log.info("node_link_ended", listener=connection.listener, peer=connection.peer, reason=reason)
        self._ended()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, owner: str | None) -> None:
        sending = asyncio.get_running_loop().create_task(self._send(writer))
        try:
            while data := await self._read(reader, owner):
                while not self._connection.writable:
                    self._writable.clear()
                    await self._writable.wait()
                self._received(data)
        finally:
            sending.cancel()
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, owner: str | None) -> bytes:
        """Return what comes next, nothing if that is the end. Raises OSError as soon as another node has taken over, whatever became of
        this one: it may be frozen, or answer all the time without knowing."""
        reading = asyncio.ensure_future(reader.read(READ_BYTES))
        try:
            while not reading.done():
                if self._owner() not in (None, owner):
                    raise OSError("another node has taken over")
                await asyncio.wait([reading], timeout=LOOK_S)
            return reading.result()
        finally:
            reading.cancel()

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        while True:
            data, held_bytes = await self._waiting.get()
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                return  # whoever reads finds out too
            finally:
                self._connection.release(held_bytes)


def _nothing(*_: object) -> None:
    pass

"""QUIC connections that live on another node: datagrams are passed on as they come. TLS is between the client and that node."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, cast

import structlog

from penstock.background import Tasks
from penstock.net.listener import cannot_listen
from penstock.units import Address, parse_address

IDLE_S_MAX: Final = 60.0
"""A client that is silent for this long has no connection any more."""
SWEEP_S: Final = 5.0

log = structlog.get_logger("penstock.net")


class _Upstream(asyncio.DatagramProtocol):
    """The way of one client to the node that leads, and back."""

    def __init__(self, relay: DatagramRelay, client: Any, first: bytes) -> None:
        self._relay = relay
        self._client = client
        self._first = first
        self._is_closed = False
        self.transport: asyncio.DatagramTransport | None = None
        self.used_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)
        if self._is_closed:  # while its socket was made
            self.transport.close()
        else:
            self.transport.sendto(self._first)

    def close(self) -> None:
        self._is_closed = True
        if self.transport is not None:
            self.transport.close()

    def datagram_received(self, data: bytes, _: Any) -> None:
        self._relay.answer(data, self._client)


class DatagramRelay(asyncio.DatagramProtocol):
    """Passes on what arrives at an address, from `start` to `stop`. `target` is where to on another node, None while that is not known."""

    def __init__(self, name: str, bind: str, target: Callable[[], str | None], clients_max: int) -> None:
        self._name = name
        self._bind = bind
        self._target = target
        self._towards: str | None = None
        self._clients_max = clients_max
        self._clients: dict[Any, _Upstream] = {}
        self._opening = Tasks()
        self._transport: asyncio.DatagramTransport | None = None
        self._closed = asyncio.Event()
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        assert self._transport is not None
        return str(Address(*self._transport.get_extra_info("sockname")[:2]))

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        host, port = parse_address(self._bind)
        try:
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
            family, _, _, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
            own = _bound(family, where)
        except OSError as error:
            raise cannot_listen(f"listeners.{self._name}.bind", f"{self._bind}/udp", error) from None
        self._transport, _ = await self._loop.create_datagram_endpoint(lambda: self, sock=own)
        self._sweep = self._loop.call_later(SWEEP_S, self._drop_idle)

    async def stop(self) -> None:
        """Pass on nothing more. The address is free once this returns."""
        if self._sweep is not None:
            self._sweep.cancel()
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        self._drop_all()
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()

    def connection_lost(self, _: Exception | None) -> None:
        self._closed.set()

    def datagram_received(self, data: bytes, address: Any) -> None:
        target = self._target()
        if target != self._towards:
            # Connections were with the node that led before; their clients notice that it is gone.
            self._drop_all()
            self._towards = target
        if target is None:
            return  # a client of QUIC sends again
        upstream = self._clients.get(address)
        if upstream is None:
            if len(self._clients) < self._clients_max:
                self._open(data, address, target)
        elif upstream.transport is not None:
            upstream.used_at = self._loop.time()
            upstream.transport.sendto(data)

    def answer(self, data: bytes, client: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, client)

    def _open(self, data: bytes, address: Any, target: str) -> None:
        upstream = self._clients[address] = _Upstream(self, address, data)
        upstream.used_at = self._loop.time()
        _ = self._opening.run(self._connect(upstream, address, target))

    async def _connect(self, upstream: _Upstream, address: Any, target: str) -> None:
        host, port = parse_address(target)
        try:
            await self._loop.create_datagram_endpoint(lambda: upstream, remote_addr=(host, port))
        except OSError as error:
            if self._clients.get(address) is upstream:
                del self._clients[address]
            log.warning("relay_failed", listener=self._name, peer=str(address), reason=str(error))

    def _drop_idle(self) -> None:
        before = self._loop.time() - IDLE_S_MAX
        for address in [each for each, upstream in self._clients.items() if upstream.used_at < before]:
            self._clients.pop(address).close()
        self._sweep = self._loop.call_later(SWEEP_S, self._drop_idle)

    def _drop_all(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()


def _bound(family: int, where: Any) -> socket.socket:
    own = socket.socket(family, socket.SOCK_DGRAM)
    try:
        own.setblocking(False)
        if family == socket.AF_INET6:
            own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        own.bind(where)
    except BaseException:
        own.close()
        raise
    return own

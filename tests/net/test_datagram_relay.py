"""Datagrams that are passed on to the node that leads, and back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.net.datagram_relay import DatagramRelay
from penstock.units import parse_address


class Endpoint(asyncio.DatagramProtocol):
    """A socket, and what has arrived at it."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[tuple[bytes, Any]] = asyncio.Queue()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.received.put_nowait((data, address))

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.transport.get_extra_info("sockname"))


async def open_endpoint() -> Endpoint:
    _, endpoint = await asyncio.get_running_loop().create_datagram_endpoint(Endpoint, local_addr=("127.0.0.1", 0))
    return endpoint


@pytest.fixture
async def endpoints() -> AsyncIterator[list[Endpoint]]:
    endpoints = [await open_endpoint() for _ in range(3)]
    yield endpoints
    for endpoint in endpoints:
        endpoint.transport.close()


async def test_each_client_has_its_own_way_to_the_node_that_leads_and_follows_it(endpoints: list[Endpoint]) -> None:
    client, first, second = endpoints
    target: str | None = first.address
    relay = DatagramRelay("fujin", "127.0.0.1:0", lambda: target, 10)
    await relay.start()
    there = parse_address(relay.address)
    client.transport.sendto(b"one", there)
    data, way = await first.received.get()
    assert data == b"one"
    first.transport.sendto(b"answer", way)
    assert (await client.received.get())[0] == b"answer"
    target = None
    client.transport.sendto(b"while nobody leads", there)
    target = second.address
    while second.received.empty():  # datagrams may be lost, and the first may find that nobody leads
        client.transport.sendto(b"two", there)
        await asyncio.sleep(0)
    first.transport.sendto(b"from the node that led before", way)
    second.transport.sendto(b"from the one that leads", (await second.received.get())[1])
    assert (await client.received.get())[0] == b"from the one that leads"
    await relay.stop()
    again = DatagramRelay("fujin", relay.address, lambda: target, 10)
    await again.start()  # where the first one was, which is free at once
    await again.stop()


async def test_a_way_that_is_given_up_while_it_is_made_leaves_no_socket(endpoints: list[Endpoint]) -> None:
    client, first, second = endpoints
    target = first.address
    relay = DatagramRelay("fujin", "127.0.0.1:0", lambda: target, 10)
    await relay.start()
    relay.datagram_received(b"one", client.transport.get_extra_info("sockname"))
    [given_up] = relay._clients.values()
    target = second.address
    relay.datagram_received(b"two", client.transport.get_extra_info("sockname"))
    assert (await second.received.get())[0] == b"two"
    while given_up.transport is None:
        await asyncio.sleep(0)
    assert given_up.transport.is_closing()
    assert first.received.empty()
    await relay.stop()


async def test_an_address_that_is_taken_is_named() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        bind = "{}:{}".format(*taken.getsockname())
        with pytest.raises(
            ConfigError, match=r"listeners\.fujin\.bind: cannot listen on .* another process listens there"
        ):
            await DatagramRelay("fujin", bind, lambda: None, 10).start()

"""The endpoint: datagrams in batches, with and without the kernel's help, and a socket that takes no more."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.quic.udp import SEGMENTED_BYTES_MAX, SEGMENTS_MAX, UdpEndpoint, open_socket
from tests.net.line_session import until


class Receiver:
    """An endpoint that keeps what it is sent."""

    def __init__(self) -> None:
        self.endpoint = UdpEndpoint(open_socket(socket.AF_INET, bind=("127.0.0.1", 0)), time.monotonic)
        self.endpoint.received = self._received
        self.datagrams: list[bytes] = []
        self.buffers = 0

    def _received(self, buffer: bytes, segment_bytes: int, address: tuple[Any, ...]) -> None:
        self.buffers += 1
        self.datagrams += [buffer[at : at + segment_bytes] for at in range(0, len(buffer), segment_bytes)]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.endpoint.close()


@pytest.fixture
async def sender() -> AsyncIterator[UdpEndpoint]:
    endpoint = UdpEndpoint(open_socket(socket.AF_INET, bind=("127.0.0.1", 0)), time.monotonic)
    yield endpoint
    endpoint.close()


def numbered(count: int, size: int) -> list[bytes]:
    return [number.to_bytes(4, "big") + bytes(size - 4) for number in range(count)]


@pytest.mark.parametrize("size", [50, 1_200, 1_452, 8_900, 40_000])
@pytest.mark.parametrize("segments", [True, False])
async def test_datagrams_arrive_as_they_were_sent(
    sender: UdpEndpoint, receiver: Receiver, size: int, segments: bool
) -> None:
    sender._segments = segments
    for start in range(0, 100, 10):
        wanted = numbered(start + 10, size)[start:]
        before = len(receiver.datagrams)
        sender.send([(datagram, receiver.endpoint.address) for datagram in wanted])
        await until(lambda before=before: len(receiver.datagrams) == before + 10)  # type: ignore[misc]
        assert receiver.datagrams[before:] == wanted


async def test_the_kernel_is_given_many_datagrams_at_once(sender: UdpEndpoint, receiver: Receiver) -> None:
    wanted = numbered(SEGMENTED_BYTES_MAX // 1_452, 1_452)
    sender.send([(datagram, receiver.endpoint.address) for datagram in wanted])
    await until(lambda: len(receiver.datagrams) == len(wanted))
    assert receiver.datagrams == wanted
    assert receiver.buffers < len(wanted) / 4


async def test_sizes_and_addresses_may_change_within_a_batch(sender: UdpEndpoint, receiver: Receiver) -> None:
    other = Receiver()
    here, there = receiver.endpoint.address, other.endpoint.address
    sizes = [1_452, 1_452, 1_452, 60, 1_452, 8_000, 8_000, 30, 30, 1_452]
    for address in (here, there):
        sender.send([(bytes([number]) * size, address) for number, size in enumerate(sizes)])
    sender.send([(bytes(100), here), (bytes(100), there), (bytes(100), here)])
    await until(lambda: len(receiver.datagrams) == len(sizes) + 2 and len(other.datagrams) == len(sizes) + 1)
    assert [len(datagram) for datagram in receiver.datagrams] == [*sizes, 100, 100]
    assert [len(datagram) for datagram in other.datagrams] == [*sizes, 100]
    other.endpoint.close()


class Stub:
    """A socket that fails as it is told; everything else is the real one's."""

    def __init__(self, real: socket.socket, fail: Callable[[int], OSError | None]) -> None:
        self._real = real
        self._fail = fail

    def sendmsg(self, buffers: list[bytes], *rest: Any) -> int:
        self._may_fail(len(buffers))
        return self._real.sendmsg(buffers, *rest)

    def sendto(self, data: bytes, address: Any) -> int:
        self._may_fail(1)
        return self._real.sendto(data, address)

    def _may_fail(self, count: int) -> None:
        error = self._fail(count)
        if error is not None:
            raise error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


async def test_a_path_that_cannot_segment_is_served_one_datagram_at_a_time(
    sender: UdpEndpoint, receiver: Receiver
) -> None:
    sender._socket = Stub(sender._socket, lambda count: OSError(errno.EIO, "no") if count > 1 else None)  # type: ignore[assignment]
    wanted = numbered(20, 1_200)
    sender.send([(datagram, receiver.endpoint.address) for datagram in wanted])
    await until(lambda: len(receiver.datagrams) == 20)
    assert receiver.datagrams == wanted
    assert not sender._segments
    assert sender.send_errors == 0


async def test_what_a_full_socket_does_not_take_waits_until_it_does(sender: UdpEndpoint, receiver: Receiver) -> None:
    fails = 3

    def fail(count: int) -> OSError | None:
        nonlocal fails
        fails -= 1
        return BlockingIOError() if fails >= 0 else None

    sender._socket = Stub(sender._socket, fail)  # type: ignore[assignment]
    wanted = numbered(20, 1_200)
    batch = [(datagram, receiver.endpoint.address) for datagram in wanted]
    ran: list[float] = []

    class Runner:
        def run(self, now_s: float) -> None:
            ran.append(now_s)

    sender.send(batch[:10])
    assert sender._waiting == [(batch[:10], b"")]
    sender.touch_when_writable(Runner())
    sender.send(batch[10:])
    assert not ran
    await until(lambda: len(receiver.datagrams) == 20)
    assert receiver.datagrams == wanted
    assert not sender._waiting
    assert len(ran) == 1


async def test_a_datagram_that_is_too_long_is_as_good_as_lost(sender: UdpEndpoint, receiver: Receiver) -> None:
    sender.send([(bytes(70_000), receiver.endpoint.address), (b"after", receiver.endpoint.address)])
    await until(lambda: receiver.datagrams == [b"after"])
    assert sender.send_errors == 1


async def test_who_is_touched_runs_once_a_turn(sender: UdpEndpoint) -> None:
    ran: list[str] = []

    class Runner:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, now_s: float) -> None:
            ran.append(self.name)

    one, two = Runner("one"), Runner("two")
    for runner in (one, two, one, one):
        sender.touch(runner)
    sender.touch(two)
    await until(lambda: bool(ran))
    assert ran == ["one", "two"]
    sender.touch(one)
    sender.forget(one)
    sender.touch(two)
    await until(lambda: len(ran) > 2)
    assert ran == ["one", "two", "two"]


async def test_a_closed_endpoint_sends_and_reads_no_more(receiver: Receiver) -> None:
    endpoint = UdpEndpoint(open_socket(socket.AF_INET, bind=("127.0.0.1", 0)), time.monotonic)
    endpoint.close()
    endpoint.close()
    endpoint.send([(b"nothing", receiver.endpoint.address)])
    await asyncio.sleep(0)
    assert receiver.datagrams == []


async def test_a_connected_socket_hears_that_nobody_listens() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = nobody.getsockname()
    endpoint = UdpEndpoint(open_socket(socket.AF_INET, connect=address), time.monotonic)
    heard: list[bool] = []
    endpoint.refused = lambda: heard.append(True)
    endpoint.send([(b"hello?", address)])
    await until(lambda: bool(heard))
    endpoint.close()


@pytest.mark.parametrize("sends_again", [False, True])
async def test_datagrams_that_came_before_a_refusal_are_read_first(sends_again: bool) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        address = peer.getsockname()
        endpoint = UdpEndpoint(open_socket(socket.AF_INET, connect=address), time.monotonic)
        happened: list[str] = []
        endpoint.received = lambda data, size, sender: happened.append(data.decode())
        endpoint.refused = lambda: happened.append("refused")
        peer.sendto(b"goodbye", endpoint.address)
    endpoint.send([(b"hello?", address)] * (1 + sends_again))
    await until(lambda: "refused" in happened)
    endpoint.close()
    assert happened == ["goodbye", "refused"]


def test_a_batch_is_no_larger_than_the_kernel_takes() -> None:
    assert SEGMENTS_MAX <= 64
    assert SEGMENTED_BYTES_MAX < 65_507


async def test_a_socket_is_closed_again_where_it_cannot_be_bound() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="in use"):
            open_socket(socket.AF_INET, bind=taken.getsockname())

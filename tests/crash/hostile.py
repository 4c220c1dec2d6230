"""A thousand hostile peers against one broker: how much memory they cost it.

    python -m tests.crash.hostile --connections 1000

Peers send half a frame of the largest size and stop, or ask for large replies and read none of them; over TCP before and after a
login, and over QUIC. While they hold their connections the broker must serve an ordinary client, and its memory must stay within
`limits.in_flight_total_bytes_max` and 100 MB for everything else that a thousand connections cost. Ends with 1 if it does not.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.clients.quic import QuicConnection
from penstock.protocols.blipmq import codec as blipmq
from penstock.protocols.blipmq.wire import LENGTH_MAX, LOGIN_LENGTH_MAX, FrameType
from penstock.protocols.felix.codec.frames import encode_message
from penstock.protocols.felix.codec.messages import StartOffset, Subscribe
from penstock.protocols.felix.wire import HEADER as FELIX_HEADER
from penstock.protocols.felix.wire import MAGIC as FELIX_MAGIC
from penstock.protocols.felix.wire import PAYLOAD_BYTES_MAX as FELIX_BYTES_MAX
from penstock.protocols.felix.wire import PUBLISH_BATCH
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.flymq.operations.operation import encode_request
from penstock.protocols.flymq.operations.records import Fetch as FlyMQFetch
from penstock.protocols.flymq.operations.records import Produce
from penstock.protocols.flymq.wire import HEADER as FLYMQ_HEADER
from penstock.protocols.flymq.wire import MAGIC as FLYMQ_MAGIC
from penstock.protocols.flymq.wire import PAYLOAD_BYTES_MAX as FLYMQ_BYTES_MAX
from penstock.protocols.flymq.wire import VERSION as FLYMQ_VERSION
from penstock.protocols.fujin.wire import BODY_BYTES_MAX_DEFAULT
from penstock.protocols.rustlog.codec import binary_client
from penstock.protocols.rustlog.codec.messages import Fetch
from penstock.protocols.rustlog.wire import PAYLOAD_BYTES_MAX as RUSTLOG_BYTES_MAX
from penstock.testing import BrokerProcess
from tests.crash.quic_load import quic_broker
from tests.crash.quic_peers import MIB, Memory, answer_pings, connect, is_sound, metrics, where
from tests.protocols.fujin import requests as fujin

BEYOND_BUDGET_BYTES_MAX: Final = 100_000_000
BUDGET_BYTES: Final = 128 * MIB
API_KEY: Final = "hostile"
TOPIC: Final = "large"
VALUE_BYTES: Final = 16 << 10
VALUES: Final = 1024
REPLY_BYTES: Final = 1 << 20
ASKED_PER_CONNECTION: Final = 64
SERVED_S_MAX: Final = 60.0
"""It takes 3 to 4 s of the broker's processor time beside a thousand peers that read nothing, and ten times that on a busy machine."""
STEADY_S: Final = 2.0
SETTLED_S_MAX: Final = 15.0
_ZEROS: Final = memoryview(bytes(FLYMQ_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class Opening:
    """What a hostile peer sends on one listener: some bytes, then zeros, forever or up to a size."""

    listener: str
    words: bytes
    zeros: int = 0


LOGIN = blipmq.encode_hello(1, 1) + blipmq.encode_auth(2, API_KEY)
HALF_FRAMES: Final = (
    Opening(
        "flymq", FLYMQ_HEADER.pack(FLYMQ_MAGIC, FLYMQ_VERSION, Produce.opcode, 0, FLYMQ_BYTES_MAX), FLYMQ_BYTES_MAX - 1
    ),
    Opening("rustlog", RUSTLOG_BYTES_MAX.to_bytes(4, "big") + b"\1", RUSTLOG_BYTES_MAX - 2),
    Opening("blipmq", LOGIN_LENGTH_MAX.to_bytes(4, "big") + bytes((FrameType.AUTH,)), LOGIN_LENGTH_MAX - 2),
    Opening("blipmq", LOGIN + LENGTH_MAX.to_bytes(4, "big") + bytes((FrameType.PUBLISH,)), LENGTH_MAX - 2),
)


def unread_replies(reply_bytes: int) -> tuple[Opening, ...]:
    """Requests for replies of this size, or of the smallest there is where a protocol has no large ones."""
    records = max(1, reply_bytes // VALUE_BYTES)
    fetch = binary_client.encode_call(Fetch(TOPIC, 0, 0, records * VALUE_BYTES, ""))
    return (
        Opening("flymq", encode_request(FlyMQFetch(TOPIC, 0, 0, records)) * ASKED_PER_CONNECTION),
        Opening("rustlog", fetch * ASKED_PER_CONNECTION),
        Opening("blipmq", LOGIN + blipmq.encode_ping(4) * 10_000),
    )


def hostile_broker(directory: Path, budget_bytes: int = BUDGET_BYTES) -> BrokerProcess:
    """A broker with all five listeners and this budget, not started yet."""
    listeners = f'[listeners.rustlog]\nbind = "127.0.0.1:0"\n[listeners.blipmq]\nbind = "127.0.0.1:0"\napi_keys = ["{API_KEY}"]\n'
    limits = f'[admin]\nbind = "127.0.0.1:0"\n[limits]\nin_flight_total_bytes_max = {budget_bytes}\n'
    return quic_broker(directory, {TOPIC: 1}, top=limits, more=listeners)


@dataclass(slots=True)
class Cost:
    """What the peers of one scenario cost."""

    scenario: str
    connections: int
    received_bytes: int
    growth_bytes: int
    """The most that the broker's memory grew by."""

    @property
    def ok(self) -> bool:
        return self.growth_bytes <= BUDGET_BYTES + BEYOND_BUDGET_BYTES_MAX


class TcpPeers:
    """Connections that say their opening and read nothing."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []
        self._sockets: list[socket.socket] = []

    async def open(self, opening: Opening) -> None:
        own = socket.socket()
        self._sockets.append(own)
        own.setblocking(False)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().sock_connect(own, where(self._broker, opening.listener))
        self._tasks.append(asyncio.create_task(self._say(own, opening)))

    async def _say(self, own: socket.socket, opening: Opening) -> None:
        loop = asyncio.get_running_loop()
        try:
            for whole in (memoryview(opening.words), _ZEROS[: opening.zeros]):
                await loop.sock_sendall(own, whole)
        except OSError:
            pass  # the broker has had enough

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for own in self._sockets:
            own.close()


async def received_bytes(broker: BrokerProcess) -> int:
    figures = await metrics(broker)
    return int(sum(value for series, value in figures.items() if series.startswith("penstock_received_bytes_total")))


async def settle(broker: BrokerProcess) -> None:
    """Wait until the broker takes no more for a while."""
    steady_since_s, before, deadline_s = time.monotonic(), -1, time.monotonic() + SETTLED_S_MAX
    while time.monotonic() - steady_since_s < STEADY_S and time.monotonic() < deadline_s:
        if (now := await received_bytes(broker)) != before:
            steady_since_s = time.monotonic()
        before = now
        await asyncio.sleep(0.1)


async def serves(broker: BrokerProcess) -> None:
    """Write and read as an ordinary client, on a thread of its own. Raises TimeoutError if that takes too long."""

    def write_and_read() -> bytes | None:
        with broker.connect() as client:
            stored = client.send("bystander", b"still here")
            return client.fetch("bystander", stored.partition, stored.offset, max_records=1).records[0].value

    async with asyncio.timeout(SERVED_S_MAX):
        assert await asyncio.to_thread(write_and_read) == b"still here"


@asynccontextmanager
async def tcp_peers(broker: BrokerProcess, connections: int, openings: Sequence[Opening]) -> AsyncIterator[None]:
    peers = TcpPeers(broker)
    try:
        for number in range(connections):
            await peers.open(openings[number % len(openings)])
        await settle(broker)
        yield
    finally:
        await peers.close()


async def quic_half_frame(broker: BrokerProcess, number: int) -> QuicConnection:
    """A stream with all of a frame of the largest size but its last byte."""
    listener = ("felix", "fujin")[number % 2]
    connection = await connect(broker, listener)
    stream = connection.open_stream()
    if listener == "felix":
        stream.send(FELIX_HEADER.pack(FELIX_MAGIC, 1, PUBLISH_BATCH, FELIX_BYTES_MAX))
        stream.send(bytes(FELIX_BYTES_MAX - 1))
    else:
        answer_pings(connection)
        begun = fujin.write(1, TOPIC.encode(), bytes(BODY_BYTES_MAX_DEFAULT))
        stream.send(fujin.CONNECT_WRITER + begun[:-1])
    return connection


async def quic_unread(broker: BrokerProcess, number: int) -> QuicConnection:
    """A subscriber of everything there is, who reads nothing of it."""
    listener = ("felix", "fujin")[number % 2]
    connection = await connect(broker, listener)
    stream = connection.open_stream()
    if listener == "felix":
        subscribe = Subscribe(tenant_id="default", namespace="default", stream=TOPIC, start=StartOffset(0))
        await stream.write(encode_message(subscribe), end=True)
        connection.pause_receiving()
    else:
        answer_pings(connection)
        await stream.write(fujin.connect_reader(TOPIC.encode(), auto_commit=1))
        stream.pause_receiving()
    return connection


@asynccontextmanager
async def quic_peers(
    broker: BrokerProcess, connections: int, begin: Callable[[BrokerProcess, int], Awaitable[QuicConnection]]
) -> AsyncIterator[None]:
    opened: list[QuicConnection] = []
    try:
        for number in range(connections):
            opened.append(await begin(broker, number))  # noqa: PERF401 - those that are open are closed if the next fails
        await settle(broker)
        yield
    finally:
        for connection in opened:
            connection.close()


async def cost(broker: BrokerProcess, scenario: str, connections: int, reply_bytes: int = REPLY_BYTES) -> Cost:
    """Run one scenario against a running broker; returns when its peers are gone again."""
    memory = Memory(broker)
    before = await received_bytes(broker)
    if scenario.startswith("quic"):
        begin = quic_half_frame if scenario == "quic half frames" else quic_unread
        async with quic_peers(broker, connections, begin):
            await serves(broker)
    else:
        openings = HALF_FRAMES if scenario == "half frames" else unread_replies(reply_bytes)
        async with tcp_peers(broker, connections, openings):
            await serves(broker)
    found = Cost(scenario, connections, await received_bytes(broker) - before, memory.peak_growth_bytes)
    assert is_sound(broker)
    return found


async def fill(broker: BrokerProcess) -> None:
    """What peers ask for."""
    async with AsyncFlyMQClient(broker.url) as client:
        await client.send_many(TOPIC, [bytes([number % 256]) * VALUE_BYTES for number in range(VALUES)])


SCENARIOS: Final = ("half frames", "unread replies", "quic half frames", "quic unread")


async def measure(scenario: str, connections: int, reply_bytes: int) -> Cost:
    with tempfile.TemporaryDirectory(prefix="hostile-") as directory, hostile_broker(Path(directory)) as broker:
        await fill(broker)
        return await cost(broker, scenario, connections, reply_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1000, help="over TCP")
    parser.add_argument("--quic-connections", type=int, default=1000, help="over QUIC")
    parser.add_argument(
        "--reply-kib", type=int, default=REPLY_BYTES >> 10, help="size of the replies that are not read"
    )
    options = parser.parse_args()
    sys.stdout.write(
        f"budget {BUDGET_BYTES / MIB:.0f} MiB, allowed beyond it {BEYOND_BUDGET_BYTES_MAX / MIB:.0f} MiB\n"
    )
    all_ok = True
    for scenario in SCENARIOS:
        connections = options.quic_connections if scenario.startswith("quic") else options.connections
        found = asyncio.run(measure(scenario, connections, options.reply_kib << 10))
        sys.stdout.write(
            f"{scenario:<17} {connections:>5} connections, {found.received_bytes / MIB:>7.0f} MiB received, "
            f"memory grew by {found.growth_bytes / MIB:>5.0f} MiB{'' if found.ok else ': TOO MUCH'}\n"
        )
        sys.stdout.flush()
        all_ok = all_ok and found.ok
    sys.exit(0 if all_ok else 1)


if __name__ == "__main__":
    main()

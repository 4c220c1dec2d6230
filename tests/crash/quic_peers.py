"""Peers of a broker's QUIC listeners: one that works all the time, and what can be seen of the broker from outside."""

from __future__ import annotations

import asyncio
import re
import secrets
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.clients.quic import QuicConnection, connect_quic
from penstock.protocols.felix.client.client import AsyncFelixClient
from penstock.protocols.felix.client.subscription import AsyncSubscription
from penstock.protocols.felix.wire import ALPN as FELIX_ALPN
from penstock.protocols.fujin.client.client import AsyncFujinClient
from penstock.protocols.fujin.wire import ALPN as FUJIN_ALPN
from penstock.testing import BrokerProcess
from tests.crash.quic_load import OPTIONS, url

KIB, MIB = 1 << 10, 1 << 20
ALPN = {"fujin": FUJIN_ALPN, "felix": FELIX_ALPN}
BYSTANDER_TOPICS = {"bystander-felix": 1}


def where(broker: BrokerProcess, listener: str) -> tuple[str, int]:
    host, _, port = broker.addresses[listener].rpartition(":")
    return host, int(port)


async def connect(broker: BrokerProcess, listener: str) -> QuicConnection:
    """A connection that leaves pings to the test."""
    return await connect_quic(*where(broker, listener), alpn=ALPN[listener], ca_file=broker.certificate, timeout_s=30.0)


def answer_pings(connection: QuicConnection) -> None:
    connection.on_stream = lambda ping: ping.on_data(lambda data: None if data else ping.send(b"\x0b", end=True))


class Bystander:
    """Goes round and round over both protocols: writes a value, and waits until it gets it. Counts the rounds."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._name = f"bystander-{secrets.token_hex(4)}"  # what another test has written last may still come
        self.rounds = {"fujin": 0, "felix": 0}

    async def _fujin(self) -> None:
        async with AsyncFujinClient(url(self._broker, "fujin"), options=OPTIONS) as client:
            async with client.reader(self._name) as reader:
                while True:
                    value = b"%d" % self.rounds["fujin"]
                    await client.send(self._name, value)
                    message = await reader.next()
                    assert message.value == value
                    await reader.ack(message)
                    self.rounds["fujin"] += 1

    async def _felix(self) -> None:
        async with AsyncFelixClient(url(self._broker, "felix"), options=OPTIONS) as client:
            async with await client.subscribe("bystander-felix") as subscription:
                while True:
                    value = b"%s %d" % (self._name.encode(), self.rounds["felix"])
                    await client.send("bystander-felix", value)
                    assert await self._next_own(subscription) == value
                    self.rounds["felix"] += 1

    async def _next_own(self, subscription: AsyncSubscription) -> bytes:
        while True:
            event = await subscription.next(OPTIONS.request_timeout_s)
            assert event is not None
            if event.value.startswith(self._name.encode()):
                return event.value

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Bystander]:
        """Works until the block ends, and must not have been disturbed by then: each round got what it asked for."""
        tasks = [asyncio.ensure_future(self._fujin()), asyncio.ensure_future(self._felix())]
        try:
            await self.goes_on(tasks)
            yield self
            await self.goes_on(tasks)
        finally:
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome

    async def goes_on(self, tasks: Sequence[asyncio.Future[None]]) -> None:
        """Some more rounds over both protocols."""
        enough = {name: rounds + 3 for name, rounds in self.rounds.items()}
        async with asyncio.timeout(60):
            while any(self.rounds[name] < rounds for name, rounds in enough.items()):
                assert not any(task.done() for task in tasks), "the bystander was disturbed"
                await asyncio.sleep(0.01)


class Memory:
    """How much memory the broker's process takes."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._directory = Path("/proc") / str(broker.pid)
        (self._directory / "clear_refs").write_text("5")  # forget the peak
        self._before_bytes = self._read("VmRSS")

    def _read(self, name: str) -> int:
        status = (self._directory / "status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * KIB

    @property
    def peak_growth_bytes(self) -> int:
        return self._read("VmHWM") - self._before_bytes

    @property
    def growth_bytes(self) -> int:
        return self._read("VmRSS") - self._before_bytes


async def metrics(broker: BrokerProcess) -> dict[str, float]:
    """What `/metrics` says, by series."""

    def get() -> str:
        with urllib.request.urlopen(f"http://{broker.addresses['admin']}/metrics", timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    lines = (line.rpartition(" ") for line in (await asyncio.to_thread(get)).splitlines() if not line.startswith("#"))
    return {series: float(value) for series, _, value in lines}


def is_sound(broker: BrokerProcess) -> bool:
    """Whether it runs and has noticed no fault of its own."""
    assert broker.running, broker.output
    assert "Traceback" not in broker.output, broker.output
    assert "session_failed" not in broker.output, broker.output
    assert "quic_connection_failed" not in broker.output, broker.output
    return True

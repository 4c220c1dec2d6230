"""Clients of all protocols over a network that loses, repeats, delays and overtakes, and that goes down and up again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import penstock
from penstock.clients.options import ClientOptions
from penstock.clients.retry import RetryPolicy
from penstock.clock import SystemClock
from penstock.errors import ConnectionLost, RequestTimeout, Unreachable
from penstock.testing import RunningBroker
from tests.crash.bad_network import link_to

PROTOCOLS = ("flymq", "blipmq", "rustlog", "fujin", "felix")
OVER_QUIC = ("fujin", "felix")
TOPIC = "orders"
SILENCE_S = 1.0
"""After which a QUIC connection is gone; the reset of a TCP connection is noticed at once."""
OPTIONS = ClientOptions(connect_timeout_s=3.0, retry=RetryPolicy(attempts_max=50, elapsed_s_max=60.0, delay_s_max=0.2))
WRITTEN_MORE = 15
"""Between two things that happen to the network."""


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    quic = {"bind": "127.0.0.1:0", "idle_s_max": SILENCE_S}
    with RunningBroker(clock=SystemClock(), listeners={"fujin": quic, "felix": quic}) as broker:
        yield broker


class Writer:
    """Writes one value after the other and notes what became of each. None is written a second time."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url
        self._number = 0
        self.acknowledged: list[bytes] = []
        self.unknown: list[bytes] = []
        """The connection was lost before the answer came."""
        self.under_way = b""

    async def write(self) -> None:
        async with await penstock.connect_async(self._url, options=OPTIONS) as client:
            while True:
                self._number += 1
                value = f"{self._name}/{self._number}".encode()
                self.under_way = value
                try:
                    await client.send(TOPIC, value)
                except (ConnectionLost, RequestTimeout, Unreachable):
                    self.unknown.append(value)
                else:
                    self.acknowledged.append(value)

    def check(self, values: list[bytes]) -> None:
        found = Counter(value for value in values if value.startswith(f"{self._name}/".encode()))
        assert set(found.values()) <= {1}, "a record is there twice"
        assert found.keys() >= set(self.acknowledged)
        assert found.keys() <= set(self.acknowledged) | set(self.unknown) | {self.under_way}
        kept = [value for value in values if value in set(self.acknowledged)]
        assert kept == self.acknowledged, "the order is another one"


async def until(condition: Callable[[], bool], task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            if task.done():
                await task
            await asyncio.sleep(0.005)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_was_acknowledged_over_a_bad_network_is_there_once_and_in_order(
    broker: RunningBroker, protocol: str
) -> None:
    with broker.connect() as direct:
        if TOPIC not in direct.topics():
            await asyncio.to_thread(direct.create_topic, TOPIC)
    address = broker.addresses[protocol]
    url = getattr(broker, "url" if protocol == "flymq" else f"{protocol}_url")
    async with link_to(address, udp=protocol in OVER_QUIC) as link:
        writer = Writer(protocol, url.replace(address, link.address))
        task = asyncio.create_task(writer.write())
        try:
            for _ in range(2):
                before = len(writer.acknowledged)
                await until(lambda before=before: len(writer.acknowledged) > before + WRITTEN_MORE, task)  # type: ignore[misc]
                lost = len(writer.unknown)
                link.down()
                await until(lambda lost=lost: len(writer.unknown) > lost, task)  # type: ignore[misc]
                link.up()
            before = len(writer.acknowledged)
            await until(lambda: len(writer.acknowledged) > before + WRITTEN_MORE, task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    with broker.connect() as direct:
        writer.check([record.value or b"" for record in await asyncio.to_thread(lambda: list(direct.records(TOPIC)))])

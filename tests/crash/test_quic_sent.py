"""kill -9 between a request and its reply: every QUIC client says that the outcome is unknown, also where it tried to send it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.clients.options import ClientOptions
from penstock.clients.retry import RetryPolicy
from penstock.errors import ConnectionLost, Unreachable
from penstock.protocols.felix.client.client import AsyncFelixClient
from penstock.protocols.fujin.client.client import AsyncFujinClient
from penstock.testing import BrokerProcess
from tests.crash.quic_load import quic_broker, until, url

TOPIC = "orders"
OPTIONS = ClientOptions(retry=RetryPolicy(attempts_max=2))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with quic_broker(tmp_path, {TOPIC: 1}) as broker:
        yield broker


async def fail_with_outcome_unknown(
    broker: BrokerProcess, client: Any, calls: Sequence[Callable[[], Coroutine[Any, Any, object]]]
) -> None:
    """Check what requests fail with that a stopped broker has not read when it is killed, and what they fail with afterwards."""
    connections = client._sessions if isinstance(client, AsyncFelixClient) else client._link._connections
    broker.pause()
    requests = [asyncio.create_task(call()) for call in calls]
    await until(lambda: connections._window._requests == len(calls), "not all was sent")
    await asyncio.to_thread(broker.kill9)
    failures = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(failure) for failure in failures] == [ConnectionLost] * len(calls)
    for call in calls:
        with pytest.raises(Unreachable):
            await call()


async def test_felix(broker: BrokerProcess) -> None:
    async with AsyncFelixClient(url(broker, "felix"), options=OPTIONS) as client:
        calls = [
            lambda: client.send(TOPIC, b"x"),
            lambda: client.cache_put("k", b"v"),
            lambda: client.cache_get("k"),
            lambda: client.cache_delete("k"),
        ]
        await fail_with_outcome_unknown(broker, client, calls)


async def test_fujin(broker: BrokerProcess) -> None:
    async with AsyncFujinClient(url(broker, "fujin"), options=OPTIONS) as client:
        await client.send(TOPIC, b"x")
        reader = client.reader(TOPIC, pull=True)
        (message,) = await reader.fetch(1)
        calls = [lambda: client.send(TOPIC, b"x"), lambda: reader.fetch(1), lambda: reader.ack(message)]
        await fail_with_outcome_unknown(broker, client, calls)

"""Mixed load over all five protocols: each chore is one visit of a client that connects, works and disconnects.

What a visit leaves in the broker is bounded: topics have retention, groups and subscriptions have fixed names, created topics are
deleted. So whatever grows with the number of visits is a leak.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from penstock.protocols.blipmq.client import AsyncBlipMQClient
from penstock.protocols.felix.client.client import AsyncFelixClient
from penstock.protocols.felix.server.feed import CHUNKS_KEPT_BYTES_MAX
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.fujin.client.client import AsyncFujinClient
from penstock.protocols.rustlog.client.client import AsyncRustLogClient
from penstock.testing import BrokerProcess
from tests.crash.quic_load import url
from tests.crash.quic_peers import connect, where

API_KEY = "soak"
BATCH = 50
PAUSE_S = 0.01
"""Between two visits of one chore, so that two processors are busy without being the thing that is measured."""
TOPICS = {"flymq": 3, "blipmq": 1, "rustlog": 2, "fujin": 1, "felix": 1}

_LISTENER = '[listeners.{}]\nbind = "127.0.0.1:0"\n'
_TOPIC = '[[topics]]\nname = "{}"\npartitions = {}\nretention_bytes = "2 MiB"\n'
# Small enough that files are begun, sealed and deleted all the time, and that caches are full before the warm-up ends.
_CONFIG = """
[admin]
bind = "127.0.0.1:0"
[log]
segment_bytes = "256 KiB"
journal_bytes = "1 MiB"
checkpoint_bytes = "1 MiB"
tail_bytes_per_partition = "512 KiB"
maintenance_interval_s = 1
retention_bytes = "2 MiB"
[limits]
transactions_remembered_max = 100
producers_max = 100
"""


def soak_broker(directory: Path) -> BrokerProcess:
    """A broker with all five listeners, not started yet."""
    listeners = [_LISTENER.format(name) for name in ("rustlog", "fujin", "felix")]
    blipmq = _LISTENER.format("blipmq") + f'api_keys = ["{API_KEY}"]\n'
    topics = [_TOPIC.format(name, partitions) for name, partitions in TOPICS.items()]
    return BrokerProcess(directory / "data", config="".join([_CONFIG, *listeners, blipmq, *topics]))


class SoakLoad:
    """Chores against one broker, each repeated until the load is stopped."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self._broker = broker
        self._chance = random.Random(seed)
        self._subscription: int | None = None
        self._stopping = False
        self.visits: Counter[str] = Counter()
        self.acknowledged: Counter[str] = Counter()
        """Records, by chore."""
        self.read: Counter[str] = Counter()

    def stop(self) -> None:
        """Let every chore finish its visit, then end."""
        self._stopping = True

    async def run(self) -> None:
        """Repeat every chore until `stop`. Any error ends the load: a broker in good health refuses none of this."""
        chores: dict[str, Callable[[], Awaitable[None]]] = {
            "flymq": self._visit_flymq,
            "blipmq": self._visit_blipmq,
            "rustlog": self._visit_rustlog,
            "fujin": self._visit_fujin,
            "felix": self._visit_felix,
            "hang-up": self._hang_up,
        }
        async with asyncio.TaskGroup() as group:
            for name, chore in chores.items():
                group.create_task(self._repeat(name, chore))

    async def fill_event_cache(self) -> None:
        """Push as many events as the broker keeps for subscribers that are behind, which visits alone would take long to reach."""
        async with AsyncFelixClient(url(self._broker, "felix")) as client:
            subscription = await client.subscribe("felix")
            for _ in range(CHUNKS_KEPT_BYTES_MAX // (BATCH << 10) + BATCH):
                await client.send_many("felix", [bytes(1 << 10)] * BATCH)
                for _ in range(BATCH):
                    assert await subscription.next() is not None

    async def _repeat(self, name: str, chore: Callable[[], Awaitable[None]]) -> None:
        while not self._stopping:
            await chore()
            self.visits[name] += 1
            await asyncio.sleep(PAUSE_S)

    def _values(self) -> list[bytes]:
        return [self._chance.randbytes(self._chance.randrange(1, 400)) for _ in range(BATCH)]

    async def _visit_flymq(self) -> None:
        visit = self.visits["flymq"]
        async with AsyncFlyMQClient(self._broker.url) as client:
            await client.send_many("flymq", [(b"key-%d" % (visit % 7), value) for value in self._values()])
            async with client.transaction() as transaction:
                await transaction.send_many("flymq", self._values())
            self.acknowledged["flymq"] += 2 * BATCH
            async for _ in client.records("flymq", group="soak", limit=2 * BATCH):
                self.read["flymq"] += 1
            name = f"short-lived-{visit % 3}"
            await client.create_topic(name)
            await client.send(name, b"gone soon")
            await client.delete_topic(name)

    async def _visit_blipmq(self) -> None:
        async with AsyncBlipMQClient(f"blipmq://{API_KEY}@{self._broker.addresses['blipmq']}") as client:
            if self._subscription is None:
                self._subscription = await client.subscribe("blipmq")
            await client.send_many("blipmq", self._values())
            self.acknowledged["blipmq"] += BATCH
            async for _ in client.records("blipmq", subscription=self._subscription, limit=BATCH):
                self.read["blipmq"] += 1

    async def _visit_rustlog(self) -> None:
        async with AsyncRustLogClient(f"rustlog://{self._broker.addresses['rustlog']}") as client:
            await client.send_many("rustlog", self._values())
            self.acknowledged["rustlog"] += BATCH
            async for _ in client.records("rustlog", group="soak", limit=BATCH):
                self.read["rustlog"] += 1

    async def _visit_fujin(self) -> None:
        async with AsyncFujinClient(url(self._broker, "fujin")) as client:
            await client.send_many("fujin", self._values())
            async with client.transaction() as transaction:
                await transaction.send_many("fujin", self._values())
                await transaction.commit()
            self.acknowledged["fujin"] += 2 * BATCH
            async for _ in client.records("fujin", limit=2 * BATCH):
                self.read["fujin"] += 1

    async def _visit_felix(self) -> None:
        async with AsyncFelixClient(url(self._broker, "felix")) as client:
            subscription = await client.subscribe("felix")
            await client.send_many("felix", self._values())
            self.acknowledged["felix"] += BATCH
            for _ in range(BATCH):
                assert await subscription.next() is not None
                self.read["felix"] += 1
            await client.cache_put("soak", self._chance.randbytes(100), ttl_s=5)
            await client.cache_get("soak")

    async def _hang_up(self) -> None:
        """Begin a frame on each TCP port and reset the connection; connect to each QUIC port and close at once."""
        for listener in ("flymq", "blipmq", "rustlog"):
            for begun in (b"\xaf\x01\x01", b"\0\0\1\0{", ssl.RAND_bytes(5)):
                _, writer = await asyncio.open_connection(*where(self._broker, listener))
                writer.write(begun)
                writer.transport.abort()
        for listener in ("fujin", "felix"):
            (await connect(self._broker, listener)).close()

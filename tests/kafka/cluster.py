"""Engines on the Kafka of a test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from penstock.log.kafka.engine import KafkaEngine
from penstock.log.kafka.settings import KafkaSettings
from tests.log.storage import StorageOf


class Cluster(StorageOf[KafkaEngine]):
    """The topics with a prefix."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        super().__init__()
        self.settings = KafkaSettings(bootstrap=(bootstrap,), topic_prefix=prefix)

    async def start(self) -> KafkaEngine:
        engine = KafkaEngine(self.settings)
        await engine.start()
        return engine

    async def pass_time(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 <= now_ms:  # the time is Kafka's, on this machine
            await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the timeout of the test bounds it."""
    while not condition():
        await asyncio.sleep(0)

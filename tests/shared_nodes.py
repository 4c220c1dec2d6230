"""Nodes of a cluster as whole servers, with real sockets between them, on a log in memory that they share: several in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.server import Server
from penstock.testing.shared_engine import SharedEngine
from penstock.testing.shared_log import SharedLog

SECRET = "the secret of this cluster"
ANY_PORT = {"bind": "127.0.0.1:0"}
API_KEY = "dev-key"


class SharedNode:
    """One of them. The first on a log that is started leads, and owns the shard if there is one only."""

    def __init__(
        self, log: SharedLog, name: str, directory: Path, listeners: Mapping[str, Mapping[str, Any]], **settings: Any
    ) -> None:
        config = Config(
            data_dir=directory / name,
            engine="kafka",
            kafka={"bootstrap": ["127.0.0.1:1"]},
            cluster={"node": name, "secret": SECRET, "insecure": True, **ANY_PORT},
            listeners={each: {**ANY_PORT, **settings} for each, settings in listeners.items()},
            admin=None,
            dev=True,
            **settings,
        )
        config.data_dir.mkdir()
        self.engine = SharedEngine(log, clock=SystemClock(), node=name)
        with patch("penstock.server._kafka_engine", lambda *_: self.engine):
            self.server = Server(config)
        self.broker = self.server.broker

    async def start(self) -> SharedNode:
        await self.server.start()
        await self.owning()
        return self

    async def owning(self) -> None:
        """Wait until this node has the shards that it was given."""
        while set(self.broker.subscriptions.owned) != set(self.engine.given_shards):
            await asyncio.sleep(0)

    async def stop(self) -> None:
        await self.server.stop()

    @property
    def addresses(self) -> Mapping[str, str]:
        return self.server.addresses

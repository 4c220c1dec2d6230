"""The FlyMQ client for asyncio programs, a module for each group of its calls."""

from penstock.protocols.flymq.client.client import AsyncFlyMQClient

__all__ = ["AsyncFlyMQClient"]

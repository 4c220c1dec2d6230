"""The Felix client for asyncio programs."""

from penstock.protocols.felix.client.client import AsyncFelixClient

__all__ = ["AsyncFelixClient"]

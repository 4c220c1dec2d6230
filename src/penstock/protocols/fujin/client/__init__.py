"""The Fujin client for asyncio programs."""

from penstock.protocols.fujin.client.client import AsyncFujinClient

__all__ = ["AsyncFujinClient"]

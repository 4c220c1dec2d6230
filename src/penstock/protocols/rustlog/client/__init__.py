"""The RustLog client for asyncio programs."""

from penstock.protocols.rustlog.client.client import AsyncRustLogClient

__all__ = ["AsyncRustLogClient"]

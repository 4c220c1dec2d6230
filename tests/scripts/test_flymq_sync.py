"""The sync FlyMQ client is what the async one declares."""

from __future__ import annotations

from scripts.flymq_sync import SYNC, generated


def test_the_sync_client_is_current() -> None:
    assert SYNC.read_text() == generated(), "protocols/flymq/sync.py is stale: run `make sync`"

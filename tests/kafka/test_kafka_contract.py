from __future__ import annotations

from tests.log.contract import EngineContract


class TestKafkaEngine(EngineContract):
    """The fixture `storage` is in conftest.py."""

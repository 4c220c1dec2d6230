"""Peers of other QUIC implementations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.quic import go_peer


@pytest.fixture(scope="session")
def quic_go() -> Path:
    """The program in `go-peer/`, built where it changed."""
    return go_peer.build()

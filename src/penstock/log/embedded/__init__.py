"""The embedded engine: segments on a local disk."""

from penstock.log.embedded.engine import EmbeddedEngine
from penstock.log.embedded.options import EngineOptions

__all__ = ["EmbeddedEngine", "EngineOptions"]

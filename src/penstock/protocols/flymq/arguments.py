"""A partition as a FlyMQ request carries it."""

from __future__ import annotations

from penstock.clients.arguments import index_field
from penstock.protocols.flymq.wire import PARTITION_AUTO


def partition_field(partition: int | None) -> int:
    return PARTITION_AUTO if partition is None else index_field(partition)

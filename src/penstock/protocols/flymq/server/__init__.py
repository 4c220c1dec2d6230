"""What FlyMQ requests do: a handler for each operation, which `dispatch` finds."""

from penstock.protocols.flymq.server import (
    access,
    blocks,
    groups,
    monitoring,
    producers,
    records,
    schemas,
    spark,
    topics,
    transactions,
)

__all__ = [
    "access",
    "blocks",
    "groups",
    "monitoring",
    "producers",
    "records",
    "schemas",
    "spark",
    "topics",
    "transactions",
]

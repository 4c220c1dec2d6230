"""Every operation of FlyMQ: one class for the request, with the layout of its reply. docs/flymq-protocol.md is made from them.

Numbers up to 0x7D are the contract's, but for 0x53, which deployed clients send as well as 0x80 and 0x81. 0xC0 to 0xFE are Penstock's
own, and no deployed client uses them.
"""

from penstock.protocols.flymq.operations import (
    access,
    blocks,
    groups,
    monitoring,
    records,
    schemas,
    spark,
    topics,
    transactions,
)

__all__ = ["access", "blocks", "groups", "monitoring", "records", "schemas", "spark", "topics", "transactions"]

"""What FlyMQ says about transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.protocols.flymq.wire import PARTITION_AUTO


class GroupOffset(NamedTuple):
    """The next offset that a group reads."""

    group: str
    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class TxnBegin:
    pass


@dataclass(slots=True)
class TxnProduce:
    transaction: str
    topic: str
    value: bytes
    key: bytes | None = None
    """This and the following are Penstock's own tail."""
    partition: int = PARTITION_AUTO


@dataclass(slots=True)
class TxnCommit:
    transaction: str
    offsets: list[GroupOffset] = field(default_factory=list)
    """Penstock's own tail."""


@dataclass(slots=True)
class TxnRollback:
    transaction: str


TransactionBody = TxnBegin | TxnProduce | TxnCommit | TxnRollback

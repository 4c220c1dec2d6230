"""What FlyMQ says about transactions."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Consecutive TXN_PRODUCE frames with one transaction and one topic; one reply each. Keys and partitions are Penstock's own tail."""

    transaction: str
    topic: str
    values: list[bytes]
    keys: list[bytes | None] | None = None
    """None where no record has one."""
    partitions: list[int] | None = None
    """None where every record leaves the choice to the broker."""

    def add(self, value: bytes, key: bytes | None, partition: int) -> None:
        if key is not None and self.keys is None:
            self.keys = [None] * len(self.values)
        if partition != PARTITION_AUTO and self.partitions is None:
            self.partitions = [PARTITION_AUTO] * len(self.values)
        if self.keys is not None:
            self.keys.append(key)
        if self.partitions is not None:
            self.partitions.append(partition)
        self.values.append(value)

    def records(self) -> Iterator[TxnProduce]:
        """Each record as a run of its own."""
        for row, value in enumerate(self.values):
            single = TxnProduce(self.transaction, self.topic, [])
            single.add(
                value,
                None if self.keys is None else self.keys[row],
                PARTITION_AUTO if self.partitions is None else self.partitions[row],
            )
            yield single


@dataclass(slots=True)
class TxnCommit:
    transaction: str
    offsets: list[GroupOffset] = field(default_factory=list)
    """Penstock's own tail."""


@dataclass(slots=True)
class TxnRollback:
    transaction: str


TransactionBody = TxnBegin | TxnProduce | TxnCommit | TxnRollback

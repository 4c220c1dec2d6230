"""Log epochs: how a reader notices that the log it stood in was cut.

A topic without `fsync` may lose records in a power cut that readers have seen, and give their offsets to other records later. How many
were lost cannot be determined from what is on disk. So every start that does not follow a clean stop begins a new epoch for such a topic
and remembers where each partition ended then; so does restoring a backup, for every topic. A reader keeps the epoch with its offset; if
the log was cut since, at or below that offset, what it has read is not what the log holds now, and it continues at the cut.

Epoch numbers come from the clock, not from counting: the same backup may be restored twice, and a reader of the first restored log must
not take the second one for it. A number rises above the ones before it in the topic, whatever the clock says.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

EPOCHS_MAX: Final = 32
"""Remembered for one topic. Beyond that the oldest two become one that cuts where the lower of them did."""


_NUMBERS_PER_MS: Final = 1000
"""The last digits of a number are random, in case two epochs begin in the same millisecond or the clock is behind the last epoch."""


class Epoch(NamedTuple):
    number: int
    ends: tuple[int, ...]
    """The offset after the last record of each partition when the epoch began."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs of one topic, oldest first."""

    epochs: tuple[Epoch, ...] = ()

    @property
    def current(self) -> int:
        return self.epochs[-1].number if self.epochs else 0

    def begun(self, ends: Iterable[int], now_ms: int) -> Epochs:
        """Return these epochs and a new one, whose number was never used before."""
        number = max(self.current + 1, now_ms * _NUMBERS_PER_MS) + secrets.randbelow(_NUMBERS_PER_MS)
        epochs = (*self.epochs, Epoch(number, tuple(ends)))
        if len(epochs) > EPOCHS_MAX:
            oldest, second, *rest = epochs
            lower = tuple(map(min, oldest.ends, second.ends))
            epochs = (Epoch(second.number, lower), *rest)
        return Epochs(epochs)

    def with_partitions(self, count: int) -> Epochs:
        """Return these epochs for a topic that has this many partitions now; those that are new were empty before."""
        return Epochs(tuple(Epoch(each.number, (*each.ends, *[0] * (count - len(each.ends)))) for each in self.epochs))

    def cut_since(self, epoch: int, partition: int) -> int | None:
        """Return the lowest end of the partition in the epochs after one; None if there are none, 0 for an epoch that has not been."""
        if epoch > self.current:
            return 0
        return min((each.ends[partition] for each in self.epochs if each.number > epoch), default=None)

    def encode(self) -> list[tuple[int, list[int]]]:
        return [(each.number, list(each.ends)) for each in self.epochs]

    @classmethod
    def decode(cls, epochs: Iterable[tuple[int, Iterable[int]]]) -> Epochs:
        return cls(tuple(Epoch(number, tuple(ends)) for number, ends in epochs))

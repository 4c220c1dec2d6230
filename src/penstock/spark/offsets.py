"""The offset of a stream, as Spark writes it into its checkpoint.

    {"orders":{"0":120},"__ids__":{"orders":"9b0c..."},"__epochs__":{"orders":{"0":2}},"__from__":{"orders":{"0":0}}}

Topics, partitions and offsets are those of Kafka's connector. There are more entries, under names that no topic can have. `__ids__`
tells a topic from one that was created under its name later. `__epochs__` are the log epochs of the partitions: whether the log was cut
since, so that other records may have these offsets. Checkpoints of earlier releases do not have them. `__from__` is where a batch begins
in partitions that no batch before it has seen, or that were cut below the end of the batch before it. In
the first one that is all of them: Spark asks for the start of the first batch again and again until that batch is committed, so it is
always answered the same (`{"__start__":"options"}`), and what that has meant is written down with the end of the batch. Later it is
topics that were created meanwhile. So a batch that is done again after a crash is the same batch, or fails where it no longer can be.
`__query__` tells the query from others that read the same topics, where its group is named after it.

Spark compares offsets as texts. Keys are therefore always sorted, and who has nothing new returns the offset it was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import InvalidRequest

EARLIEST: Final = -2
LATEST: Final = -1
"""As Kafka writes them."""

_IDS: Final = "__ids__"
_EPOCHS: Final = "__epochs__"
_FROM: Final = "__from__"
_START: Final = "__start__"
_QUERY: Final = "__query__"
OFFSET_KEYS: Final = frozenset({_IDS, _EPOCHS, _FROM, _START, _QUERY})

Positions = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""
Epochs = Mapping[str, Mapping[int, int]]
"""Log epochs by topic and partition; those that are not known are not among them."""

START: Final[dict[str, Any]] = {_START: "options"}
"""Where a stream begins that has read nothing: wherever its options say."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream has read."""

    positions: Positions
    ids: Mapping[str, str] = field(default_factory=dict)
    began: Positions = field(default_factory=dict)
    """Where the batch that ends here begins in partitions that it is the first to read, or to read again from a cut."""
    epochs: Epochs = field(default_factory=dict)
    query: str = ""
    """Made up when the query began; checkpoints of earlier releases do not have it."""

    def encode(self) -> dict[str, Any]:
        encoded: dict[str, Any] = _encode(self.positions)
        if self.began:
            encoded[_FROM] = _encode(self.began)
        if self.epochs:
            encoded[_EPOCHS] = _encode(self.epochs)
        if self.ids:
            encoded[_IDS] = dict(sorted(self.ids.items()))
        if self.query:
            encoded[_QUERY] = self.query
        return dict(sorted(encoded.items()))

    @classmethod
    def decode(cls, offset: Mapping[str, Any]) -> StreamOffset:
        """Raises InvalidRequest if this is no offset of ours: the checkpoint belongs to another source."""
        try:
            return cls(
                {topic: _decode(numbers) for topic, numbers in offset.items() if topic not in OFFSET_KEYS},
                cls.ids_in(offset),
                {topic: _decode(numbers) for topic, numbers in offset.get(_FROM, {}).items()},
                cls.epochs_in(offset),
                str(offset.get(_QUERY, "")),
            )
        except (AttributeError, TypeError, ValueError):
            raise InvalidRequest(
                f"{str(offset)[:200]} is not an offset of a penstock stream: the checkpoint belongs to another source, use a new one"
            ) from None

    def begin(self, start: Mapping[str, Any]) -> Positions:
        """Where the batch begins that goes from `start` to here. EARLIEST if that is not on record: older checkpoints do not have it
        for topics that were new."""
        before = StreamOffset({}) if is_start(start) else StreamOffset.decode(start)

        def of(topic: str) -> Mapping[int, int]:
            # Offsets of a topic that was deleted mean nothing in the one that has its name now.
            same = before.ids.get(topic) == self.ids.get(topic)
            return {**(before.positions.get(topic, {}) if same else {}), **self.began.get(topic, {})}

        return {
            topic: {index: of(topic).get(index, EARLIEST) for index in numbers}
            for topic, numbers in self.positions.items()
        }

    @staticmethod
    def epochs_in(offset: Mapping[str, Any]) -> Epochs:
        return {topic: _decode(numbers) for topic, numbers in offset.get(_EPOCHS, {}).items()}

    @staticmethod
    def ids_in(offset: Mapping[str, Any]) -> Mapping[str, str]:
        ids = offset.get(_IDS, {})
        return {str(topic): str(topic_id) for topic, topic_id in ids.items()} if isinstance(ids, Mapping) else {}


def is_start(offset: Mapping[str, Any]) -> bool:
    return _START in offset


def _encode(positions: Positions) -> dict[str, Any]:
    return {
        topic: {str(partition): offset for partition, offset in sorted(numbers.items())}
        for topic, numbers in sorted(positions.items())
    }


def _decode(numbers: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in numbers.items()}

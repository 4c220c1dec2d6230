from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.errors import CorruptBlock
from penstock.log.api import Batch
from penstock.log.kafka.batches import encode_batch
from penstock.log.kafka.client import Fetched, Place
from penstock.log.kafka.reader import Reader


class OneAnswer:
    """A cluster that answers every fetch with the batches from the offset on."""

    def __init__(self, *batches: bytes) -> None:
        self.batches = batches

    def leader(self, place: Place) -> int:
        return 0

    async def fetch(self, node: int, positions: Mapping[Place, int], *_: Any) -> dict[Place, Fetched]:
        [(place, offset)] = positions.items()
        return {place: Fetched(b"".join(self.batches[offset:]), len(self.batches), 0, ())}


def at(offset: int, data: bytes) -> bytes:
    return offset.to_bytes(8, "big") + data[8:]


async def test_what_lies_before_a_damaged_batch_is_read_first() -> None:
    good = encode_batch(Batch([b"good"]), 1)
    damaged = good[:-2] + b"XX"
    reader = Reader(OneAnswer(at(0, good), at(1, damaged), at(2, good)), 1.0)  # type: ignore[arg-type]
    blocks = await reader.read(("topic", 0), 0, 3, 1 << 20)
    assert [list(block.offsets()) for block in blocks] == [[0]]
    with pytest.raises(CorruptBlock) as raised:
        await reader.read(("topic", 0), 1, 3, 1 << 20)
    assert raised.value.next_offset == 2

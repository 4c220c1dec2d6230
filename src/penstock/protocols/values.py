"""Values of a block that all have one size: a reply takes them as they lie in memory, without cutting them apart."""

from __future__ import annotations

from penstock.log.block import Block

UNIFORM_ROWS_MIN = 64
UNIFORM_SHARE_MIN = 4
"""Whether all values of a block have one size is looked up for the whole block; that pays from a quarter of its rows on."""


def uniform_values(block: Block, start: int, stop: int) -> tuple[int, memoryview] | None:
    """The size of each value of these rows, and all of them back to back; None if they differ or are too few to look."""
    if stop - start < UNIFORM_ROWS_MIN or (stop - start) * UNIFORM_SHARE_MIN < block.count:
        return None
    values = block.columns().values
    cuts = values.offsets[start : stop + 1]
    first, last = int(cuts[0]), int(cuts[-1])
    value_bytes = int(cuts[1]) - first
    if values.valid is not None or not value_bytes or last - first != value_bytes * (stop - start):
        return None
    if (cuts[1:] - cuts[:-1] != value_bytes).any():
        return None
    return value_bytes, values.data[first:last]

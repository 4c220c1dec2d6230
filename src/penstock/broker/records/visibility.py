"""Which records a reader may see: those whose time to live has not ended.

Expiry is a matter of reading: an expired record keeps its offset and its bytes until retention takes them, and no reader of any protocol
is shown it. Readers continue after it, so a next offset always lies past it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.log.block import EXPIRIES, Block


def visible_rows(block: Block, start: int, stop: int, now_ms: int) -> Sequence[int] | None:
    """The rows from `start` to `stop` that a reader may see, None if that is all of them.

    Blocks without a single expiry, which are nearly all, cost one test of a flag.
    """
    expiries = block.expiry_column() if block.flags & EXPIRIES else None
    if expiries is None:
        return None
    part = expiries[start:stop]
    hidden = (part != 0) & (part <= now_ms)
    if not hidden.any():
        return None
    rows: list[int] = (np.flatnonzero(~hidden) + start).tolist()
    return rows


def is_visible(block: Block, row: int, now_ms: int) -> bool:
    expiries = block.expiry_column()
    return expiries is None or not 0 < expiries[row] <= now_ms

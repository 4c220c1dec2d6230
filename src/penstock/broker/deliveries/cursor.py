"""Where one partition is read: the place, and what is in memory of what comes next.

Blocks are read some at a time and cut into values in small runs. A record that is needed again is looked for in the block that is being
read, then in what the log has in memory, and only then on disk. It may be gone from there: retention deletes old segments, and a rewrite
leaves out what has expired or was replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from penstock.errors import OffsetOutOfRange
from penstock.log.api import Partition, follow_all
from penstock.log.block import Block

READ_BYTES: Final = 256 << 10
CHUNK_ROWS: Final = 64
"""Rows of a block that are cut at a time; their bytes are part of the block, which is in memory anyway."""


class NotInMemory(Enum):
    """The next record must be read from disk first: await `load`, then take again."""

    NOT_IN_MEMORY = "not in memory"


NOT_IN_MEMORY: Final = NotInMemory.NOT_IN_MEMORY


Taken = tuple[int, bytes | None, bytes | None]
"""Offset, value and headers; a plain tuple, because there is one for every record that is read."""


class Row(NamedTuple):
    """A record where it lies."""

    block: Block
    row: int


class Cursor:
    """One partition: where reading stands, and what is in memory of what comes next."""

    __slots__ = (
        "block",
        "chunk_expiries",
        "chunk_headers",
        "chunk_offsets",
        "chunk_start",
        "chunk_stop",
        "chunk_values",
        "handle",
        "next_blocks",
        "qos0_from",
        "read_to",
        "reread",
        "row",
        "sought",
        "start",
        "tag_base",
    )

    def __init__(self, handle: Partition, start: int, read_to: int, qos0_from: int, tag_base: int = 0) -> None:
        self.handle = handle
        self.start = start
        self.tag_base = tag_base
        self.read_to = read_to
        self.qos0_from = qos0_from
        self.reread: Block | None = None
        self.sought = -1
        """The offset for which `reread` was read: if it is not in there, it is nowhere."""
        self.forget()

    def forget(self) -> None:
        """Keep no blocks: they are read again when somebody asks."""
        self.block: Block | None = None
        self.row = 0
        self.next_blocks: deque[Block] = deque()
        self.chunk_start = self.chunk_stop = 0
        self.chunk_offsets: Sequence[int] = ()
        self.chunk_expiries: Sequence[int] | None = None
        self.chunk_values: Sequence[bytes | None] = ()
        self.chunk_headers: Sequence[bytes | None] | None = None
        self.reread = None
        self.sought = -1

    @property
    def behind(self) -> int:
        """Records that were not read yet; those that a rewrite has left out are counted too."""
        return max(0, self.handle.committed_end - max(self.read_to, self.handle.start_offset))

    def take(self, now_ms: int) -> Taken | NotInMemory | None:
        """The next record that may be seen, and move past it. None at the end of the log."""
        while True:
            if not self.chunk_start <= self.row < self.chunk_stop:
                ready = self._advance()
                if ready is not True:
                    return ready or None
            at = self.row - self.chunk_start
            offset = self.chunk_offsets[at]
            self.row += 1
            self.read_to = offset + 1
            expiries, headers = self.chunk_expiries, self.chunk_headers
            if expiries is None or not 0 < expiries[at] <= now_ms:
                return offset, self.chunk_values[at], None if headers is None else headers[at]

    def _advance(self) -> bool | NotInMemory:
        """Stand on the next row, cut and ready. False at the end of the log."""
        while self.block is None or self.row >= self.block.count:
            if self.next_blocks:
                self.block = self.next_blocks.popleft()
                self.row = self.block.index_of(self.read_to)
                self.chunk_start = self.chunk_stop = 0
                continue
            handle = self.handle
            if self.read_to >= handle.committed_end:
                self.block = None
                return False if handle.followed else NOT_IN_MEMORY
            self.read_to = max(self.read_to, handle.start_offset)
            found = handle.read_cached(self.read_to, READ_BYTES)
            if found is None:
                return NOT_IN_MEMORY
            if not found:
                return False
            self.next_blocks = deque(found)
        if not self.chunk_start <= self.row < self.chunk_stop:
            block, start, stop = self.block, self.row, min(self.row + CHUNK_ROWS, self.block.count)
            self.chunk_offsets, self.chunk_expiries = block.offsets(start, stop), block.expiries(start, stop)
            self.chunk_values, self.chunk_headers = block.values(start, stop), block.headers(start, stop)
            self.chunk_start, self.chunk_stop = start, stop
        return True

    async def load(self) -> None:
        """Read on, where `take` found nothing in memory."""
        if (self.block is None or self.row >= self.block.count) and not self.next_blocks:
            await follow_all([self.handle])
            read_to, end = max(self.read_to, self.handle.start_offset), self.handle.committed_end
            if read_to < end:
                self.next_blocks = deque(await self.handle.read(read_to, READ_BYTES))
                if not self.next_blocks:  # nothing is left up to there
                    self.read_to = max(self.read_to, end)

    def find(self, offset: int) -> Row | NotInMemory | None:
        """The record at an offset; None if it is gone."""
        for block in (self.block, self.reread):
            if block is not None and block.base_offset <= offset < block.next_offset:
                return _row_at(block, offset)
        if offset == self.sought:
            return None
        try:
            found = self.handle.read_cached(offset, 1)
        except OffsetOutOfRange:
            return None
        if found is None:
            return NOT_IN_MEMORY
        return _row_at(found[0], offset) if found else None

    async def load_again(self, offset: int) -> None:
        """Read the block with a record that is to be delivered again."""
        try:
            self.reread = next(iter(await self.handle.read(offset, 1)), None)
        except OffsetOutOfRange:
            self.reread = None
        self.sought = offset

    async def record(self, offset: int) -> Row | None:
        """The record at an offset, from disk where it must be; None if it is gone."""
        found = self.find(offset)
        if isinstance(found, NotInMemory):
            await self.load_again(offset)
            found = self.find(offset)
            assert not isinstance(found, NotInMemory)
        return found


def cells_of(found: Row) -> tuple[bytes | None, bytes | None]:
    """Value and headers of a record."""
    block, row = found
    headers = block.headers(row, row + 1)
    return block.values(row, row + 1)[0], None if headers is None else headers[0]


def _row_at(block: Block, offset: int) -> Row | None:
    row = block.index_of(offset)
    if row < block.count and block.offsets(row, row + 1)[0] == offset:
        return Row(block, row)
    return None

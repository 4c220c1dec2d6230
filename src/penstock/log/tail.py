"""Blocks kept in memory: the newest of each partition, and those recently read from disk.

Most readers are close to the end of the log. What they need is here, so they are answered at once on the event loop, and many readers
of one block share one decoded object. A reader further back takes a few rows at a time, so what was read for it stays for a while too.
Bounded per partition and in all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from penstock.log.block import Block, BlockHeader

_RECORD_BYTES: Final = 40
_BLOCK_BYTES: Final = 1000
"""Of the objects that a decoded block consists of, whatever it holds: most of the cost of a block with one small record."""
_CUT_SHARE: Final = 32
"""A full tail is cut by 1/32 of its bytes at once: moving the rest up for each new block would cost as much as writing the block."""
# Readers of one partition, each at a place of its own, whose last blocks are kept; with more of them the oldest gives way.
_RUNS_MAX: Final = 4


class TailBudget:
    """Memory for all tails together. The partition written to least recently gives way first."""

    __slots__ = ("_bytes_max", "_newest", "_tails", "bytes_used")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_used = 0
        self._tails: OrderedDict[int, Tail] = OrderedDict()
        self._newest: Tail | None = None
        """The last of them, if it is known."""

    def changed(self, tail: Tail, by_bytes: int) -> None:
        self.bytes_used += by_bytes
        if tail is not self._newest:
            self._newest = tail
            self._tails[id(tail)] = tail
            self._tails.move_to_end(id(tail))
        while self.bytes_used > self._bytes_max and self._tails:
            _, oldest = self._tails.popitem(last=False)
            self.bytes_used -= oldest.forget()
            if oldest is self._newest:
                self._newest = None

    def drop(self, tail: Tail) -> None:
        if self._tails.pop(id(tail), None) is not None:
            self.bytes_used -= tail.forget()
        if tail is self._newest:
            self._newest = None


class Tail:
    """The last blocks of one partition, without a gap between them and the committed end."""

    __slots__ = ("_blocks", "_budget", "_bytes", "_bytes_max", "_costs", "_offsets")

    def __init__(self, budget: TailBudget, bytes_max: int) -> None:
        self._budget = budget
        self._bytes_max = bytes_max
        self._bytes = 0
        self._offsets: list[int] = []
        self._costs: list[int] = []
        self._blocks: list[bytes | Block] = []
        """Decoded by the first reader that wants one. Until then they are bytes, which the garbage collector need not look at."""

    @property
    def start_offset(self) -> int | None:
        return self._offsets[0] if self._offsets else None

    @property
    def next_offset(self) -> int | None:
        if not self._blocks:
            return None
        last = self._blocks[-1]
        return (last if isinstance(last, Block) else BlockHeader(last)).next_offset

    def add(self, header: BlockHeader, data: bytes) -> None:
        self._blocks.append(data)
        self._offsets.append(header.base_offset)
        cost_bytes = header.decoded_bytes + _RECORD_BYTES * header.count + _BLOCK_BYTES  # as `_cost` says
        self._costs.append(cost_bytes)
        if self._bytes + cost_bytes <= self._bytes_max:
            self._bytes += cost_bytes
            self._budget.changed(self, cost_bytes)
        else:
            self._grown(cost_bytes)

    def extend(self, blocks: Sequence[Block]) -> None:
        """Add blocks that are decoded already."""
        self._blocks += blocks
        self._offsets += [block.base_offset for block in blocks]
        costs = [_cost(block) for block in blocks]
        self._costs += costs
        self._grown(sum(costs))

    def _grown(self, by_bytes: int) -> None:
        before = self._bytes
        self._bytes += by_bytes
        if self._bytes > self._bytes_max:
            kept_bytes_max = self._bytes_max - self._bytes_max // _CUT_SHARE
            cut = 0
            while self._bytes > kept_bytes_max and cut < len(self._blocks) - 1:
                self._bytes -= self._costs[cut]
                cut += 1
            del self._offsets[:cut], self._costs[:cut], self._blocks[:cut]
        self._budget.changed(self, self._bytes - before)

    def blocks_from(self, offset: int, max_bytes: int) -> list[Block] | None:
        """Blocks from the one that holds `offset` on, at least one; None if the tail does not reach back that far."""
        at = bisect_right(self._offsets, offset) - 1
        if at < 0:
            return None
        found: list[Block] = []
        size = 0
        for index in range(at, len(self._blocks)):
            block = self._blocks[index]
            if not isinstance(block, Block):
                if found and size + len(block) > max_bytes:
                    break  # it has at least as many bytes once it is decoded
                block = self._blocks[index] = Block(block)
            if block.next_offset <= offset:
                continue  # where compaction left a gap, the one before it does not hold the offset
            size += block.decoded_bytes
            if found and size > max_bytes:
                break
            found.append(block)
        return found

    def forget(self) -> int:
        """Empty the tail; returns how many bytes that freed."""
        freed = self._bytes
        self._bytes = 0
        self._offsets.clear()
        self._costs.clear()
        self._blocks.clear()
        return freed


class RecentReads:
    """Blocks of one partition that were recently read from disk, as a few runs without gaps: one for each reader, roughly."""

    __slots__ = ("_budget", "_bytes_max", "_runs")

    def __init__(self, budget: TailBudget, bytes_max: int) -> None:
        self._budget = budget
        self._bytes_max = bytes_max
        self._runs: list[Tail] = []

    def blocks_from(self, offset: int, max_bytes: int) -> list[Block] | None:
        """Blocks from the one that holds `offset` on, as far as they are here; None if that one is not."""
        for run in reversed(self._runs):
            start, following = run.start_offset, run.next_offset
            if start is not None and following is not None and start <= offset < following:
                return run.blocks_from(offset, max_bytes)
        return None

    def add(self, blocks: Sequence[Block]) -> None:
        """Keep what was just read; the run that it continues grows at its end and shrinks at its beginning."""
        run = next((run for run in self._runs if run.next_offset == blocks[0].base_offset), None)
        if run is None:
            run = Tail(self._budget, self._bytes_max)
        else:
            self._runs.remove(run)
        self._runs.append(run)
        run.extend(blocks)
        for oldest in self._runs[:-_RUNS_MAX]:
            self._budget.drop(oldest)
        self._runs = [run for run in self._runs[-_RUNS_MAX:] if run.start_offset is not None]

    def forget(self) -> None:
        for run in self._runs:
            self._budget.drop(run)
        self._runs.clear()


def _cost(header: BlockHeader) -> int:
    """What a block may come to hold in memory: a reader decompresses it and keeps where each record begins."""
    return header.decoded_bytes + _RECORD_BYTES * header.count + _BLOCK_BYTES

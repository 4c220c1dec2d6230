from __future__ import annotations

import gc
import tracemalloc

from penstock.log.block import Block, BlockHeader, encode_block
from penstock.log.tail import RecentReads, Tail, TailBudget


def add(tail: Tail, offset: int, value: bytes = b"x" * 10_000, *, compress: bool = False) -> None:
    data = encode_block(offset, 0, [value], compress=compress)
    tail.add(BlockHeader(data), data)


def offsets(blocks: list[Block] | None) -> list[int] | None:
    return None if blocks is None else [block.base_offset for block in blocks]


def test_the_newest_blocks_are_kept_and_the_oldest_give_way() -> None:
    tail = Tail(TailBudget(1 << 30), bytes_max=35_000)
    for offset in range(10):
        add(tail, offset)
    assert tail.start_offset == 7
    assert offsets(tail.blocks_from(7, 1 << 20)) == [7, 8, 9]
    assert offsets(tail.blocks_from(9, 1 << 20)) == [9]
    assert tail.blocks_from(6, 1 << 20) is None


def test_a_full_tail_gives_up_a_small_share_at_once() -> None:
    budget = TailBudget(1 << 30)
    tail = Tail(budget, bytes_max=1_000_000)
    starts = set()
    for offset in range(3000):
        add(tail, offset, b"x" * 100)
        assert budget.bytes_used <= 1_000_000
        if offset >= 1000:
            assert budget.bytes_used > 960_000, "it is hardly less full than before"
            starts.add(tail.start_offset)
    assert len(starts) < 200, "most blocks come without moving the others"


def test_a_block_larger_than_the_tail_is_kept_alone() -> None:
    tail = Tail(TailBudget(1 << 30), bytes_max=100)
    add(tail, 0)
    add(tail, 1)
    assert offsets(tail.blocks_from(1, 1)) == [1]
    assert tail.blocks_from(0, 1) is None


def test_at_least_one_block_is_given_and_more_while_they_fit() -> None:
    tail = Tail(TailBudget(1 << 30), bytes_max=1 << 20)
    for offset in range(5):
        add(tail, offset)
    assert offsets(tail.blocks_from(1, 1)) == [1]
    assert offsets(tail.blocks_from(1, 25_000)) == [1, 2]
    assert offsets(tail.blocks_from(1, 1 << 20)) == [1, 2, 3, 4]


def test_readers_share_one_decoded_block() -> None:
    tail = Tail(TailBudget(1 << 30), bytes_max=1 << 20)
    add(tail, 0)
    first, second = tail.blocks_from(0, 1), tail.blocks_from(0, 1)
    assert first is not None
    assert second is not None
    assert first[0] is second[0]


def test_an_empty_tail_has_nothing() -> None:
    tail = Tail(TailBudget(1 << 30), bytes_max=1 << 20)
    assert tail.start_offset is None
    assert tail.blocks_from(0, 1) is None


def test_all_tails_together_keep_to_the_budget_and_the_one_written_to_least_recently_gives_way() -> None:
    budget = TailBudget(100_000)
    tails = [Tail(budget, bytes_max=50_000) for _ in range(4)]
    for number, tail in enumerate(tails):
        for offset in range(4):
            add(tail, 10 * number + offset)
        assert budget.bytes_used <= 100_000
    assert tails[0].start_offset is None
    assert tails[3].start_offset == 30
    add(tails[0], 100)
    assert offsets(tails[0].blocks_from(100, 1)) == [100], "it begins again where it is written to"
    assert tails[0].blocks_from(99, 1) is None


def test_a_budget_smaller_than_one_block_keeps_nothing_and_counts_right() -> None:
    budget = TailBudget(10)
    tail = Tail(budget, bytes_max=5000)
    for offset in range(5):
        add(tail, offset)
        assert budget.bytes_used == 0
        assert tail.blocks_from(offset, 1) is None


def test_a_dropped_tail_gives_its_memory_back_once() -> None:
    budget = TailBudget(1 << 20)
    kept, dropped = Tail(budget, 1 << 20), Tail(budget, 1 << 20)
    add(kept, 0)
    used = budget.bytes_used
    add(dropped, 0)
    budget.drop(dropped)
    budget.drop(dropped)
    assert budget.bytes_used == used
    assert dropped.start_offset is None


def test_compressed_blocks_count_as_what_they_become() -> None:
    budget = TailBudget(1 << 30)
    tail = Tail(budget, bytes_max=1 << 20)
    for offset in range(100):
        add(tail, offset, bytes(100_000), compress=True)
    assert tail.start_offset is not None
    assert tail.start_offset >= 89, "a hundred of these take 10 MB once they are read"
    assert len(tail.blocks_from(tail.start_offset, 250_000) or []) == 2


def test_many_tiny_records_count_for_what_each_costs() -> None:
    budget = TailBudget(1 << 30)
    tail = Tail(budget, bytes_max=1 << 20)
    data = encode_block(0, 0, [b"x"] * 1000)
    tail.add(BlockHeader(data), data)
    assert budget.bytes_used > 40_000


def test_blocks_of_one_small_record_count_for_what_they_take() -> None:
    budget = TailBudget(1 << 30)
    tail = Tail(budget, bytes_max=1 << 30)
    count = 1000
    tracemalloc.start()
    try:
        for offset in range(count):
            data = encode_block(1_000_000 + offset, 1_800_000_000_000 + offset, [b"%010d" % offset], seal=1 << 31)
            tail.add(BlockHeader(data), data)
        blocks = tail.blocks_from(1_000_000, 1 << 30)
        assert blocks is not None
        for block in blocks:
            assert len(block.values()[0] or b"") == 10
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(blocks) == count
    assert taken_bytes <= budget.bytes_used <= 2 * taken_bytes


def test_blocks_that_nobody_reads_give_the_garbage_collector_nothing_to_look_at() -> None:
    tail = Tail(TailBudget(1 << 30), bytes_max=1 << 30)
    gc.collect()
    before = len(gc.get_objects())
    for offset in range(1000):
        add(tail, offset, b"x" * 100)
    assert len(gc.get_objects()) - before < 100
    assert offsets(tail.blocks_from(998, 1 << 20)) == [998, 999]


def decoded(*block_offsets: int) -> list[Block]:
    return [Block(encode_block(offset, 0, [b"x" * 10_000])) for offset in block_offsets]


def test_what_was_read_is_found_again_and_what_was_not_is_not() -> None:
    recent = RecentReads(TailBudget(1 << 30), bytes_max=1 << 20)
    recent.add(decoded(5, 6))
    assert offsets(recent.blocks_from(5, 1 << 20)) == [5, 6]
    assert offsets(recent.blocks_from(6, 1)) == [6]
    assert recent.blocks_from(4, 1) is None
    assert recent.blocks_from(7, 1) is None


def test_reading_on_moves_the_run_along() -> None:
    recent = RecentReads(TailBudget(1 << 30), bytes_max=25_000)
    for offset in range(10):
        recent.add(decoded(offset))
    assert offsets(recent.blocks_from(8, 1 << 20)) == [8, 9]
    assert recent.blocks_from(7, 1) is None


def test_a_few_readers_keep_their_places_and_the_one_that_read_last_stays() -> None:
    budget = TailBudget(1 << 30)
    recent = RecentReads(budget, bytes_max=1 << 20)
    for place in range(0, 600, 100):
        recent.add(decoded(place))
        recent.add(decoded(1000 + place // 100))  # another one, which reads on
    assert [place for place in range(0, 600, 100) if recent.blocks_from(place, 1)] == [300, 400, 500]
    assert offsets(recent.blocks_from(1000, 1 << 20)) == [1000, 1001, 1002, 1003, 1004, 1005]
    recent.forget()
    assert recent.blocks_from(500, 1) is None
    assert budget.bytes_used == 0


def test_what_was_read_counts_against_the_budget_and_may_have_to_go() -> None:
    budget = TailBudget(25_000)
    recent = RecentReads(budget, bytes_max=1 << 20)
    recent.add(decoded(0))
    tail = Tail(budget, bytes_max=1 << 20)
    add(tail, 70)
    add(tail, 71)
    assert recent.blocks_from(0, 1) is None
    recent.add(decoded(1, 2))
    assert offsets(recent.blocks_from(1, 1 << 20)) == [1, 2]
    assert tail.start_offset is None

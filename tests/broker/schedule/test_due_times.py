"""The queue of due times, held against a sorted list, and its size."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.schedule import due_times
from penstock.broker.schedule.due_times import Due, DueTimes

TIMES = st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TIMES),
        st.tuples(st.just("add_many"), st.lists(TIMES, max_size=6)),
        st.tuples(st.just("remove"), st.integers(0, 40)),
        st.tuples(st.just("take"), TIMES, st.integers(1, 5)),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_it_does_what_a_sorted_list_would(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_times, "RUN_ENTRIES", 4)
        queue = DueTimes()
        known: list[Due] = []
        model: list[Due] = []
        for step in steps:
            if step[0] == "add":
                known.append((step[1], len(known)))
                model.append(known[-1])
                queue.add(*known[-1])
            elif step[0] == "add_many":
                many = [(due, len(known) + at) for at, due in enumerate(step[1])]
                known += many
                model += many
                queue.add_many(np.array([due for due, _ in many], np.int64), np.array([at for _, at in many], np.int64))
            elif step[0] == "remove" and known:
                one = known[step[1] % len(known)]
                assert queue.remove(*one) == (one in model)
                if one in model:
                    model.remove(one)
            elif step[0] == "take":
                expected = sorted(due for due in model if due[0] <= step[1])[: step[2]]
                assert queue.take_until(step[1], step[2]) == expected
                model = [due for due in model if due not in expected]
            assert queue.following((0, -1), 3) == sorted(model)[:3]
            assert queue.following((4, 2), 100) == sorted(due for due in model if due > (4, 2))
            assert len(queue) == len(model)
            assert queue.next_due_ms == min((due for due, _ in model), default=None)


def test_an_entry_that_waits_takes_less_than_20_bytes() -> None:
    entries = 6 * due_times.RUN_ENTRIES
    tracemalloc.start()
    try:
        queue = DueTimes()
        for offset in range(entries):
            queue.add(1_700_000_000_000 + offset * 7919 % 3_600_000, offset)
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(queue) == entries
    assert used_bytes / entries < 20
    assert queue.take_until(1_800_000_000_000, entries) == sorted(
        (1_700_000_000_000 + offset * 7919 % 3_600_000, offset) for offset in range(entries)
    )

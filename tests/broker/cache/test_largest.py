"""Who has the most, however they grow and shrink."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.cache.largest import OUTDATED_MAX, Largest

HOLDERS = "abcdef"


@given(st.lists(st.tuples(st.sampled_from(HOLDERS), st.integers(0, 20)), min_size=1, max_size=200))
def test_it_is_always_one_that_has_most(changes: list[tuple[str, int]]) -> None:
    weights: dict[str, int] = {}
    largest = Largest(lambda holder: weights[holder])
    for holder, weight in changes:
        if weight == 0 and weights.keys() - {holder}:
            weights.pop(holder, None)
            largest.forget(holder)
        else:
            weights[holder] = weight
            largest.note(holder)
        found = largest.find()
        assert found is not None
        assert weights[found] == max(weights.values())
        others = {name: weight for name, weight in weights.items() if name != found}
        second = largest.find(besides=found)
        assert (second is None) == (not others)
        assert second is None or weights[second] == max(others.values())
        assert largest.find() == found


def test_of_equals_it_is_the_one_that_was_noted_first() -> None:
    weights = dict.fromkeys("cab", 1)
    largest = Largest(lambda holder: weights[holder])
    for holder in weights:
        largest.note(holder)
    assert largest.find() == "c"
    largest.forget("c")
    assert largest.find() == "a"


def test_what_is_noted_is_bounded_however_often_they_change() -> None:
    weights = dict.fromkeys(HOLDERS, 0)
    largest = Largest(lambda holder: weights[holder])
    for step in range(10_000):
        holder = HOLDERS[step % len(HOLDERS)]
        weights[holder] = step
        largest.note(holder)
        assert len(largest._heap) <= 2 * len(HOLDERS) + OUTDATED_MAX
    assert largest.find() == HOLDERS[9_999 % len(HOLDERS)]

"""The numbers of one producer: what is new, what is repeated, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.idempotence.sequences import IN_FLIGHT_MAX, Sequences, Verdict
from penstock.errors import InvalidRequest, OutOfOrderSequence

Waiter = Callable[[str | None], None]


def nobody(answer: str | None) -> None:
    pass


def store(sequences: Sequences[str, Waiter], sequence: int, floor: int | None = None) -> None:
    assert sequences.admit(sequence, sequence if floor is None else floor, resent=False) is Verdict.NEW
    sequences.begin(sequence, nobody)
    sequences.end(sequence, f"answer {sequence}")


def test_a_request_that_was_stored_is_repeated_until_its_producer_says_that_it_has_the_answer() -> None:
    sequences: Sequences[str, Waiter] = Sequences()
    store(sequences, 0)
    assert sequences.admit(0, 0, resent=True) is Verdict.REPEATED
    assert sequences.answers == {0: "answer 0"}
    store(sequences, 1, floor=1)
    assert sequences.answers == {1: "answer 1"}
    with pytest.raises(OutOfOrderSequence, match=r"sequence 0 is out of order: .* all below 1 are settled"):
        sequences.admit(0, 0, resent=True)


def test_numbers_that_were_left_out_may_still_come() -> None:
    sequences: Sequences[str, Waiter] = Sequences()
    store(sequences, 0)
    store(sequences, 3, floor=1)
    store(sequences, 2, floor=1)
    assert sequences.admit(3, 1, resent=True) is Verdict.REPEATED
    assert sequences.admit(1, 1, resent=True) is Verdict.NEW


def test_requests_in_flight_are_told_apart_from_new_ones_and_ended_once() -> None:
    sequences: Sequences[str, Waiter] = Sequences()
    told: list[str | None] = []
    assert sequences.admit(0, 0, resent=False) is Verdict.NEW
    sequences.begin(0, told.append)
    assert sequences.admit(1, 0, resent=False) is Verdict.NEW
    assert sequences.admit(0, 0, resent=True) is Verdict.IN_FLIGHT
    sequences.wait(0, told.append)
    assert sequences.end(0, "stored") == [told.append, told.append]
    assert sequences.end(0, "stored") == []


def test_what_was_refused_may_come_again_under_its_number() -> None:
    sequences: Sequences[str, Waiter] = Sequences()
    for sequence in (0, 1):
        assert sequences.admit(sequence, 0, resent=False) is Verdict.NEW
        sequences.begin(sequence, nobody)
    sequences.end(0, None)
    sequences.end(1, "answer 1")
    assert sequences.admit(0, 0, resent=True) is Verdict.NEW
    assert sequences.admit(1, 0, resent=True) is Verdict.REPEATED


def test_only_so_many_requests_are_in_flight() -> None:
    sequences: Sequences[str, Waiter] = Sequences()
    for sequence in range(IN_FLIGHT_MAX):
        store(sequences, sequence, floor=0)
    with pytest.raises(OutOfOrderSequence, match=f"at most {IN_FLIGHT_MAX} requests in flight"):
        sequences.admit(IN_FLIGHT_MAX, 0, resent=False)
    with pytest.raises(InvalidRequest, match="lies below the lowest that has no answer"):
        sequences.admit(3, 4, resent=False)
    assert len(sequences.answers) == IN_FLIGHT_MAX
    store(sequences, IN_FLIGHT_MAX, floor=1)
    assert len(sequences.answers) == IN_FLIGHT_MAX


def test_an_answer_that_comes_after_its_producer_has_given_up_is_not_kept() -> None:
    sequences: Sequences[str, Waiter] = Sequences()
    assert sequences.admit(0, 0, resent=False) is Verdict.NEW
    sequences.begin(0, nobody)
    store(sequences, 1, floor=1)
    sequences.end(0, "late")
    assert sequences.answers == {1: "answer 1"}


def test_what_an_earlier_run_of_the_broker_may_have_stored_ends_at_the_first_new_request() -> None:
    loaded: Sequences[str, Waiter] = Sequences(from_log=True)
    loaded.end(4, "answer 4")
    assert loaded.admit(5, 4, resent=True) is Verdict.NEW
    assert loaded.may_be_forgotten(5)
    loaded.begin(5, nobody)
    assert loaded.admit(6, 4, resent=False) is Verdict.NEW
    assert loaded.may_be_forgotten(5)
    assert not loaded.may_be_forgotten(6)
    assert not loaded.may_be_forgotten(7)
    assert not Sequences().may_be_forgotten(0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans(), st.booleans()), max_size=60))
def test_nothing_is_stored_twice_and_what_is_kept_is_bounded_whatever_a_client_sends(
    requests: list[tuple[int, int, bool, bool]],
) -> None:
    sequences: Sequences[str, Waiter] = Sequences()
    stored: set[int] = set()
    for sequence, floor, resent, succeeds in requests:
        try:
            verdict = sequences.admit(sequence, floor, resent=resent)
        except (InvalidRequest, OutOfOrderSequence):
            continue
        if verdict is Verdict.NEW:
            assert sequence not in stored
            sequences.begin(sequence, nobody)
            sequences.end(sequence, f"answer {sequence}" if succeeds else None)
            if succeeds:
                stored.add(sequence)
        else:
            assert sequence in stored
            assert sequences.answers[sequence] == f"answer {sequence}"
        assert len(sequences.answers) <= IN_FLIGHT_MAX

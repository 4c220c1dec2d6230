"""States of a transaction: which may follow which."""

from __future__ import annotations

import pytest

from penstock.broker.transactions.states import FOLLOWING, State, Transaction

ENDS = {State.COMMITTED, State.ROLLED_BACK, State.TIMED_OUT, State.UNKNOWN}


def test_every_state_leads_to_an_end_and_only_ends_are_final() -> None:
    assert set(FOLLOWING) == set(State)
    assert {state for state in State if not FOLLOWING[state]} == ENDS
    for state in State:
        reached, seen = {state}, {state}
        while reached:
            reached = {following for each in reached for following in FOLLOWING[each]} - seen
            seen |= reached
        assert seen & ENDS


def test_what_is_decided_is_never_open_again() -> None:
    assert State.OPEN in FOLLOWING[State.COMMITTING]
    assert FOLLOWING[State.PUBLISHING] == {State.COMMITTED, State.UNKNOWN}


@pytest.mark.parametrize("state", State)
def test_a_transaction_takes_no_step_that_is_not_allowed(state: State) -> None:
    for following in State:
        transaction = Transaction("alice", state)
        if following in FOLLOWING[state]:
            transaction.become(following)
            assert transaction.state is following
        else:
            with pytest.raises(AssertionError, match="cannot become"):
                transaction.become(following)
            assert transaction.state is state

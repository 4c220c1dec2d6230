"""The states of a transaction, and which may follow which.

    opening --> open --> committing --> committed            all of it in one append
       |         |  ^--------' |`-----> publishing --> committed
       |         |             |            |          decided, and published a chunk at a time
       |         |             `--> unknown <'         the flush failed: only a restart can tell
       |         `--> timed out
       `---------`--> rolled back

A transaction that gathers records in memory (`transactions`) is open at once, and committed in one append. One that stages them in the log
(`tickets`) is opened by an entry in a table, and several of them are committed together (`publication`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class State(Enum):
    """The value says in an error why a transaction takes no more records."""

    OPENING = "it is being opened"
    OPEN = "open"
    COMMITTING = "it is being committed"
    """Whether it is committed is not decided: it may be open again."""
    PUBLISHING = "it is being published"
    """It is committed, but not all of its records can be read yet."""
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    TIMED_OUT = "timed out"
    UNKNOWN = "its commit failed with an outcome that only a restart of the broker can tell"

    def then(self, state: State) -> State:
        """Return the state that follows."""
        assert state in FOLLOWING[self], f"a transaction cannot become {state} from {self}"
        return state


FOLLOWING: Final[Mapping[State, frozenset[State]]] = {
    State.OPENING: frozenset({State.OPEN, State.ROLLED_BACK}),
    State.OPEN: frozenset({State.COMMITTING, State.ROLLED_BACK, State.TIMED_OUT}),
    State.COMMITTING: frozenset({State.OPEN, State.PUBLISHING, State.COMMITTED, State.UNKNOWN}),
    State.PUBLISHING: frozenset({State.COMMITTED, State.UNKNOWN}),
    State.COMMITTED: frozenset(),
    State.ROLLED_BACK: frozenset(),
    State.TIMED_OUT: frozenset(),
    State.UNKNOWN: frozenset(),
}


class Transaction:
    """Records of one owner that become visible together or not at all."""

    __slots__ = ("owner", "size_bytes", "state")

    def __init__(self, owner: str, state: State) -> None:
        self.owner = owner
        self.state = state
        self.size_bytes = 0
        """What it counts for in the bounds on all transactions."""

    def become(self, state: State) -> None:
        self.state = self.state.then(state)

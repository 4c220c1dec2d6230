"""The sequence numbers of one producer.

A producer numbers its requests from 0. With each it says the lowest number whose answer it still waits for, its floor: what lies below is
settled, whatever became of it, and is forgotten here. So at most IN_FLIGHT_MAX answers are kept, and what is neither kept nor in flight
but not below the floor was certainly not stored: it may be, however often it was refused before.

Numbers may be left out: a request may have been refused before it came here, for its topic or its principal, while those after it were
on their way already. A number that is further from the floor than requests may be in flight is a fault of the client, and is refused, as
is one below the floor: it may have been stored, and its answer is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Generic, TypeVar

from penstock.errors import InvalidRequest, OutOfOrderSequence

IN_FLIGHT_MAX: Final = 16
"""Requests of one producer without an answer. A client sends 1024 records in each, and as many of them without sequence numbers."""

_Answer = TypeVar("_Answer")
_Waiter = TypeVar("_Waiter", bound=Callable[..., object])


class Verdict(Enum):
    NEW = "new"
    REPEATED = "repeated"
    """It was stored before: the answer is kept."""
    IN_FLIGHT = "in flight"
    """It came before and is being stored."""


class Sequences(Generic[_Answer, _Waiter]):
    """The state of one producer: `admit` each request, `begin` those that are new, and `end` each of them once."""

    __slots__ = ("answers", "floor", "in_flight", "this_run_from")

    def __init__(self, *, from_log: bool = False) -> None:
        """`from_log`: a run of the broker before this one may have stored what nothing is known of (see `may_be_forgotten`)."""
        self.floor = 0
        self.answers: dict[int, _Answer] = {}
        """Of requests that were stored, from the floor on."""
        self.in_flight: dict[int, list[_Waiter]] = {}
        """Who waits for each request that is being stored."""
        self.this_run_from: int | None = None if from_log else 0
        """Requests from this one on were never sent to an earlier run of the broker; None while none is known to be."""

    def admit(self, sequence: int, floor: int, *, resent: bool) -> Verdict:
        """Say what a request is, and forget the answers below its floor.

        Raises OutOfOrderSequence if it is settled, or too far ahead.
        """
        if floor > sequence:
            raise InvalidRequest(f"sequence {sequence} lies below the lowest that has no answer, {floor}")
        if sequence - floor >= IN_FLIGHT_MAX:
            raise OutOfOrderSequence(
                f"sequence {sequence} is out of order: the lowest without an answer is {floor}, and a producer has at most "
                f"{IN_FLIGHT_MAX} requests in flight"
            )
        if floor > self.floor:
            self.settle_below(floor)
        if sequence < self.floor:
            raise OutOfOrderSequence(
                f"sequence {sequence} is out of order: the producer has said that all below {self.floor} are settled"
            )
        if not resent and (self.this_run_from is None or sequence < self.this_run_from):
            self.this_run_from = sequence
        if sequence in self.answers:
            return Verdict.REPEATED
        if sequence in self.in_flight:
            return Verdict.IN_FLIGHT
        return Verdict.NEW

    def may_be_forgotten(self, sequence: int) -> bool:
        """Whether an earlier run of the broker may have stored it, if it was to keep no answer in the log."""
        return self.this_run_from is None or sequence < self.this_run_from

    def settle_below(self, floor: int) -> None:
        """Forget the answers below a floor that has risen."""
        self.floor = floor
        for sequence in tuple(self.answers):
            if sequence < floor:
                del self.answers[sequence]

    def begin(self, sequence: int, waiter: _Waiter) -> None:
        """A request that is new is being stored."""
        self.in_flight[sequence] = [waiter]

    def wait(self, sequence: int, waiter: _Waiter) -> None:
        """Tell another one what becomes of a request in flight."""
        self.in_flight[sequence].append(waiter)

    def end(self, sequence: int, answer: _Answer | None) -> list[_Waiter]:
        """Keep the answer of a request that was stored, None if nothing of it was; returns who is to be told."""
        if answer is not None and sequence >= self.floor:
            self.answers[sequence] = answer
        return self.in_flight.pop(sequence, [])

"""Replies leave in order, and together when they become ready together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.protocols.replies import GATHERED_BYTES_MAX, ReplyQueue


class Wire:
    """Collects what is sent, and runs what is scheduled when told to."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.scheduled: list[Callable[[], None]] = []

    def turn(self) -> None:
        scheduled, self.scheduled = self.scheduled, []
        for callback in scheduled:
            callback()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def replies(wire: Wire) -> ReplyQueue:
    return ReplyQueue(wire.sent.append, wire.scheduled.append)


def test_a_reply_that_is_ready_early_waits_for_those_before_it(replies: ReplyQueue, wire: Wire) -> None:
    first, second, third = replies.reserve(), replies.reserve(), replies.reserve()
    replies.fill(third, b"3")
    replies.fill(second, b"2")
    replies.flush()
    assert wire.sent == []
    replies.fill(first, b"1")
    replies.flush()
    assert wire.sent == [b"123"]


def test_replies_that_become_ready_in_one_turn_leave_as_one_send(replies: ReplyQueue, wire: Wire) -> None:
    slots = [replies.reserve() for _ in range(3)]
    for number, slot in enumerate(slots):
        replies.fill(slot, b"%d" % number)
        replies.flush_soon()
    assert wire.sent == []
    assert len(wire.scheduled) == 1
    wire.turn()
    assert wire.sent == [b"012"]


def test_flushing_nothing_sends_nothing(replies: ReplyQueue, wire: Wire) -> None:
    replies.flush()
    replies.flush_soon()
    wire.turn()
    assert wire.sent == []


def test_ready_replies_are_not_gathered_without_bound(replies: ReplyQueue, wire: Wire) -> None:
    replies.fill(replies.reserve(), b"a")
    replies.fill(replies.reserve(), bytes(GATHERED_BYTES_MAX))
    assert wire.sent == [b"a" + bytes(GATHERED_BYTES_MAX)]

"""Flow control: which bits stop a socket from being read, and the order in which connections are let in again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from penstock.net.flow import (
    ENDING,
    PARTIAL_BYTES_FREE,
    PARTIAL_SHARE,
    RESUMED_PER_TURN_MAX,
    ROOM_GRANTED_PER_TURN_MAX,
    SEND_BUFFER,
    UNSENT_BYTES_FREE,
    InFlightBudget,
    ReadFlow,
)
from penstock.net.stats import ListenerStats


class FakeSocket:
    def __init__(self) -> None:
        self.reading = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True


class Turns:
    """An event loop of which the test runs one turn at a time."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def run_one(self) -> bool:
        ready, self._soon = self._soon, deque()
        for callback in ready:
            callback()
        return bool(ready)


class Flows:
    def __init__(self, count: int, *, own_bytes_max: int = 100, total_bytes_max: int = 1000) -> None:
        self.turns = Turns()
        self.stats = ListenerStats()
        self.budget = InFlightBudget(total_bytes_max, self.turns.call_soon)
        self.sockets = [FakeSocket() for _ in range(count)]
        self.flows = [ReadFlow(socket, own_bytes_max, self.budget, self.stats) for socket in self.sockets]

    def read(self) -> list[bool]:
        """Which sockets are being read."""
        return [socket.reading for socket in self.sockets]


def test_a_connection_is_read_until_it_holds_more_than_its_bound() -> None:
    given = Flows(1)
    given.flows[0].hold(100)
    assert given.read() == [True]
    given.flows[0].hold(1)
    assert given.read() == [False]
    assert given.stats.read_pauses == 1


def test_reading_starts_again_at_half_the_bound() -> None:
    given = Flows(1)
    given.flows[0].hold(101)
    given.flows[0].release(50)
    assert given.read() == [False]
    given.flows[0].release(1)
    assert given.read() == [True]


def test_a_request_larger_than_the_bound_is_taken_and_stops_the_next() -> None:
    given = Flows(1)
    given.flows[0].hold(5000)
    assert given.read() == [False]
    given.flows[0].release(5000)
    given.turns.run_one()
    assert given.read() == [True]


def test_every_reason_must_pass_before_a_socket_is_read_again() -> None:
    given = Flows(1)
    flow = given.flows[0]
    flow.block(SEND_BUFFER)
    flow.hold(101)
    assert given.stats.read_pauses == 1
    flow.unblock(SEND_BUFFER)
    assert given.read() == [False]
    flow.release(101)
    assert given.read() == [True]


def test_ending_is_not_counted_as_back_pressure() -> None:
    given = Flows(1)
    given.flows[0].block(ENDING)
    assert not given.flows[0].reading
    assert given.stats.read_pauses == 0


def test_the_servers_bound_stops_those_who_bring_more() -> None:
    given = Flows(3, own_bytes_max=10_000)
    given.flows[0].hold(900)
    given.flows[1].hold(101)
    assert given.read() == [True, False, True]
    given.flows[0].release(500)
    assert not given.turns.run_one()  # 501 is still above half
    given.flows[0].release(1)
    given.turns.run_one()
    assert given.read() == [True, True, True]


def test_waiting_connections_are_let_in_a_few_per_turn_and_in_order() -> None:
    count = 3 * RESUMED_PER_TURN_MAX
    given = Flows(count, own_bytes_max=10_000, total_bytes_max=10)
    given.flows[0].hold(20)
    for flow in given.flows[1:]:
        flow.hold(1)
    assert len(given.budget.stopped) == count
    for flow in reversed(given.flows):
        flow.release(flow.held_bytes)
    for turn in (1, 2, 3):
        assert given.turns.run_one()
        assert given.read() == [index < turn * RESUMED_PER_TURN_MAX for index in range(count)]
    assert not given.turns.run_one()


def test_letting_in_stops_when_those_let_in_bring_enough() -> None:
    count = 2 * RESUMED_PER_TURN_MAX
    given = Flows(count, own_bytes_max=10_000, total_bytes_max=10)
    for flow in given.flows:
        flow.hold(11)
    for flow in given.flows:
        flow.release(11)
    given.turns.run_one()
    given.flows[0].hold(20)
    given.turns.run_one()
    assert len(given.budget.stopped) == RESUMED_PER_TURN_MAX + 1
    given.flows[0].release(20)
    while given.turns.run_one():
        pass
    assert all(given.read())


def test_a_lost_connection_is_not_read_again_and_its_bytes_stay_counted_until_released() -> None:
    given = Flows(1, total_bytes_max=10)
    flow = given.flows[0]
    flow.hold(20)
    flow.lost()
    assert len(given.budget.stopped) == 0
    assert given.budget.held_bytes == 20
    flow.release(20)
    assert not given.turns.run_one()
    assert given.budget.held_bytes == 0
    assert given.read() == [False]


def test_releasing_more_than_was_held_is_a_bug_that_shows() -> None:
    given = Flows(1)
    given.flows[0].hold(1)
    with pytest.raises(AssertionError, match="released more"):
        given.flows[0].release(2)


# -- partial frames ------------------------------------------------------------------------------------------------------------

LARGE = 2 * PARTIAL_BYTES_FREE
"""Of a partial frame; the budgets below have room for two of them."""


def partial_flows(count: int) -> Flows:
    given = Flows(count, own_bytes_max=100 * LARGE, total_bytes_max=PARTIAL_SHARE * 2 * LARGE)
    for flow in given.flows:
        flow.update_partial(LARGE)
    return given


def test_partial_frames_are_received_until_they_use_their_share_of_the_budget() -> None:
    given = partial_flows(4)
    assert given.read() == [True, True, False, False]
    assert given.budget.partial.waiting == 2
    assert given.budget.partial.total_bytes == 4 * LARGE


def test_the_frame_that_began_first_is_always_received() -> None:
    given = partial_flows(3)
    for size in range(LARGE, 20 * LARGE, LARGE):
        given.flows[0].update_partial(size)
    assert given.read() == [True, True, False]
    given.flows[1].update_partial(LARGE + 1)
    assert given.read() == [True, False, False]


def test_small_frames_are_received_whatever_the_others_have() -> None:
    given = partial_flows(3)
    small = ReadFlow(FakeSocket(), 100, given.budget, given.stats)
    small.update_partial(PARTIAL_BYTES_FREE)
    assert small.reading


def test_partial_frames_leave_half_of_the_budget_to_requests() -> None:
    given = partial_flows(6)
    for _ in range(PARTIAL_SHARE):
        given.flows[0].hold(LARGE)
    assert given.flows[0].reading
    given.flows[0].hold(1)
    assert not given.flows[0].reading


def test_a_frame_that_is_finished_lets_the_next_in_order_be_received() -> None:
    given = partial_flows(4)
    given.flows[1].update_partial(LARGE + 1)
    assert given.read() == [True, False, False, False]
    given.flows[0].update_partial(0)
    given.turns.run_one()
    assert given.read() == [True, True, False, False]
    given.flows[1].update_partial(0)
    given.turns.run_one()
    assert given.read() == [True, True, True, False]
    given.flows[2].update_partial(0)
    given.turns.run_one()
    assert all(given.read())


def test_a_connection_that_is_lost_makes_room() -> None:
    given = partial_flows(4)
    for flow in given.flows[:3]:
        flow.lost()
    given.turns.run_one()
    assert given.flows[3].reading
    assert given.budget.partial.total_bytes == LARGE


def test_one_that_is_stopped_for_another_reason_does_not_hold_up_those_after_it() -> None:
    given = partial_flows(4)
    given.flows[1].update_partial(LARGE + 1)
    assert given.read() == [True, False, False, False]
    given.flows[0].block(SEND_BUFFER)
    given.turns.run_one()
    assert given.read() == [False, True, False, False]


def test_connections_that_were_stopped_for_two_reasons_are_resumed_when_the_other_one_passes() -> None:
    given = partial_flows(4)
    for flow in given.flows:
        flow.block(SEND_BUFFER)
    given.flows[0].update_partial(0)
    while given.turns.run_one():
        pass
    assert not any(given.read())
    for flow in given.flows:
        flow.unblock(SEND_BUFFER)
    while given.turns.run_one():
        pass
    assert given.flows[1].reading
    for flow in given.flows:
        flow.update_partial(0)
        while given.turns.run_one():
            pass
    assert all(given.read())


def test_many_that_are_stopped_for_another_reason_hold_up_nobody() -> None:
    given = Flows(200, own_bytes_max=100 * LARGE, total_bytes_max=PARTIAL_SHARE * 2 * LARGE)
    for flow in given.flows:
        flow.update_partial(LARGE)
    for flow in given.flows[:-1]:
        flow.block(SEND_BUFFER)
    while given.turns.run_one():
        pass
    assert given.flows[-1].reading


def test_small_frames_that_go_away_make_room_too() -> None:
    given = Flows(40, own_bytes_max=100 * LARGE, total_bytes_max=PARTIAL_SHARE * 20 * PARTIAL_BYTES_FREE)
    for flow in given.flows[:-2]:
        flow.update_partial(PARTIAL_BYTES_FREE)
    for flow in given.flows[-2:]:
        flow.update_partial(2 * PARTIAL_BYTES_FREE)
    assert not given.flows[-1].reading
    for flow in given.flows[:-2]:
        flow.update_partial(0)
    given.turns.run_one()
    assert given.flows[-1].reading


def test_what_waits_for_room_is_resumed_a_few_per_turn() -> None:
    count = 2 + 2 * RESUMED_PER_TURN_MAX
    given = Flows(count, own_bytes_max=100 * LARGE, total_bytes_max=PARTIAL_SHARE * 2 * LARGE)
    given.flows[0].update_partial(100 * LARGE)
    for flow in given.flows[1:]:
        flow.update_partial(PARTIAL_BYTES_FREE + 1)
    assert given.read() == [True] + [False] * (count - 1)
    for flow in given.flows[2:]:
        flow.update_partial(PARTIAL_BYTES_FREE + 2)
    given.budget.partial.bytes_max = 10_000 * LARGE
    given.flows[0].update_partial(0)
    turns = 0
    while given.turns.run_one():
        turns += 1
        assert sum(given.read()) <= 1 + turns * RESUMED_PER_TURN_MAX
    assert all(given.read())


# -- unsent replies ------------------------------------------------------------------------------------------------------------


def test_unsent_replies_are_too_many_once_all_connections_together_have_too_many() -> None:
    given = Flows(3, total_bytes_max=3 * UNSENT_BYTES_FREE)
    given.flows[0].update_unsent(2 * UNSENT_BYTES_FREE)
    assert not given.flows[0].is_under_pressure
    given.flows[1].update_unsent(2 * UNSENT_BYTES_FREE)
    given.flows[2].update_unsent(UNSENT_BYTES_FREE)
    assert [flow.is_under_pressure for flow in given.flows[:3]] == [True, True, False]
    assert given.flows[2].is_server_under_pressure
    given.flows[1].update_unsent(0)
    assert not given.flows[0].is_under_pressure
    assert not given.flows[0].is_server_under_pressure


def test_a_lost_connection_leaves_nothing_unsent() -> None:
    given = Flows(1)
    given.flows[0].update_unsent(5_000)
    given.flows[0].lost()
    assert given.budget.unsent_bytes == 0


def test_who_keeps_up_is_read_again_though_others_hold_more_than_half() -> None:
    given = Flows(3, own_bytes_max=10_000)
    given.flows[0].hold(990)  # a peer that does not take its replies: this stays
    for flow in given.flows[1:]:
        flow.hold(20)
        assert given.read().count(False) == 1
        flow.release(20)
        assert given.read() == [True] * 3


def test_far_above_the_bound_everybody_waits_and_idle_connections_come_first() -> None:
    given = Flows(3, own_bytes_max=10_000)
    given.flows[0].hold(1300)
    given.flows[1].hold(10)
    given.flows[2].hold(10)
    given.flows[2].release(10)
    assert given.read() == [False, False, False]
    given.flows[0].release(100)
    while given.turns.run_one():
        pass
    assert given.read() == [False, False, True]


def test_peers_that_have_not_authenticated_use_up_no_budget_but_their_own() -> None:
    given = Flows(3, own_bytes_max=10_000)
    for flow in given.flows[:2]:
        flow.use(given.budget.unauthenticated)
    given.flows[0].hold(240)
    given.flows[1].hold(11)
    given.flows[2].hold(20)
    assert given.read() == [True, False, True]
    assert (given.budget.held_bytes, given.budget.unauthenticated.held_bytes) == (20, 251)


def test_what_a_connection_has_moves_with_it_to_the_other_budget() -> None:
    given = Flows(2, own_bytes_max=10_000)
    own, common = given.budget.unauthenticated, given.budget
    flow = given.flows[0]
    flow.use(own)
    flow.hold(251)
    flow.update_partial(7)
    flow.update_unsent(5)
    assert given.read() == [False, True]
    flow.use(common)
    assert given.read() == [True, True]
    assert (own.held_bytes, own.partial.total_bytes, own.unsent_bytes, len(own.stopped)) == (0, 0, 0, 0)
    assert (common.held_bytes, common.partial.total_bytes, common.unsent_bytes) == (251, 7, 5)
    flow.release(251)
    flow.lost()
    assert (common.held_bytes, common.partial.total_bytes, common.unsent_bytes) == (0, 0, 0)


def test_a_peer_that_takes_no_replies_keeps_others_waiting_if_some_wait() -> None:
    given = Flows(2, own_bytes_max=10_000)
    slow, other = given.flows
    slow.hold(990)
    slow.update_unsent(10)
    assert [slow.keeps_others_waiting, other.keeps_others_waiting] == [False, False]
    other.hold(20)
    assert [slow.keeps_others_waiting, other.keeps_others_waiting] == [True, False]  # the other takes its replies


# -- room for replies ----------------------------------------------------------------------------------------------------------

LARGE = 4 * UNSENT_BYTES_FREE


class Rooms(Flows):
    """Connections that note when there is room for their reply."""

    def __init__(self, count: int, total_bytes_max: int = 2 * LARGE) -> None:
        super().__init__(count, total_bytes_max=total_bytes_max)
        self.granted: list[int] = []
        self.flows = [
            ReadFlow(socket, 10 * LARGE, self.budget, self.stats, lambda number=number: self.granted.append(number))  # type: ignore[misc]
            for number, socket in enumerate(self.sockets)
        ]

    def fill(self) -> None:
        """Replies that peers do not take use up the budget."""
        for flow in self.flows[:2]:
            assert flow.room_for(LARGE)
            flow.update_unsent(LARGE)


def test_a_large_reply_waits_for_room_and_a_small_one_does_not() -> None:
    given = Rooms(4)
    given.fill()
    assert not given.flows[2].room_for(LARGE)
    assert given.flows[3].room_for(UNSENT_BYTES_FREE)
    given.flows[3].update_unsent(UNSENT_BYTES_FREE)
    assert not given.flows[3].room_for(1), "what is free is used up"


def test_those_that_wait_for_room_are_told_in_order_and_keep_it() -> None:
    given = Rooms(5)
    given.fill()
    assert [flow.room_for(LARGE) for flow in given.flows[2:]] == [False, False, False]
    given.flows[0].update_unsent(0)
    given.turns.run_one()
    assert given.granted == [2]
    assert given.flows[2].room_for(LARGE), "the room is kept for it"
    given.flows[2].update_unsent(LARGE)
    given.flows[2].give_up_promise()
    given.flows[1].lost()
    while given.turns.run_one():
        pass
    assert given.granted == [2, 3]
    assert given.budget.waiting_for_room == 1


def test_later_connections_wait_after_those_that_wait() -> None:
    given = Rooms(4)
    given.fill()
    assert not given.flows[2].room_for(2 * LARGE)
    given.flows[0].update_unsent(0)
    assert not given.flows[3].room_for(LARGE), "there is room for it, but not its turn"


def test_room_that_is_not_needed_is_given_up_once_everything_is_answered() -> None:
    given = Rooms(3)
    flow = given.flows[0]
    flow.hold(10)
    assert flow.promise_room(2 * LARGE)
    assert not given.flows[1].promise_room(1)
    flow.release(10)
    while given.turns.run_one():
        pass
    assert given.granted == [1]
    assert given.budget.promised_bytes == 1


def test_a_reply_that_is_larger_than_what_was_promised_needs_room_of_its_own() -> None:
    given = Rooms(2)
    given.flows[1].update_unsent(LARGE)
    assert given.flows[0].promise_room(LARGE)
    assert not given.flows[0].room_for(LARGE + 1)
    assert given.budget.promised_bytes == 0


def test_a_reply_larger_than_the_budget_has_its_turn() -> None:
    given = Rooms(2)
    given.flows[0].update_unsent(1)
    assert not given.flows[1].room_for(100 * LARGE)
    given.flows[0].update_unsent(0)
    given.turns.run_one()
    assert given.granted == [1]
    assert given.budget.promised_bytes == given.budget.bytes_max


def test_room_is_granted_to_a_few_per_turn() -> None:
    count = 3 * ROOM_GRANTED_PER_TURN_MAX
    given = Rooms(count + 1, total_bytes_max=count * LARGE)
    given.flows[0].update_unsent(count * LARGE)
    for flow in given.flows[1:]:
        assert not flow.room_for(LARGE)
    given.flows[0].lost()
    for turns in (1, 2, 3):
        given.turns.run_one()
        assert len(given.granted) == turns * ROOM_GRANTED_PER_TURN_MAX


def test_a_connection_that_changes_its_budget_does_not_wait_in_the_one_before() -> None:
    given = Rooms(1)
    flow = given.flows[0]
    flow.use(given.budget.unauthenticated)
    flow.update_unsent(LARGE)
    assert not flow.room_for(LARGE)
    flow.use(given.budget)
    assert given.granted == [0]
    assert given.budget.unauthenticated.waiting_for_room == 0


def test_a_connection_that_changes_its_budget_asks_for_room_in_the_new_one() -> None:
    given = Rooms(1)
    before = given.budget.unauthenticated
    asked: list[bool] = []
    flow = ReadFlow(FakeSocket(), 10 * LARGE, before, given.stats, lambda: asked.append(flow.room_for(LARGE)))
    flow.update_unsent(2 * LARGE)
    assert not flow.room_for(LARGE)
    flow.use(given.budget)
    assert asked == [False]
    flow.lost()
    while given.turns.run_one():
        pass
    assert (before.waiting_for_room, given.budget.waiting_for_room) == (0, 0)
    assert (before.promised_bytes, given.budget.promised_bytes) == (0, 0)


def test_peers_that_leave_anything_unread_keep_those_waiting_that_wait_for_room() -> None:
    given = Rooms(4)
    given.fill()
    given.flows[3].update_unsent(1)
    assert not given.flows[3].keeps_others_waiting
    assert not given.flows[2].room_for(LARGE)
    assert [flow.keeps_others_waiting for flow in given.flows] == [True, True, False, True]

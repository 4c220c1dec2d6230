"""Deadlines: what counts as progress, whose turn it is, and that nothing expires early."""

from __future__ import annotations

import asyncio

import pytest

from penstock.net.deadlines import ConnectionWatch, Expiry, Sweep
from penstock.net.limits import TcpLimits
from penstock.testing.clock import ManualClock

LIMITS = TcpLimits(under_pressure_s_max=4.0, idle_s_max=10, header_s_max=3)


class Watched:
    """A connection as the sweep sees it, one pass a second."""

    def __init__(self, limits: TcpLimits = LIMITS) -> None:
        self.watch = ConnectionWatch(0.0)
        self.limits = limits
        self.now_s = 0.0

    def passes(
        self,
        seconds: int,
        *,
        reading: bool = True,
        frame_waits: bool = False,
        frames_wait: bool = False,
        owed: bool = False,
        unsent: int = 0,
        delivered: int = 0,
        under_pressure: bool = False,
    ) -> Expiry | None:
        """Pass the given number of times; the first verdict that is not None, or None."""
        for _ in range(seconds):
            self.now_s += 1
            verdict = self.watch.judge(
                self.now_s,
                self.limits,
                reading=reading,
                frame_waits=frame_waits,
                frames_wait=frames_wait,
                owed=owed,
                unsent_bytes=unsent,
                delivered_bytes=delivered,
                under_pressure=under_pressure,
            )
            if verdict is not None:
                return verdict
        return None


def test_silence_ends_at_the_idle_time_and_not_before() -> None:
    watched = Watched()
    assert watched.passes(9) is None
    assert watched.passes(1) is Expiry.IDLE


def test_receiving_starts_the_idle_time_again() -> None:
    watched = Watched()
    watched.passes(9)
    watched.watch.received = True
    assert watched.passes(10) is None
    assert watched.passes(1) is Expiry.IDLE


def test_a_peer_that_leaves_answers_unread_under_pressure_is_closed_sooner() -> None:
    watched = Watched()
    assert watched.passes(3, unsent=10, under_pressure=True) is None
    assert watched.passes(1, unsent=10, under_pressure=True) is Expiry.UNREAD


def test_a_peer_that_takes_too_little_under_pressure_is_closed_too() -> None:
    enough = LIMITS.under_pressure_bytes_min // 4 + 1
    watched = Watched()
    for second in range(1, 100):
        assert watched.passes(1, unsent=10, delivered=second * enough, under_pressure=True) is None
    watched = Watched()
    for second in range(1, 5):
        watched.watch.received = True
        assert watched.passes(1, unsent=10, delivered=second, under_pressure=True) is None
    assert watched.passes(1, unsent=10, delivered=5, under_pressure=True) is Expiry.UNREAD


def test_pressure_that_passes_leaves_a_slow_peer_its_time() -> None:
    watched = Watched()
    for second in range(1, 100):
        assert watched.passes(1, unsent=10, delivered=second, under_pressure=second % 4 > 0) is None


def test_delivering_is_progress_too() -> None:
    watched = Watched()
    for delivered in range(1, 100):
        assert watched.passes(1, delivered=delivered) is None


def test_a_peer_that_waits_for_us_is_not_idle() -> None:
    assert Watched().passes(100, owed=True) is None


def test_a_peer_we_do_not_read_is_not_idle() -> None:
    assert Watched().passes(100, reading=False) is None


@pytest.mark.parametrize(("reading", "owed"), [(True, False), (False, False), (False, True)])
def test_answers_left_unread_expire_whatever_else_is_the_case(reading: bool, owed: bool) -> None:
    watched = Watched()
    assert watched.passes(1, reading=reading, owed=owed, unsent=100, delivered=50) is None
    assert watched.passes(9, reading=reading, owed=owed, unsent=100, delivered=50) is None
    assert watched.passes(1, reading=reading, owed=owed, unsent=100, delivered=50) is Expiry.UNREAD


def test_a_reader_that_takes_a_little_at_a_time_is_left_alone() -> None:
    watched = Watched()
    for delivered in range(1, 20):
        assert watched.passes(9, reading=False, unsent=100, delivered=delivered) is None


def test_half_a_frame_ends_at_its_own_time_although_bytes_keep_coming() -> None:
    watched = Watched()
    watched.watch.frame_pending(True)
    for _ in range(3):
        watched.watch.received = True
        watched.watch.frame_pending(True)
        assert watched.passes(1) is None
    watched.watch.received = True
    assert watched.passes(1) is Expiry.PARTIAL_FRAME


@pytest.mark.parametrize("restart", ["frame_completed", "not_pending"])
def test_a_frame_that_completes_starts_the_time_of_the_next(restart: str) -> None:
    watched = Watched()
    for _ in range(10):
        if restart == "frame_completed":
            watched.watch.frame_completed()
        else:
            watched.watch.frame_pending(False)
        watched.watch.frame_pending(True)
        watched.watch.received = True
        assert watched.passes(3) is None


def test_half_a_frame_has_time_while_we_do_not_read() -> None:
    watched = Watched()
    watched.watch.frame_pending(True)
    assert watched.passes(100, reading=False) is None
    assert watched.passes(3) is None
    assert watched.passes(1) is Expiry.PARTIAL_FRAME


class Seen:
    def __init__(self) -> None:
        self.times: list[float] = []
        self.happened = asyncio.Event()

    def sweep(self, now_s: float) -> None:
        self.times.append(now_s)
        self.happened.set()


async def test_the_sweep_repeats_by_itself_and_reads_the_given_clock() -> None:
    clock, seen = ManualClock(), Seen()
    sweep = Sweep(lambda: [seen], clock, interval_s=0.001)
    sweep.start()
    for moment in (1.0, 2.0):
        clock.advance(1)
        seen.happened.clear()
        await seen.happened.wait()
        assert seen.times[-1] == moment
    sweep.stop()
    sweep.stop()


def test_a_frame_that_waits_for_room_expires_too() -> None:
    watched = Watched()
    watched.watch.frame_pending(True)
    assert watched.passes(3, reading=False, frame_waits=True) is None
    assert watched.passes(1, reading=False, frame_waits=True) is Expiry.PARTIAL_FRAME


def test_while_frames_wait_for_room_one_that_makes_no_progress_expires_sooner() -> None:
    limits = TcpLimits(under_pressure_s_max=2.0, idle_s_max=100, header_s_max=30)
    watched = Watched(limits)
    watched.watch.frame_pending(True)
    for _ in range(10):
        watched.watch.received = True
        assert watched.passes(1, frames_wait=True) is None
    assert watched.passes(1, frames_wait=True) is Expiry.PARTIAL_FRAME

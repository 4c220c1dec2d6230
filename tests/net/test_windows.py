"""The windows of QUIC connections: large for few, small for many, and bounded over all."""

from __future__ import annotations

from penstock.net.windows import (
    SEND_WINDOW_BYTES_MIN,
    SEND_WINDOWS_LEFT,
    WINDOW_BYTES_CROWDED,
    WINDOW_BYTES_MIN,
    WINDOWS_LEFT,
    ReceiveWindows,
    SendWindows,
)

MIB = 1 << 20
TOTAL_BYTES = 64 * MIB
WINDOW_BYTES_MAX = 4 * MIB


def taken(windows: ReceiveWindows, connections: int) -> list[int]:
    """The windows of this many new connections."""
    offered = []
    for _ in range(connections):
        offered.append(windows.offer(WINDOW_BYTES_MAX))
        windows.take(offered[-1])
    return offered


def test_the_first_connection_has_the_largest_window_and_each_next_one_a_smaller_one() -> None:
    offered = taken(ReceiveWindows(TOTAL_BYTES), 50)
    assert offered[0] == WINDOW_BYTES_MAX == TOTAL_BYTES // WINDOWS_LEFT
    assert offered == sorted(offered, reverse=True)
    assert len(set(offered)) == len(offered)


def test_all_windows_together_have_twice_the_total_and_the_smallest_ones_at_most() -> None:
    offered = taken(ReceiveWindows(TOTAL_BYTES), 4_000)
    assert offered == sorted(offered, reverse=True)
    assert {WINDOW_BYTES_MIN, WINDOW_BYTES_CROWDED} < set(offered)
    assert offered[-1] == WINDOW_BYTES_CROWDED
    assert sum(window for window in offered if window > WINDOW_BYTES_MIN) <= TOTAL_BYTES
    assert sum(window for window in offered if window > WINDOW_BYTES_CROWDED) <= 2 * TOTAL_BYTES + WINDOW_BYTES_MIN


def test_what_is_given_back_is_there_for_the_next() -> None:
    windows = ReceiveWindows(TOTAL_BYTES)
    for window_bytes in taken(windows, 4_000):
        windows.give_back(window_bytes)
    assert windows.left_bytes == TOTAL_BYTES
    assert windows.offer(WINDOW_BYTES_MAX) == WINDOW_BYTES_MAX


def test_no_window_is_larger_than_was_asked_for() -> None:
    assert ReceiveWindows(TOTAL_BYTES).offer(1024) == 1024
    assert ReceiveWindows(0).offer(1024) == 1024


def widened(windows: SendWindows) -> int:
    """The send window of a connection that fills it as often as it is widened."""
    window_bytes = SEND_WINDOW_BYTES_MIN
    while more_bytes := windows.widen(window_bytes):
        assert more_bytes == window_bytes
        window_bytes += more_bytes
    return window_bytes


def test_a_send_window_doubles_up_to_a_part_of_what_is_left() -> None:
    windows = SendWindows(TOTAL_BYTES)
    first_bytes = widened(windows)
    assert TOTAL_BYTES // SEND_WINDOWS_LEFT // 2 < first_bytes <= TOTAL_BYTES // SEND_WINDOWS_LEFT * 2
    assert windows.left_bytes == TOTAL_BYTES - first_bytes + SEND_WINDOW_BYTES_MIN


def test_all_send_windows_together_have_the_total_and_the_smallest_ones_at_most() -> None:
    windows = SendWindows(TOTAL_BYTES)
    granted = [widened(windows) for _ in range(1_000)]
    assert granted == sorted(granted, reverse=True)
    assert granted[-1] == SEND_WINDOW_BYTES_MIN
    assert sum(granted) <= TOTAL_BYTES + 1_000 * SEND_WINDOW_BYTES_MIN
    for window_bytes in granted:
        windows.give_back(window_bytes)
    assert windows.left_bytes == TOTAL_BYTES

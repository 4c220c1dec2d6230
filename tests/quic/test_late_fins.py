"""The end of a stream arrives, also if the packet that carried it alone is lost together with data before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.quic.events import STREAM_FINISHED
from penstock.quic.late_fins import HOLD_S_MIN
from penstock.quic.outbox import StreamRefused
from tests.quic.talk import CLIENT, SERVER, Talk

SIZE = 12_000
PACKET_THRESHOLD = 3
"""How many later packets must be acknowledged for one to be declared lost (RFC 9002, section 6.1.1)."""


def lose_the_end(talk: Talk, end: Callable[[int], None]) -> int:
    """Have the server send data and then the end of a stream; the last data is lost, and the end too if it follows at once."""
    stream_id = talk.server.open_stream(one_way=True)
    talk.server.send(stream_id, bytes(SIZE), end=False)
    deliver(talk, lost=1)
    end(stream_id)
    talk.server.take_datagrams(talk.now_s, 100)
    for _ in range(PACKET_THRESHOLD):
        talk.server.ping()
        deliver(talk)
    for _ in talk.steps(500):
        pass
    assert len(talk.received[talk.client][stream_id]) == SIZE
    return stream_id


def deliver(talk: Talk, lost: int = 0) -> None:
    datagrams = [datagram for datagram, _ in talk.server.take_datagrams(talk.now_s, 100)]
    for datagram in datagrams[: len(datagrams) - lost]:
        talk.client.receive(datagram, len(datagram), SERVER, talk.now_s)


def talking(tmp_path: Path) -> Talk:
    talk = Talk(tmp_path).shake_hands()
    for _ in talk.steps(50):
        pass
    return talk


def has_finished(talk: Talk, stream_id: int) -> bool:
    return (STREAM_FINISHED, stream_id) in talk.events[talk.server]


def test_the_library_loses_an_end_that_travels_alone(tmp_path: Path) -> None:
    """If this fails, the library was mended, and `late_fins.py` can go."""
    talk = talking(tmp_path)
    stream_id = lose_the_end(talk, lambda stream_id: talk.server._core.send_stream(stream_id, b"", True))
    assert not has_finished(talk, stream_id)


def test_an_end_that_comes_late_arrives_though_data_and_datagrams_are_lost(tmp_path: Path) -> None:
    talk = talking(tmp_path)
    stream_id = lose_the_end(talk, lambda stream_id: talk.server.send(stream_id, b"", end=True))
    assert has_finished(talk, stream_id)


def test_an_end_is_held_while_lost_data_is_to_be_sent_again_though_nothing_is_in_flight(tmp_path: Path) -> None:
    talk = talking(tmp_path)
    server, client = talk.server, talk.client
    stream_id = server.open_stream(one_way=True)
    server.send(stream_id, bytes(SIZE), end=False)
    for datagram, _ in server.take_datagrams(talk.now_s, 100)[1:]:
        client.receive(datagram, len(datagram), SERVER, talk.now_s)
    for datagram, _ in client.take_datagrams(talk.now_s, 100):
        server.receive(datagram, len(datagram), CLIENT, talk.now_s)
    assert server.in_flight_bytes == 0, "the first was declared lost, the others are acknowledged"
    server.send(stream_id, b"", end=True)
    assert len(server.take_datagrams(talk.now_s, 100)) == 1
    assert stream_id in server._fins.held_since_s
    for _ in talk.steps(500):
        pass
    assert has_finished(talk, stream_id)


def test_an_end_is_sent_at_once_if_nothing_is_in_flight(tmp_path: Path) -> None:
    talk = talking(tmp_path)
    stream_id = talk.server.open_stream(one_way=True)
    talk.server.send(stream_id, b"x", end=False)
    for _ in talk.steps(50):
        pass
    assert talk.server.in_flight_bytes == 0
    talk.server.send(stream_id, b"", end=True)
    assert len(talk.server.take_datagrams(talk.now_s, 100)) == 1


def test_an_end_that_is_held_is_sent_when_the_data_is_acknowledged_or_after_a_while(tmp_path: Path) -> None:
    talk = talking(tmp_path)
    stream_id = talk.server.open_stream(one_way=True)
    talk.server.send(stream_id, b"x", end=False)
    assert len(talk.server.take_datagrams(talk.now_s, 100)) == 1
    talk.server.send(stream_id, b"", end=True)
    assert talk.server.take_datagrams(talk.now_s, 100) == []
    assert not talk.server.is_idle
    due_s = talk.server.get_timer()
    assert due_s is not None
    assert due_s <= talk.now_s + HOLD_S_MIN
    talk.now_s += HOLD_S_MIN * 5
    assert talk.server.take_datagrams(talk.now_s, 100) != []


def test_an_end_that_comes_with_its_data_is_not_held(tmp_path: Path) -> None:
    talk = talking(tmp_path)
    other, stream_id = (talk.server.open_stream(one_way=True) for _ in range(2))
    talk.server.send(other, bytes(5_000), end=False)
    talk.server.take_datagrams(talk.now_s, 100)
    talk.server.send(stream_id, b"x", end=False)
    talk.server.send(stream_id, b"", end=True)
    assert len(talk.server.take_datagrams(talk.now_s, 100)) == 1
    assert not talk.server._fins.held_since_s


def test_nothing_more_is_taken_after_an_end_that_is_held(tmp_path: Path) -> None:
    talk = talking(tmp_path)
    stream_id = talk.server.open_stream(one_way=True)
    talk.server.send(stream_id, b"x", end=False)
    talk.server.take_datagrams(talk.now_s, 100)
    talk.server.send(stream_id, b"", end=True)
    with pytest.raises(StreamRefused):
        talk.server.send(stream_id, b"y", end=False)
    talk.server.reset(stream_id, 7)
    assert not talk.server._fins.held_since_s
    for _ in talk.steps(100):
        pass
    assert ("stream_reset", stream_id, 7) in [event[:3] for event in talk.events[talk.client]]


def test_an_end_does_not_wait_behind_data_of_other_streams(tmp_path: Path) -> None:
    """It would leave alone, after its own data and before that is acknowledged."""
    talk = talking(tmp_path)
    ended, bulk = (talk.server.open_stream(one_way=True) for _ in range(2))
    talk.server.send(ended, b"x" * 1_000, end=False)
    talk.server.send(bulk, bytes(1_000_000), end=False)
    talk.server.send(ended, b"", end=True)
    talk.server.take_datagrams(talk.now_s, 1)  # which is lost
    for _ in talk.steps(2_000):
        pass
    assert bytes(talk.received[talk.client][ended]) == b"x" * 1_000
    assert has_finished(talk, ended)


def test_ends_that_are_held_together_are_sent_together(tmp_path: Path) -> None:
    talk = talking(tmp_path)
    streams = [talk.server.open_stream(one_way=True) for _ in range(20)]
    for stream_id in streams:
        talk.server.send(stream_id, b"x", end=False)
    talk.server.take_datagrams(talk.now_s, 100)
    for stream_id in streams:
        talk.server.send(stream_id, b"", end=True)
    talk.server.take_datagrams(talk.now_s, 100)
    assert all(stream_id in talk.server._fins.held_since_s for stream_id in streams)
    talk.now_s += HOLD_S_MIN * 5
    talk.server.take_datagrams(talk.now_s, 100)
    assert not talk.server._fins.held_since_s


def test_no_timer_is_left_behind_by_an_end_that_is_held_and_then_given_up(tmp_path: Path) -> None:
    """A time that has passed and is due forever makes the event loop spin."""
    talk = talking(tmp_path)
    stream_id = talk.server.open_stream(one_way=True)
    talk.server.send(stream_id, b"x", end=False)
    talk.server.take_datagrams(talk.now_s, 100)
    talk.server.send(stream_id, b"", end=True)
    talk.server.take_datagrams(talk.now_s, 100)
    held_until_s = talk.server._fins.due_s
    assert held_until_s is not None
    talk.server.reset(stream_id, 7)
    while talk.now_s < held_until_s:
        talk.step()
    talk.server.handle_timer(talk.now_s)
    due_s = talk.server.get_timer()
    assert due_s is None or due_s > talk.now_s

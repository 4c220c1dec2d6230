"""When a connection must send, and how many datagrams a request costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.quic.core import CLOCK_AHEAD_S_MAX, QuicCore
from penstock.quic.settings import DATAGRAM_BYTES_LOOPBACK, QuicSettings
from tests.quic.talk import CLIENT, SERVER, Talk

QUIET_STEPS = 50
ROUND_TRIP_S = 0.0001
PAUSE_S = 0.02
"""Between two requests: each costs the pacer a whole datagram."""


@pytest.fixture(params=[1_200, DATAGRAM_BYTES_LOOPBACK], ids=["small datagrams", "loopback"])
def talk(tmp_path: Path, request: pytest.FixtureRequest) -> Talk:
    """Two sides that have nothing to say any more."""
    quiet = Talk(tmp_path, QuicSettings(datagram_bytes=request.param)).shake_hands()
    for _ in quiet.steps(QUIET_STEPS):
        pass
    return quiet


def sent(talk: Talk, core: QuicCore, peer: QuicCore, source: tuple[str, int]) -> int:
    """Carry what a side has to send now; returns how many datagrams that were."""
    if not core.must_send(talk.now_s):
        return 0
    datagrams = core.take_datagrams(talk.now_s, 100)
    for datagram, _ in datagrams:
        peer.receive(datagram, len(datagram), source, talk.now_s + ROUND_TRIP_S / 2)
    talk.now_s += ROUND_TRIP_S / 2
    return len(datagrams)


def exchanges(talk: Talk, count: int, reply: bytes = b"a reply") -> Iterator[tuple[int, int]]:
    """Requests and replies one after another: the number of datagrams of each."""
    client, server = talk.client, talk.server
    stream_id = client.open_stream(one_way=False)
    for _ in range(count):
        client.send(stream_id, b"a request", end=False)
        there = sent(talk, client, server, CLIENT)
        talk.take(server)
        assert not server.must_send(talk.now_s), "the acknowledgement may wait for the reply"
        server.send(stream_id, reply, end=False)
        back = sent(talk, server, client, SERVER)
        talk.take(client)
        yield there, back
        talk.now_s += PAUSE_S


def test_a_request_is_one_datagram_and_so_is_its_reply(talk: Talk) -> None:
    assert set(exchanges(talk, 30)) == {(1, 1)}
    assert talk.received[talk.client] == {0: b"a reply" * 30}
    assert talk.client.losses == talk.server.losses == 0


def test_a_reply_carries_the_acknowledgement_of_its_request(talk: Talk) -> None:
    for _ in exchanges(talk, 5):
        assert talk.client.in_flight_bytes == 0


def test_an_acknowledgement_alone_makes_nobody_send(talk: Talk) -> None:
    for _ in exchanges(talk, 1):
        pass
    assert talk.server.in_flight_bytes > 0
    talk.now_s += CLOCK_AHEAD_S_MAX
    assert sent(talk, talk.client, talk.server, CLIENT) == 1
    assert talk.server.in_flight_bytes == 0
    assert not talk.server.must_send(talk.now_s)
    assert not talk.server.has_news


def test_an_acknowledgement_leaves_by_itself_in_a_millisecond_if_there_is_no_reply(talk: Talk) -> None:
    stream_id = talk.client.open_stream(one_way=False)
    talk.client.send(stream_id, b"x", end=False)
    sent(talk, talk.client, talk.server, CLIENT)
    talk.take(talk.server)
    assert not talk.server.must_send(talk.now_s)
    assert talk.server.deadline_s <= talk.now_s + CLOCK_AHEAD_S_MAX
    talk.now_s = talk.server.deadline_s
    assert sent(talk, talk.server, talk.client, SERVER) == 1
    assert talk.client.in_flight_bytes == 0


def test_credit_for_data_that_was_taken_late_is_given_at_once(tmp_path: Path) -> None:
    talk = Talk(tmp_path, QuicSettings(stream_window_bytes=64 * 1024)).shake_hands()
    stream_id = talk.client.open_stream(one_way=True)
    talk.client.send(stream_id, bytes(200 * 1024), end=False)
    for _ in range(QUIET_STEPS):
        talk.step(taking=(talk.client,))
    assert talk.client.unsent_bytes() == (200 - 64) * 1024
    assert not talk.server.must_send(talk.now_s)
    talk.take(talk.server)
    assert talk.server.must_send(talk.now_s)


def test_more_than_the_pacer_allows_at_once_leaves_within_the_time_that_timers_are_coarse_by(talk: Talk) -> None:
    """As much as two congestion windows, half of which is acknowledged: without a look ahead the rest would wait for a timer."""
    for _ in exchanges(talk, 200):
        pass
    window_bytes = talk.server._core.congestion_window
    stream_id = talk.server.open_stream(one_way=True)
    talk.server.send(stream_id, bytes(2 * window_bytes), end=False)
    before_s, moved = talk.now_s, 0
    while talk.server.unsent_bytes():
        moved += sent(talk, talk.server, talk.client, SERVER)
        talk.take(talk.client)
        sent(talk, talk.client, talk.server, CLIENT)
        assert talk.now_s - before_s < 10 * CLOCK_AHEAD_S_MAX, "it waits for timers"
    assert moved > 1


def test_the_clock_of_the_library_never_goes_back(talk: Talk) -> None:
    """It may be ahead of ours, and an acknowledgement from before the datagram was sent is an error to it."""
    stream_id = talk.server.open_stream(one_way=True)
    for _ in range(20):
        talk.server.send(stream_id, bytes(100_000), end=False)
        sent(talk, talk.server, talk.client, SERVER)
        talk.take(talk.client)
        sent(talk, talk.client, talk.server, CLIENT)
        talk.take(talk.server)
        assert not talk.server.is_closed, talk.server.close_reason


def test_an_answer_that_leaves_room_in_its_datagram_leaves_nothing_behind(talk: Talk) -> None:
    for _ in exchanges(talk, 1):
        pass
    assert talk.server.is_sure


def test_what_an_answer_that_fills_its_datagram_may_have_left_behind_is_asked_for_again(talk: Talk) -> None:
    for _ in exchanges(talk, 1, bytes(talk.server.outbox.datagram_bytes - 100)):
        pass
    assert not talk.server.is_sure
    talk.server.ask_again()
    assert talk.server.must_send(talk.now_s)
    sent(talk, talk.server, talk.client, SERVER)
    assert talk.server.is_sure

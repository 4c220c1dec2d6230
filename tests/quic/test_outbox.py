"""Much to send on many streams, both ways at once: acknowledgements must not wait for it."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import pytest
from qh3.quic.packet import QuicTransportParameters

from penstock.quic import tls
from penstock.quic.core import QuicCore
from penstock.quic.outbox import WIRE_SHARE, Outbox, StreamRefused, Waiting
from penstock.quic.settings import DATAGRAM_BYTES, DATAGRAM_BYTES_LOOPBACK, QuicSettings
from tests.quic.talk import KIB, MIB, Talk

SENT_BYTES = 1_000_000
"""By each side."""
STEP_S = 0.002


def everything_arrives_within(talk: Talk, streams: int, seconds: float) -> None:
    sent: dict[QuicCore, dict[int, bytes]] = {talk.client: {}, talk.server: {}}
    for core, peer in ((talk.client, talk.server), (talk.server, talk.client)):
        for number in range(streams):
            stream_id = core.open_stream(one_way=True)
            sent[peer][stream_id] = bytes([number % 256]) * (SENT_BYTES // streams)
            core.send(stream_id, sent[peer][stream_id], end=True)
    for _ in talk.steps(round(seconds / STEP_S)):
        if all(talk.received[core] == sent[core] for core in sent):
            return
    raise AssertionError(f"{[sum(map(len, got.values())) for got in talk.received.values()]} bytes have arrived")


def test_the_library_stalls_on_many_streams_that_are_given_all_their_data_at_once(tmp_path: Path) -> None:
    """If this fails, the library was mended, and the outbox need only bound what is unacknowledged."""
    talk = Talk(tmp_path).shake_hands()
    for core in (talk.client, talk.server):
        for _ in range(64):
            core._core.send_stream(core.open_stream(one_way=True), bytes(SENT_BYTES // 64), True)
    for _ in talk.steps(round(10 * 0.2 / STEP_S)):
        pass  # ten times what an outbox takes
    assert all(sum(map(len, got.values())) < SENT_BYTES // 2 for got in talk.received.values())


@pytest.mark.parametrize("streams", [1, 16, 64, 500])
def test_many_streams_carry_as_much_as_one(tmp_path: Path, streams: int) -> None:
    everything_arrives_within(Talk(tmp_path).shake_hands(), streams, seconds=0.2)


@pytest.mark.parametrize("datagram_bytes", [DATAGRAM_BYTES, DATAGRAM_BYTES_LOOPBACK])
@pytest.mark.parametrize("streams", [1, 16, 64])
def test_loss_slows_many_streams_down_as_it_does_one(tmp_path: Path, streams: int, datagram_bytes: int) -> None:
    talk = Talk(tmp_path, QuicSettings(datagram_bytes=datagram_bytes), bad=random.Random(streams)).shake_hands()
    everything_arrives_within(talk, streams, seconds=20)


def test_a_peer_that_takes_small_datagrams_only_is_not_asked_to_wait_for_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = functools.partial(QuicTransportParameters, max_udp_payload_size=1_300)
    monkeypatch.setattr(tls, "QuicTransportParameters", small)
    settings = QuicSettings(datagram_bytes=DATAGRAM_BYTES_LOOPBACK)
    talk = Talk(tmp_path, settings, bad=random.Random(3)).shake_hands()
    for core in (talk.client, talk.server):
        stream_id = core.open_stream(one_way=True)
        core.send(stream_id, b"x", end=False)
        core.reset(stream_id, 0)  # while its reset may be kept, events wait for full windows
    everything_arrives_within(talk, 16, seconds=20)


@pytest.mark.parametrize("send_window_bytes", [64 * KIB, 8 * MIB])
def test_a_stream_that_waits_for_credit_is_passed_over(tmp_path: Path, send_window_bytes: int) -> None:
    settings = QuicSettings(
        connection_window_bytes=4 * MIB, stream_window_bytes=64 * KIB, send_window_bytes=send_window_bytes
    )
    talk = Talk(tmp_path, settings).shake_hands()
    stuck = [talk.client.open_stream(one_way=True) for _ in range(20)]
    for stream_id in stuck:
        talk.client.send(stream_id, bytes(1 * MIB), end=False)
    for _ in range(200):
        talk.step(taking=(talk.client,))
    assert [talk.client.unsent_bytes(stream_id) for stream_id in stuck] == [1 * MIB - 64 * KIB] * 20
    other = talk.client.open_stream(one_way=True)
    for _ in range(10):
        talk.client.send(other, bytes(6 * KIB), end=False)
        for _ in range(10):
            talk.step(taking=(talk.client,))
        assert talk.client.unsent_bytes(other) == 0


@pytest.mark.parametrize("datagram_bytes", [DATAGRAM_BYTES, DATAGRAM_BYTES_LOOPBACK])
@pytest.mark.parametrize("streams", [1, 16])
def test_no_more_is_unacknowledged_than_the_send_window(tmp_path: Path, streams: int, datagram_bytes: int) -> None:
    settings = QuicSettings(datagram_bytes=datagram_bytes, send_window_bytes=64 * KIB)
    talk = Talk(tmp_path, settings).shake_hands()
    expected = {}
    for number in range(streams):
        stream_id = talk.server.open_stream(one_way=True)
        expected[stream_id] = bytes([number]) * (SENT_BYTES // streams)
        talk.server.send(stream_id, expected[stream_id], end=True)
    most_bytes = 0
    was_full = False
    for _ in talk.steps(1_000):
        given_bytes = talk.server._core.get_send_buffer_size(None)
        most_bytes = max(most_bytes, talk.server.in_flight_bytes + given_bytes)
        was_full |= talk.server.outbox.is_window_full
        if talk.received[talk.client] == expected:
            break
    assert talk.received[talk.client] == expected
    assert was_full
    assert 64 * KIB - datagram_bytes < most_bytes < 64 * KIB * (1 + 1 / WIRE_SHARE) + datagram_bytes


def test_a_wider_send_window_is_used_at_once(tmp_path: Path) -> None:
    talk = Talk(tmp_path, QuicSettings(send_window_bytes=64 * KIB)).shake_hands()
    talk.server.send(talk.server.open_stream(one_way=True), bytes(2 * MIB), end=True)
    while talk.server._core.congestion_window < 512 * KIB:
        talk.step()
    assert talk.server.outbox.is_window_full
    talk.server.outbox.window_bytes = 256 * KIB
    for _ in range(3):
        talk.step()
    assert 128 * KIB < talk.server.in_flight_bytes < 288 * KIB


def test_no_send_window_is_full_while_the_network_takes_no_more(tmp_path: Path) -> None:
    talk = Talk(tmp_path, QuicSettings(send_window_bytes=64 * KIB)).shake_hands()
    talk.server.send(talk.server.open_stream(one_way=True), bytes(1 * MIB), end=True)
    talk.server.take_datagrams(talk.now_s, 100)
    assert talk.server.in_flight_bytes < 64 * KIB
    assert not talk.server.outbox.is_window_full


def test_what_little_many_streams_have_to_say_goes_together(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    for _ in range(50):
        talk.step()
    for _ in range(12):
        talk.client.send(talk.client.open_stream(one_way=True), bytes(50), end=True)
    assert len(talk.client.take_datagrams(talk.now_s, 100)) == 1


def test_no_more_is_made_up_than_may_be_sent(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    for _ in range(50):
        talk.step()
    talk.client.take_datagrams(talk.now_s, 2)
    for _ in range(8):
        talk.client.send(talk.client.open_stream(one_way=True), bytes(10_000), end=True)
    before = talk.client.unsent_bytes()
    datagrams = talk.client.take_datagrams(talk.now_s, 2)
    assert len(datagrams) == 2
    assert before - talk.client.unsent_bytes() > DATAGRAM_BYTES
    assert talk.client._core.get_send_buffer_size(None) == 0


def test_what_waits_on_a_stream_that_is_cut_off_is_forgotten(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    ours, theirs = (talk.client.open_stream(one_way=True) for _ in range(2))
    for stream_id in (ours, theirs):
        talk.client.send(stream_id, bytes(1 * MIB), end=False)
    talk.client.reset(ours, 0)
    assert talk.client.unsent_bytes(ours) == 0
    for _ in range(3):
        talk.step()
    talk.server.stop(theirs, 0)
    for _ in range(50):
        talk.step()
    assert talk.client.unsent_bytes() == 0
    with pytest.raises(StreamRefused):
        talk.client.send(theirs, b"x", end=False)


def test_bytes_are_taken_in_order_however_they_were_given() -> None:
    chance = random.Random(1)
    given = [chance.randbytes(chance.randrange(0, 40)) for _ in range(200)]
    waiting = Waiting()
    for data in given:
        waiting.add(data, end=False)
    taken = b""
    while waiting.size_bytes:
        piece = waiting.take(chance.randrange(1, 60))
        assert len(piece) <= 60
        taken += piece
    assert taken == b"".join(given)


def test_an_outbox_knows_how_much_waits_and_what_ends() -> None:
    outbox = Outbox(DATAGRAM_BYTES, 1 * MIB)
    assert not outbox.waiting
    outbox.add(0, b"abc", end=False)
    outbox.add(4, b"", end=True)
    assert (outbox.size_bytes, outbox.size_of(0), outbox.size_of(4), outbox.size_of(8)) == (3, 3, 0, 0)
    assert [outbox.ends(stream_id) for stream_id in (0, 4, 8)] == [False, True, False]
    outbox.drop(0)
    outbox.drop(0)
    assert outbox.waiting
    outbox.drop(4)
    assert not outbox.waiting
    assert outbox.size_bytes == 0

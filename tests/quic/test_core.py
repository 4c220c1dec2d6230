"""The library's connection, driven as `penstock.quic.core` says."""

from __future__ import annotations

import gc
import random
import weakref
from pathlib import Path

import pytest
from qh3.tls import Epoch

from penstock.quic import core as core_module
from penstock.quic.core import UNEXPECTED_MESSAGE, QuicCore
from penstock.quic.events import STOP_SENDING, STREAM_DATA, STREAM_FINISHED, STREAM_RESET
from penstock.quic.joined_data import JOINED_BYTES_MAX
from penstock.quic.outbox import StreamRefused
from penstock.quic.settings import DATAGRAM_BYTES_LOOPBACK, QuicSettings
from tests.quic.talk import CLIENT, KIB, MIB, SERVER, Talk

QUIET_STEPS = 100


@pytest.mark.parametrize("seed", range(6))
def test_over_a_bad_network_everything_arrives_once_and_in_order(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    talk = Talk(tmp_path, bad=chance).shake_hands()
    sent: dict[QuicCore, dict[int, bytes]] = {talk.client: {}, talk.server: {}}
    for core, peer in ((talk.client, talk.server), (talk.server, talk.client)):
        for one_way in (False, True):
            for _ in range(3):
                stream_id = core.open_stream(one_way=one_way)
                sent[peer][stream_id] = chance.randbytes(chance.randrange(1, 300_000))
                core.send(stream_id, sent[peer][stream_id], end=True)
    for _ in talk.steps():
        if all(talk.received[core] == sent[core] for core in sent):
            break
    assert {core: {n: bytes(data) for n, data in got.items()} for core, got in talk.received.items()} == sent


def test_a_peer_that_has_not_shown_its_address_is_sent_three_times_what_it_sent_and_waited_for(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    heard_bytes = sent_bytes = 0
    for datagram, _ in talk.client.take_datagrams(talk.now_s, 100):
        talk.server.receive(datagram, len(datagram), CLIENT, talk.now_s)
        heard_bytes += len(datagram)
    while talk.now_s < 20:
        sent_bytes += sum(len(datagram) for datagram, _ in talk.server.take_datagrams(talk.now_s, 100))
        due_s = talk.server.get_timer()
        assert due_s is not None
        talk.now_s = max(talk.now_s, due_s)
        talk.server.handle_timer(talk.now_s)
    assert heard_bytes < sent_bytes <= 3 * heard_bytes
    talk.shake_hands()


def test_data_of_a_stream_that_several_events_carry_is_taken_at_once(tmp_path: Path) -> None:
    talk = Talk(tmp_path, QuicSettings(datagram_bytes=DATAGRAM_BYTES_LOOPBACK)).shake_hands()
    first, second = talk.client.open_stream(one_way=True), talk.client.open_stream(one_way=True)
    long = random.Random(1).randbytes(800 * KIB)
    for stream_id, data, end in ((first, long, False), (second, b"short", True)):
        talk.client.send(stream_id, data, end)
        for _ in range(QUIET_STEPS):
            talk.step(taking=(talk.client,))
    taken = []
    while talk.server.has_news and (event := talk.server.take_event()) is not None:
        taken.append(event)
    pieces = [event[2] for event in taken if event[1] == first]
    assert b"".join(pieces) == long
    assert all(JOINED_BYTES_MAX <= len(piece) < JOINED_BYTES_MAX + 64 * KIB for piece in pieces[:-1])
    assert taken[len(pieces) :] == [(STREAM_DATA, second, b"short", True), (STREAM_FINISHED, second)]
    assert not talk.server.has_news
    assert talk.server.waiting_events == 0


def test_events_that_are_not_taken_grant_no_credit(tmp_path: Path) -> None:
    settings = QuicSettings(connection_window_bytes=1 * MIB, stream_window_bytes=256 * KIB)
    talk = Talk(tmp_path, settings).shake_hands()
    streams = [talk.client.open_stream(one_way=True) for _ in range(3)]
    for stream_id in streams:
        talk.client.send(stream_id, bytes(10 * MIB), end=False)
    for _ in range(300):
        talk.step(taking=(talk.client,))
    assert [talk.client.unsent_bytes(stream_id) for stream_id in streams] == [10 * MIB - 256 * KIB] * 3
    for _ in range(300):
        talk.step(taking=(talk.client,))
    assert talk.client.unsent_bytes() == 30 * MIB - 3 * 256 * KIB
    talk.take(talk.server)
    assert sum(map(len, talk.received[talk.server].values())) == 3 * 256 * KIB
    for _ in range(300):
        talk.step(taking=(talk.client,))
    assert talk.client.unsent_bytes() < 30 * MIB - 3 * 256 * KIB
    assert talk.client.unsent_bytes() >= 30 * MIB - 2 * 3 * 256 * KIB


def test_all_streams_together_have_a_window_too(tmp_path: Path) -> None:
    settings = QuicSettings(connection_window_bytes=512 * KIB, stream_window_bytes=256 * KIB)
    talk = Talk(tmp_path, settings).shake_hands()
    for _ in range(4):
        talk.client.send(talk.client.open_stream(one_way=True), bytes(1 * MIB), end=False)
    for _ in range(300):
        talk.step(taking=(talk.client,))
    assert talk.client.unsent_bytes() == 4 * MIB - 512 * KIB


def test_the_peer_allows_so_many_streams_and_more_as_they_finish(tmp_path: Path) -> None:
    talk = Talk(tmp_path, QuicSettings(streams_max=3)).shake_hands()
    for one_way in (False, True):
        streams = [talk.client.open_stream(one_way=one_way) for _ in range(3)]
        with pytest.raises(StreamRefused, match="limit"):
            talk.client.open_stream(one_way=one_way)
        for stream_id in streams:
            talk.client.send(stream_id, b"x", end=True)
        talk.step()
        talk.step()
        if not one_way:
            for stream_id in streams:
                talk.server.send(stream_id, b"y", end=True)
        for _ in range(50):
            talk.step()
        assert talk.client.open_stream(one_way=one_way) == streams[-1] + 4


def test_a_stream_that_has_ended_takes_no_more(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    stream_id = talk.client.open_stream(one_way=False)
    talk.client.send(stream_id, b"x", end=True)
    with pytest.raises(StreamRefused):
        talk.client.send(stream_id, b"y", end=False)
    talk.client.reset(stream_id, 0)
    talk.client.stop(400, 0)  # a stream that nobody opened is left alone


def test_resets_and_refusals_come_with_their_code(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    stream_id = talk.client.open_stream(one_way=False)
    talk.client.send(stream_id, b"x", end=False)
    talk.step()
    talk.step()
    talk.client.reset(stream_id, 7)
    talk.client.stop(stream_id, 9)
    for _ in range(50):
        talk.step()
    kinds = [event[:3] for event in talk.events[talk.server]]
    assert (STREAM_RESET, stream_id, 7) in kinds
    assert (STOP_SENDING, stream_id, 9) in kinds
    assert (STREAM_FINISHED, stream_id) in kinds


def test_who_closes_says_why(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    talk.client.close(77, "enough")
    talk.step()
    talk.step()
    assert talk.client.is_closed
    assert talk.server.is_closed
    assert (talk.server.close_code, talk.server.close_reason) == (77, "enough")
    assert not talk.server.timed_out


def test_silence_ends_a_connection_after_the_shorter_time_of_both(tmp_path: Path) -> None:
    talk = Talk(tmp_path, QuicSettings(idle_s_max=2.0)).shake_hands()
    assert talk.server.idle_s_max == 2.0
    for _ in range(50):
        talk.step()
    talk.now_s += 3
    talk.server.handle_timer(talk.now_s)
    talk.take(talk.server)
    assert talk.server.is_closed
    assert talk.server.timed_out


def test_a_datagram_that_was_tampered_with_is_as_good_as_lost(tmp_path: Path) -> None:
    chance = random.Random(3)
    talk = Talk(tmp_path).shake_hands()
    stream_id = talk.client.open_stream(one_way=True)
    data = chance.randbytes(100_000)
    talk.client.send(stream_id, data, end=True)
    for _ in range(5_000):
        for datagram, _ in talk.client.take_datagrams(talk.now_s, 100):
            changed = bytearray(datagram)
            if chance.random() < 0.2:
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            talk.server.receive(bytes(changed), len(changed), CLIENT, talk.now_s)
        talk.step()
        if len(talk.received[talk.server].get(stream_id, b"")) == len(data):
            break
    assert bytes(talk.received[talk.server][stream_id]) == data
    assert not talk.server.is_closed


def test_what_was_lost_is_known_until_it_is_repaired(tmp_path: Path) -> None:
    talk = Talk(tmp_path, bad=random.Random(1)).shake_hands()
    stream_id = talk.client.open_stream(one_way=True)
    talk.client.send(stream_id, bytes(200_000), end=False)
    for _ in talk.steps():
        # Everything has arrived whenever a core says that it is quiet.
        if talk.client.is_idle:
            break
    assert talk.client.losses > 0
    assert len(talk.received[talk.server][stream_id]) == 200_000


def test_what_was_lost_is_known_while_there_is_more_to_send(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    for _ in talk.steps(50):
        pass
    client, server = talk.client, talk.server
    client.send(client.open_stream(one_way=True), bytes(MIB), end=False)
    for turn in range(3):
        assert client.may_send, "so that a connection does not ask whether it must"
        talk.now_s += 0.002
        for datagram, _ in client.take_datagrams(talk.now_s, 100)[turn == 0 :]:
            server.receive(datagram, len(datagram), CLIENT, talk.now_s)
        for datagram, _ in server.take_datagrams(talk.now_s, 100):
            client.receive(datagram, len(datagram), SERVER, talk.now_s)
    assert client.losses == 1


def test_handshake_messages_after_the_handshake_end_the_connection(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    for _ in talk.steps(10):
        pass
    talk.client._core.send_crypto(Epoch.ONE_RTT, 0, b"\x01\0\0\x01x")
    talk.client.ping()
    for _ in talk.steps(10):
        pass
    assert talk.server.is_closed
    assert talk.server.close_code == talk.client.close_code == UNEXPECTED_MESSAGE


def test_a_server_keeps_of_the_handshake_what_was_agreed_on(tmp_path: Path) -> None:
    talk = Talk(tmp_path, QuicSettings(idle_s_max=7.0)).shake_hands()
    assert talk.server._handshake is None
    assert (talk.server.alpn, talk.server.peer_certificate_der, talk.server.idle_s_max) == (None, None, 7.0)
    assert talk.client.peer_certificate_der is not None


def test_a_server_frees_what_it_does_not_keep_of_a_handshake_without_a_garbage_collection(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    assert talk.server._handshake is not None
    tls = weakref.ref(talk.server._handshake._bridge)
    gc.disable()
    try:
        talk.shake_hands()
        assert tls() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("bad", [None, random.Random(8)])
def test_keys_are_changed_before_they_are_used_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: random.Random | None
) -> None:
    monkeypatch.setattr(core_module, "DATAGRAMS_PER_KEY_MAX", 20)
    talk = Talk(tmp_path, bad=bad).shake_hands()
    sent = {talk.client: bytes(300_000), talk.server: bytes(200_000)}
    streams = {core: core.open_stream(one_way=True) for core in sent}
    for core, data in sent.items():
        core.send(streams[core], data, end=True)
    phases: list[int | None] = []
    for _ in talk.steps():
        if phases[-1:] != [talk.client._core.send_key_phase]:
            phases.append(talk.client._core.send_key_phase)
        if [len(talk.received[peer].get(streams[core], b"")) for core, peer in talk.pairs] == [300_000, 200_000]:
            break
    assert bytes(talk.received[talk.server][streams[talk.client]]) == sent[talk.client]
    assert bytes(talk.received[talk.client][streams[talk.server]]) == sent[talk.server]
    assert len(phases) > 2

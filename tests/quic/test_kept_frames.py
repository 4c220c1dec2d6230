"""Streams that finish while frames of theirs wait for the congestion window, and what the library must not be asked meanwhile."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.quic.core import QuicCore
from penstock.quic.events import STREAM_DATA, STREAM_FINISHED, STREAM_RESET
from penstock.quic.kept_frames import PendingFrames
from penstock.quic.outbox import StreamRefused
from penstock.quic.packets import Address
from tests.quic.talk import Talk

STREAMS_AHEAD = 14
"""With one of them more, the library makes frames for all of them up at once."""


def finished(talk: Talk, core: QuicCore) -> set[object]:
    return {event[1] for event in talk.events[core] if event[0] == STREAM_FINISHED}


def fill_the_window(core: QuicCore, streams: int) -> None:
    """More than may be under way at first, on several streams."""
    for _ in range(streams):
        core.send(core.open_stream(one_way=True), bytes(400_000), end=False)


def test_a_stream_may_end_before_the_peer_is_asked_to_end_it(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    stream_id = talk.client.open_stream(one_way=False)
    talk.client.send(stream_id, b"x", end=True)
    for _ in range(30):
        talk.step()
    fill_the_window(talk.client, STREAMS_AHEAD + 1)
    talk.client.stop(stream_id, 3)
    talk.server.send(stream_id, b"y", end=True)
    held = 0
    for _ in range(200):
        talk.step()
        held += talk.client.frames.hold_events
    assert held
    assert stream_id in finished(talk, talk.client)
    assert not talk.client.frames.hold_events


def test_the_peer_may_stop_streams_whose_ends_are_under_way(tmp_path: Path) -> None:
    for streams in (2, 11, 18):
        talk = Talk(tmp_path).shake_hands()
        ended = [talk.client.open_stream(one_way=False) for _ in range(streams)]
        for stream_id in ended:
            talk.client.send(stream_id, b"x", end=True)
        for _ in range(4):
            talk.step()
        for stream_id in ended:
            talk.server.send(stream_id, b"y" * 100, end=True)
        fill_the_window(talk.server, streams)
        for stream_id in ended:
            talk.client.stop(stream_id, 5)
        for _ in range(300):
            talk.step()
        assert finished(talk, talk.server) == finished(talk, talk.client) == set(ended)


def test_events_wait_for_what_is_ahead_of_a_frame_and_not_for_all_there_is_to_send(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    endless = [talk.client.open_stream(one_way=True) for _ in range(STREAMS_AHEAD)]
    talk.client.frames.streams = endless
    stopped = talk.client.open_stream(one_way=False)
    talk.client.send(stopped, b"x", end=False)
    talk.step()
    held = 0
    for turn in range(300):
        for stream_id in endless:  # always more than is allowed to be under way
            talk.client.send(stream_id, bytes(400_000 - min(400_000, talk.client.unsent_bytes(stream_id))), end=False)
        if turn == 20:
            talk.client.stop(stopped, 5)
        talk.step()
        if turn > 20:
            held += talk.client.frames.hold_events
    assert talk.client.unsent_bytes() > 0
    assert held < 10
    assert (STREAM_RESET, stopped, 5) in [event[:3] for event in talk.events[talk.client]]


class Quarrel:
    """Both sides open, write to, end, reset and stop streams as chance will have it."""

    def __init__(self, talk: Talk, chance: random.Random, *, in_peace: bool) -> None:
        self._talk = talk
        self._chance = chance
        self._in_peace = in_peace
        self._streams: dict[QuicCore, set[int]] = {talk.client: set(), talk.server: set()}
        for core, streams in self._streams.items():
            core.frames.streams = streams

    def turns(self, count: int) -> None:
        for _ in range(count):
            self._turn()

    def _turn(self) -> None:
        for core, streams in self._streams.items():
            self._take_note(core, streams)
            for _ in range(self._chance.randrange(6)):
                try:
                    self._act(core, streams)
                except StreamRefused:
                    pass
        self._talk.step()
        assert not self._talk.client.is_closed, self._talk.client.close_reason
        assert not self._talk.server.is_closed, self._talk.server.close_reason

    def _take_note(self, core: QuicCore, streams: set[int]) -> None:
        for event in self._talk.events[core]:
            if event[0] in (STREAM_DATA, STREAM_RESET):
                assert isinstance(event[1], int)
                streams.add(event[1])
            elif event[0] == STREAM_FINISHED:
                streams.discard(event[1])
        self._talk.events[core].clear()

    def _act(self, core: QuicCore, streams: set[int]) -> None:
        chance, what = self._chance, self._chance.random()
        data = bytes(chance.choice((5, 500, 5_000, 50_000)))
        if what < 0.3 or not streams:
            if len(streams) < 30:
                stream_id = core.open_stream(one_way=chance.random() < 0.3)
                streams.add(stream_id)
                core.send(stream_id, data, end=chance.random() < 0.3)
            return
        stream_id = chance.choice(sorted(streams))
        if what < 0.55 or self._in_peace:
            core.send(stream_id, data, end=chance.random() < 0.5)
        elif what < 0.75:
            core.reset(stream_id, 1)
        else:
            core.stop(stream_id, 1)


@pytest.mark.parametrize("in_peace", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_no_quarrel_over_a_bad_network_breaks_a_core(tmp_path: Path, seed: int, in_peace: bool) -> None:
    chance = random.Random(seed)
    quarrel = Quarrel(Talk(tmp_path, bad=chance).shake_hands(), chance, in_peace=in_peace)
    quarrel.turns(300)


def test_the_library_fails_on_a_frame_of_a_stream_that_it_has_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the library was mended, and `kept_frames.py` can go."""
    monkeypatch.setattr(PendingFrames, "after_sending", lambda *_, **__: None)
    monkeypatch.setattr(PendingFrames, "peer_stopped", lambda _: None)
    chance = random.Random(1)
    quarrel = Quarrel(Talk(tmp_path, bad=chance).shake_hands(), chance, in_peace=False)
    with pytest.raises(ValueError, match="reserved stream is missing"):
        quarrel.turns(300)


@pytest.mark.parametrize("seed", range(4))
def test_nor_does_one_where_few_datagrams_may_be_sent_at_a_time(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    talk = Talk(tmp_path, bad=chance).shake_hands()
    take = QuicCore.take_datagrams

    def take_few(core: QuicCore, now_s: float, datagrams_max: int) -> list[tuple[bytes, Address]]:
        return take(core, now_s, min(datagrams_max, chance.choice((0, 1, 1, 2, 3, 100))))

    monkeypatch.setattr(QuicCore, "take_datagrams", take_few)
    quarrel = Quarrel(talk, chance, in_peace=False)
    quarrel.turns(300)

"""What `penstock.quic` assumes of the QUIC library beyond its documented interface, held against the version that is installed."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from qh3 import tls as library_tls
from qh3._hazmat import QuicConnectionCore, X25519ML768KeyExchange

from penstock.quic import library
from penstock.quic.events import REPORTED, STREAM_DATA
from penstock.quic.handshake import ConnectionIds, make_packet_core
from penstock.quic.settings import QuicSettings
from tests.quic.talk import CLIENT, KIB, MIB, SERVER, Talk

STREAM_LIMIT_ERROR = 4
IDS = ConnectionIds(local=b"a client", initial=b"original", original_destination=b"original")


def packet_core() -> QuicConnectionCore:
    return make_packet_core(QuicSettings(), IDS, is_client=True, address=SERVER, now_s=1.0)


def events_of(core: QuicConnectionCore) -> list[tuple[Any, ...]]:
    found = []
    while (event := core.next_event()) is not None:
        found.append(event)
    return found


def test_a_report_counts_accepted_packets_at_the_place_we_read(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    ((datagram, _), *_) = talk.client.take_datagrams(talk.now_s, 1)
    core = talk.server._core
    assert core.receive_datagram(datagram, CLIENT, 1.0)[library.REPORT_ACCEPTED] == 1
    assert core.receive_datagram(datagram, CLIENT, 1.0)[library.REPORT_ACCEPTED] == 0
    assert core.receive_gro_buffer(bytes(1_200), 1_200, CLIENT, 1.0)[library.REPORT_ACCEPTED] == 0


def test_a_receive_report_counts_the_events_that_were_added(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    streams = [talk.client.open_stream(one_way=True) for _ in range(2)]
    for _ in talk.steps(20):
        pass  # until nobody has anything to say
    added = []
    for stream_id in (streams[0], streams[0], streams[1], streams[0]):
        talk.client.send(stream_id, b"x", end=False)
        for datagram, _ in talk.client.take_datagrams(talk.now_s, 10):
            added.append(talk.server._core.receive_gro_buffer(datagram, len(datagram), CLIENT, talk.now_s))
    assert [report[library.REPORT_EVENTS] for report in added] == [1, 0, 1, 1]


def test_a_path_names_its_remote_address_and_datagram_size_at_the_places_we_read() -> None:
    path = packet_core().active_path
    assert path[library.PATH_REMOTE] == SERVER
    assert path[library.PATH_DATAGRAM_BYTES] == QuicSettings().datagram_bytes


def test_states_have_the_names_we_compare_with(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    assert talk.client._core.state == library.FIRST_FLIGHT
    talk.shake_hands()
    assert talk.client._core.state not in {library.FIRST_FLIGHT, *library.CLOSED_STATES}
    talk.client.close()
    assert talk.client._core.state in library.CLOSED_STATES
    talk.step()
    assert talk.server._core.state in library.CLOSED_STATES


def test_events_have_the_kinds_and_fields_we_read(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    for datagram, _ in talk.client.take_datagrams(talk.now_s, 10):
        talk.server._core.receive_datagram(datagram, CLIENT, talk.now_s)
    kind, epoch, offset, data = events_of(talk.server._core)[0]
    assert (kind, epoch, offset) == (library.CRYPTO_DATA, library_tls.Epoch.INITIAL, 0)
    assert data[0] == library_tls.HandshakeType.CLIENT_HELLO

    talk = Talk(tmp_path).shake_hands()
    talk.server.close(77, "enough")
    for datagram, _ in talk.server.take_datagrams(talk.now_s, 10):
        talk.client._core.receive_datagram(datagram, SERVER, talk.now_s)
    kinds = {event[0]: event[1:] for event in events_of(talk.client._core)}
    assert kinds[library.PEER_CLOSED] == (True, 77, None, b"enough")


def test_a_peer_that_breaks_the_protocol_is_reported_with_code_and_text(tmp_path: Path) -> None:
    talk = Talk(tmp_path, QuicSettings(streams_max=1)).shake_hands()
    believe_in_many_streams(talk.client._core)
    for _ in range(2):
        talk.client.send(talk.client.open_stream(one_way=True), b"x", end=False)
    for datagram, _ in talk.client.take_datagrams(talk.now_s, 10):
        talk.server._core.receive_datagram(datagram, CLIENT, talk.now_s)
    (error,) = [event for event in events_of(talk.server._core) if event[0] == library.PROTOCOL_ERROR]
    assert error[1] == STREAM_LIMIT_ERROR
    assert [type(field) for field in error[1:]] == [int, int, str]


def believe_in_many_streams(core: QuicConnectionCore) -> None:
    """Make a peer think that it was allowed more than it was."""
    core.apply_peer_transport_parameters(
        connection_send_limit=1 << 20,
        stream_send_limit_bidi_local=1 << 20,
        stream_send_limit_bidi_remote=1 << 20,
        stream_send_limit_uni=1 << 20,
        peer_max_streams_bidi=100,
        peer_max_streams_uni=100,
        ack_delay_exponent=3,
        max_ack_delay=0.025,
        peer_idle_timeout=None,
        max_datagram_frame_size=None,
    )


def test_an_idle_connection_is_terminated_with_the_text_we_compare_with() -> None:
    core = packet_core()
    core.handle_timer(1.0 + QuicSettings().idle_s_max + 1)
    (event,) = [event for event in events_of(core) if event[0] == library.TERMINATED]
    assert event[3].decode() == library.IDLE_REASON


def test_the_anti_amplification_limit_is_reported_with_the_text_we_compare_with(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    ((datagram, _), *_) = talk.client.take_datagrams(talk.now_s, 1)
    talk.server.receive(datagram, len(datagram), CLIENT, talk.now_s)
    texts = []
    for _ in range(20):
        talk.now_s += 1
        try:
            while talk.server._core.poll_transmit(talk.now_s) is not None:
                pass
        except RuntimeError as error:
            texts.append(str(error))
        talk.server._core.handle_timer(talk.now_s)
    assert set(texts) <= {library.NO_ROOM_FOR_A_PACKET}


def test_a_timer_that_paces_datagrams_has_the_name_we_compare_with(tmp_path: Path) -> None:
    talk = Talk(tmp_path).shake_hands()
    for _ in talk.steps(20):
        pass
    core = talk.client._core
    core.send_stream(talk.client.open_stream(one_way=True), bytes(1_000_000), False)
    while core.poll_transmit(talk.now_s) is not None:
        pass
    timer = core.get_timer()
    assert timer is not None
    assert timer[0] == library.PACING_TIMER


def test_asking_for_a_datagram_costs_the_pacer_one_also_if_there_is_nothing_to_send(tmp_path: Path) -> None:
    """If this fails, the library was mended, and `QuicCore.must_send` need not be so careful."""
    talk = Talk(tmp_path).shake_hands()
    for _ in talk.steps(50):
        pass
    core = talk.client._core
    polls = 0
    while core.get_timer()[0] != library.PACING_TIMER:  # type: ignore[index]
        assert core.poll_transmit(talk.now_s) is None
        polls += 1
        assert polls < 100
    assert polls > 1


def test_an_acknowledgement_that_is_not_due_travels_with_data_only_if_the_timer_is_handled_before(
    tmp_path: Path,
) -> None:
    for is_handled in (False, True):
        talk = Talk(tmp_path).shake_hands()
        for _ in talk.steps(50):
            pass
        stream_id = talk.client.open_stream(one_way=False)
        talk.client.send(stream_id, b"x", end=False)
        ((datagram, _),) = talk.client.take_datagrams(talk.now_s, 1)
        core = talk.server._core
        core.receive_gro_buffer(datagram, len(datagram), CLIENT, talk.now_s)
        timer = core.get_timer()
        assert timer is not None
        assert timer[0] == library.ACK_TIMER
        assert timer[1] > talk.now_s
        if is_handled:
            core.handle_timer(timer[1])
        core.send_stream(stream_id, b"y", False)
        assert core.poll_transmit(talk.now_s) is not None
        after = core.get_timer()
        assert after is not None
        assert (after[0] == library.ACK_TIMER) is not is_handled


def test_a_core_with_the_initial_keys_we_derive_reads_what_a_client_sends() -> None:
    """The library derives the same keys by itself if the peer has a connection id."""
    no_id = IDS._replace(local=b"")
    client = make_packet_core(QuicSettings(), no_id, is_client=True, address=SERVER, now_s=1.0)
    client.send_crypto(library_tls.Epoch.INITIAL, 0, b"hello")
    datagram = client.poll_transmit(1.0)
    assert datagram is not None
    ids = ConnectionIds(local=IDS.initial, initial=IDS.initial, original_destination=b"before", peer=b"")
    server = make_packet_core(QuicSettings(), ids, is_client=False, address=CLIENT, now_s=1.0)
    assert server.receive_datagram(datagram[0], CLIENT, 1.0)[library.REPORT_ACCEPTED] == 1


@pytest.mark.parametrize("kind", sorted(REPORTED))
def test_every_event_that_is_passed_on_exists_in_the_library(tmp_path: Path, kind: str) -> None:
    seen = {STREAM_DATA: exchange, "stream_finished": exchange, "streams_available": exchange}
    assert kind in events_after(tmp_path, seen.get(kind, disturb))


def exchange(talk: Talk) -> None:
    for _ in range(200):
        stream_id = talk.client.open_stream(one_way=True)
        talk.client.send(stream_id, b"x", end=True)
        talk.step()


def disturb(talk: Talk) -> None:
    stream_id = talk.client.open_stream(one_way=False)
    talk.client.send(stream_id, b"x", end=False)
    talk.step()
    talk.client.reset(stream_id, 1)
    talk.client.stop(stream_id, 2)
    talk.client._core.change_connection_id()


def events_after(tmp_path: Path, act: Callable[[Talk], None]) -> set[str]:
    talk = Talk(tmp_path, QuicSettings(streams_max=100)).shake_hands()
    for _ in talk.steps(20):
        pass
    act(talk)
    for _ in talk.steps(100):
        pass
    return {str(event[0]) for core in (talk.client, talk.server) for event in talk.events[core]}


def test_the_newest_packet_in_flight_is_gone_once_it_is_acknowledged_and_not_before(tmp_path: Path) -> None:
    talk = Talk(tmp_path, QuicSettings()).shake_hands()
    for _ in talk.steps(20):
        pass
    server = talk.server
    assert server.newest_in_flight == -1
    server.ping()
    lost = server.take_datagrams(talk.now_s, 10)
    first = server.newest_in_flight
    server.ping()
    second_datagrams = server.take_datagrams(talk.now_s, 10)
    assert lost
    assert second_datagrams
    assert server.newest_in_flight == first + 1
    assert first >= 0
    server.handle_timer(talk.now_s + 0.01)
    assert server.newest_in_flight == first + 1
    for datagram, _ in second_datagrams:
        talk.client.receive(datagram, len(datagram), SERVER, talk.now_s)
    for _ in talk.steps(20):
        pass
    assert server.newest_in_flight in (-1, first)


def test_a_panic_has_the_name_we_look_for_and_is_no_exception() -> None:
    with pytest.raises(BaseException) as caught:
        X25519ML768KeyExchange().exchange(b"\xff" * 1_216)
    assert type(caught.value).__name__ == library.PANIC
    assert not isinstance(caught.value, Exception)


@pytest.mark.parametrize(
    "name",
    [
        "_receive_buffer",
        "_alpn_protocols",
        "_alps_negotiated",
        "_signature_algorithms",
        "_peer_certificate",
        "_verify_mode",
        "_cafile",
        "_server_name",
    ],
)
def test_the_tls_context_has_the_private_attribute_that_we_use(name: str) -> None:
    assert hasattr(library_tls.Context(is_client=True), name)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_server_handle_hello", ["self", "input_buf", "initial_buf", "handshake_buf", "onertt_buf"]),
        ("_client_handle_certificate_verify", ["self", "input_buf"]),
        ("handle_message", ["self", "input_data", "output_buf", "epoch"]),
    ],
)
def test_the_tls_context_has_the_methods_that_we_extend(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(library_tls.Context, name)).parameters) == parameters


@pytest.mark.parametrize("window_bytes", [64 * KIB, 8 * MIB])
def test_a_stream_keeps_up_to_four_times_the_most_that_was_unacknowledged(tmp_path: Path, window_bytes: int) -> None:
    """This is what send windows are for: of a stream that is read to the end, nothing would have to be kept."""
    talk = Talk(tmp_path, QuicSettings(send_window_bytes=window_bytes)).shake_hands()
    stream_id = talk.server.open_stream(one_way=True)
    talk.server.send(stream_id, bytes(2 * MIB), end=False)
    most_bytes = 0
    while not talk.server.is_idle:
        talk.step()
        most_bytes = max(most_bytes, talk.server.in_flight_bytes)
    before_bytes = allocated_bytes()
    talk.server.release()
    kept_bytes = before_bytes - allocated_bytes()
    assert most_bytes < kept_bytes < 4 * most_bytes + 64 * KIB


class MallocCounts(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]  # fmt: skip


def allocated_bytes() -> int:
    """Return what this process has from malloc."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallocCounts
    counts = mallinfo2()
    return int(counts.uordblks + counts.hblkhd)

"""Bounds of a QUIC listener: slow peers, greedy ones, and floods of handshakes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from qh3.tls import Epoch

from penstock.clients.quic import QuicStream
from penstock.errors import ConnectionLost, Unreachable
from penstock.net import quic_connection
from penstock.net.flow import UNSENT_BYTES_FREE
from penstock.net.limits import QuicLimits
from penstock.net.quic_connection import QuicServerConnection
from penstock.net.quic_stream import QuicServerStream
from penstock.quic.core import CLOCK_AHEAD_S_MAX, CONNECTION_REFUSED, QuicCore
from penstock.quic.packets import long_header
from penstock.quic.settings import QuicSettings
from penstock.quic.tls import TlsSettings
from tests.interop.quic.aioquic_peer import aioquic_connection, aioquic_peer
from tests.interop.quic.conversation import echo
from tests.net.line_session import until
from tests.net.quic_lines import ALPN, LineStream, QuicService, read_all, read_line, serving_quic, talking

KIB, MIB = 1024, 1024 * 1024


def connection_of(service: QuicService, number: int = 0) -> QuicServerConnection:
    connection = service.sessions[number].connection
    assert isinstance(connection, QuicServerConnection)
    return connection


async def until_nothing_moves(service: QuicService) -> None:
    """Both sides have said what they could: for a while no byte came or went."""
    before, quiet_since = (-1, -1, -1), time.monotonic()
    while time.monotonic() - quiet_since < 0.3:
        await asyncio.sleep(0)
        now = (service.stats.bytes_in, service.stats.bytes_out, connection_of(service).unsent_bytes)
        if now != before:
            before, quiet_since = now, time.monotonic()


# -- slow peers ------------------------------------------------------------------------------------------------------------


async def test_a_client_that_never_reads_costs_bounded_memory_and_is_closed_in_time(tmp_path: Path) -> None:
    limits = QuicLimits(send_buffer_bytes_max=256 * KIB)
    async with serving_quic(tmp_path, limits) as service:
        lazy, diligent = await service.client(), await service.client()
        lazy.pause_receiving()
        stream = lazy.open_stream()
        await stream.write(b"big 100000\n" * 1_000)
        await until(lambda: bool(service.sessions[0].streams))
        session = service.sessions[0].streams[0]
        await until(lambda: not session.stream.writable)
        await until_nothing_moves(service)
        connection = connection_of(service)
        assert session.put_off
        assert 64 * KIB < connection.unsent_bytes <= 256 * KIB + 100_000
        assert session.stream.unsent_bytes == connection.unsent_bytes
        assert service.stats.bytes_out < 10 * MIB

        other = diligent.open_stream()
        await other.write(b"echo unaffected\n")
        assert await read_line(other) == b"unaffected\n"

        service.pass_time(limits.idle_s_max + 2)
        assert service.stats.closed_unread == 1
        assert session.is_closed
        assert not service.sessions[1].is_closed
        lazy.resume_receiving()
        await asyncio.wait_for(lazy.wait_closed(), 20)
        assert "unread" in str(lazy.loss)


async def test_what_a_client_refuses_unsent_does_not_count_as_arrived(tmp_path: Path) -> None:
    limits = QuicLimits(send_buffer_bytes_max=256 * KIB)
    async with serving_quic(tmp_path, limits) as service:
        client = await service.client()
        client.pause_receiving()
        stream = client.open_stream()
        await stream.write(b"big 100000\n" * 100)
        await until(lambda: bool(service.sessions) and bool(service.sessions[0].streams))
        session = service.sessions[0].streams[0]
        await until(lambda: not session.stream.writable)
        await until_nothing_moves(service)
        unsent_bytes = session.stream.unsent_bytes
        assert unsent_bytes > 64 * KIB
        stream.stop_receiving(9)
        await until(lambda: session.aborts == [9])
        assert session.unacknowledged_bytes >= unsent_bytes


async def test_a_client_that_reads_slowly_gets_everything(tmp_path: Path) -> None:
    limits = QuicLimits(send_buffer_bytes_max=256 * KIB)
    async with talking(tmp_path, limits) as (service, client, stream):
        await stream.write(b"big 100000\n" * 200, end=True)
        received = 0
        async with asyncio.timeout(30):
            while received < 200 * 100_000:
                client.pause_receiving()
                service.pass_time(2)
                await asyncio.sleep(0)
                client.resume_receiving()
                received += len(await stream.read())
        assert service.stats.closed_unread == 0
        assert service.stats.bytes_out == received == 200 * 100_000


async def test_all_streams_of_a_connection_together_are_bounded_too(tmp_path: Path) -> None:
    limits = QuicLimits(send_buffer_bytes_max=256 * KIB)
    async with serving_quic(tmp_path, limits) as service:
        client = await service.client()
        client.pause_receiving()
        streams = [client.open_stream() for _ in range(100)]
        for stream in streams:
            await stream.write(b"big 100000\n" * 10, end=True)
        connection = await _congested(service)
        await until_nothing_moves(service)
        # What eight streams may have waiting, a quarter of it before that is checked, and one reply.
        assert connection.unsent_bytes < 10 * 256 * KIB + 100_000
        assert not any(session.stream.writable for session in service.sessions[0].streams)
        client.resume_receiving()
        for stream in streams:
            assert len(await read_all(stream)) == 10 * 100_000
        assert not connection.congested


async def _congested(service: QuicService) -> QuicServerConnection:
    connection = connection_of(service)
    await until(lambda: connection.congested)
    return connection


# -- greedy peers ----------------------------------------------------------------------------------------------------------


async def test_a_stream_with_too_much_unanswered_is_not_read_while_others_are(tmp_path: Path) -> None:
    limits = QuicLimits(in_flight_bytes_max=8 * MIB, stream_in_flight_bytes_max=64 * KIB)
    async with serving_quic(tmp_path, limits) as service:
        client = await service.client()
        greedy, modest = client.open_stream(), client.open_stream()
        line = b"later " + b"x" * 1_000 + b"\n"
        greedy.send(line * 200)
        await until(lambda: bool(service.sessions[0].streams))
        session = service.sessions[0].streams[0]
        await until(lambda: len(session.later) * 1_006 > 64 * KIB)
        await modest.write(b"echo here\n")
        assert await read_line(modest) == b"here\n"
        assert service.stats.read_pauses >= 1
        while (not greedy.is_over and session.received < len(line) * 200) or session.later:
            while session.later:
                session.answer()
            await asyncio.sleep(0)
        greedy.end()
        assert await read_all(greedy) == (b"x" * 1_000 + b"\n") * 200


async def test_a_session_hears_of_nothing_more_while_it_answers(tmp_path: Path) -> None:
    limits = QuicLimits(stream_in_flight_bytes_max=64 * KIB)
    async with talking(tmp_path, limits) as (service, _, stream):
        line = b"later " + b"x" * 1_000 + b"\n"
        stream.send(line * 100, end=True)
        await until(lambda: service.stats.read_pauses == 1)
        await until_nothing_moves(service)
        [session] = service.sessions[0].streams
        while session.later or not session.has_ended:
            while session.later:
                before = session.received, session.has_ended
                session.answer()
                assert (session.received, session.has_ended) == before
            await asyncio.sleep(0)
        assert await read_all(stream) == (b"x" * 1_000 + b"\n") * 100


async def test_a_connection_with_too_much_unanswered_gives_its_client_no_more_credit(tmp_path: Path) -> None:
    limits = QuicLimits(in_flight_bytes_max=256 * KIB, stream_in_flight_bytes_max=4 * MIB)
    async with talking(tmp_path, limits) as (service, client, stream):
        line = b"later " + b"x" * 1_000 + b"\n"
        total = 20_000
        stream.send(line * total, end=True)
        await until(lambda: service.stats.read_pauses == 1)
        await until_nothing_moves(service)
        session = service.sessions[0].streams[0]
        # One event more than the bound at most, which is no larger than the window of a stream.
        assert 256 * KIB < session.received < 256 * KIB + QuicSettings().stream_window_bytes
        assert client.unsent_bytes > 10 * MIB
        answer = asyncio.ensure_future(read_all(stream))
        async with asyncio.timeout(30):
            while session.received < len(line) * total or session.later:
                while session.later:
                    session.answer()
                await asyncio.sleep(0)
        assert len(await answer) == 1_001 * total


async def test_the_whole_server_has_a_bound_too(tmp_path: Path) -> None:
    limits = QuicLimits.model_construct(in_flight_bytes_max=8 * MIB, in_flight_total_bytes_max=100 * KIB)
    async with serving_quic(tmp_path, limits) as service:
        first, second = await service.client(), await service.client()
        for client in (first, second):
            client.open_stream().send((b"later " + b"x" * 1_000 + b"\n") * 80)
        await until(lambda: len(service.listener.budget.stopped) >= 1)
        await until_nothing_moves(service)
        assert service.listener.budget.held_bytes > 50 * KIB
        paused = [
            session
            for session in service.sessions
            if not connection_of(service, service.sessions.index(session)).reading
        ]
        assert len(paused) == len(service.listener.budget.stopped)
        for session in service.sessions:
            for stream in session.streams:
                while stream.later:
                    stream.answer()
        await until(lambda: len(service.listener.budget.stopped) == 0)


async def test_a_frame_that_stays_half_received_ends_its_stream(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        stream, other = client.open_stream(), client.open_stream()
        await stream.write(b"echo hal")
        await other.write(b"echo whole\n")
        assert await read_line(other) == b"whole\n"
        await until(lambda: len(service.sessions[0].streams) == 2)
        service.pass_time(service.listener.limits.header_s_max + 2)
        assert await read_all(stream) == b""
        assert service.stats.closed_header == 1
        await other.write(b"echo still\n")
        assert await read_line(other) == b"still\n"


async def test_a_frame_that_stays_partial_is_freed_before_its_peer_has_said_anything(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits(header_s_max=1.0)) as service:
        client = await service.client()
        client.open_stream().send(b"half a line")
        await until(lambda: bool(service.sessions) and bool(connection_of(service).partial_frames))
        connection = connection_of(service)
        (stream,) = connection.streams.values()
        assert isinstance(stream, QuicServerStream)
        connection.sweep(100.0)
        assert stream.owes
        connection.sweep(101.0)
        assert stream._session is None, "the session was told at once that its stream is closed"
        assert connection.flow.partial_bytes == 0
        await until(lambda: not connection.streams)  # QUIC has finished with it too
        assert service.stats.closed_header == 1


async def test_many_streams_with_partial_frames_are_one_peer_too_many(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits(partial_frames_bytes_max=1 * MIB)) as service:
        client = await service.client()
        for _ in range(1_000):
            client.open_stream().send(b"echo " + b"x" * 4_000)
        await asyncio.wait_for(client.wait_closed(), 20)
        assert service.stats.closed_header == 1
        assert service.stats.bytes_in <= 1 * MIB + 64 * KIB
        assert service.stats.connections_open == 0
        assert "partial frames" in str(client.loss)


async def test_frames_that_are_finished_do_not_count_as_half_ones(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits(partial_frames_bytes_max=64 * KIB)) as service:
        client = await service.client()
        streams = [client.open_stream() for _ in range(10)]
        for _ in range(10):
            for stream in streams:
                await stream.write(b"echo " + b"x" * 2_000)
            for stream in streams:
                await stream.write(b"\n")
                assert await read_line(stream) == b"x" * 2_000 + b"\n"
        connection = connection_of(service)
        assert connection.flow.partial_bytes == 0
        assert not connection.partial_frames


async def half_a_frame(service: QuicService) -> tuple[QuicStream, LineStream, QuicServerConnection]:
    """Send eight bytes of a frame: the client's stream, its session, and the connection."""
    stream = (await service.client()).open_stream()
    await stream.write(b"echo hal")
    await until(lambda: service.sessions != [] and service.sessions[0].streams != [])
    [session], connection = service.sessions[0].streams, connection_of(service)
    await until(lambda: connection.flow.partial_bytes == 8)
    return stream, session, connection


@pytest.mark.parametrize("by", ["us", "the peer"])
async def test_a_frame_of_a_stream_that_was_closed_is_not_counted(tmp_path: Path, by: str) -> None:
    async with serving_quic(tmp_path) as service:
        stream, session, connection = await half_a_frame(service)
        if by == "us":
            session.stream.close()
        else:
            stream.reset(7)
            await until(lambda: session.is_closed)
        assert connection.flow.partial_bytes == 0
        session.connection.frame_pending(True)
        assert not connection.partial_frames
        assert connection.flow.partial_bytes == 0


async def test_a_request_that_is_held_later_does_not_make_a_partial_frame_count_less(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        stream, session, connection = await half_a_frame(service)
        service.pass_time(1)
        service.pass_time(service.listener.limits.header_s_max - 2)
        session.connection.hold(5)
        assert connection.flow.partial_bytes == 8
        session.connection.release(5)
        service.pass_time(4)
        assert await read_all(stream) == b""
        assert service.stats.closed_header == 1


# -- floods of connections ---------------------------------------------------------------------------------------------------


@contextmanager
def stranger(host: str = "127.0.0.1") -> Iterator[socket.socket]:
    """A socket that speaks no QUIC of its own."""
    with socket.socket(type=socket.SOCK_DGRAM) as own:
        own.setblocking(False)
        own.bind((host, 0))
        yield own


def first_flight(where: tuple[str, int]) -> tuple[QuicCore, list[bytes]]:
    tls = TlsSettings(alpn=(ALPN,), verify=False, server_name="localhost")
    core = QuicCore.connect(QuicSettings(), tls, where, time.monotonic())
    return core, [datagram for datagram, _ in core.take_datagrams(time.monotonic(), 10)]


async def test_a_thousand_half_open_handshakes_are_bounded_and_a_real_client_still_gets_in(tmp_path: Path) -> None:
    limits = QuicLimits(handshakes_max=200, retry_above=50)
    async with serving_quic(tmp_path, limits) as service:
        with stranger() as flooder:
            for _ in range(1_000):
                _, datagrams = first_flight(service.where)
                flooder.sendto(datagrams[0], service.where)
                await asyncio.sleep(0)
            await until(lambda: service.stats.retries_sent == 950)
            assert service.stats.handshakes_open == service.stats.connections_open == 50

            client = await service.client()
            assert service.stats.retries_sent == 951
            stream = client.open_stream()
            await stream.write(b"echo in\n")
            assert await read_line(stream) == b"in\n"

        service.pass_time(limits.handshake_s_max + 2)
        assert service.stats.handshakes_open == 0
        assert service.stats.connections_open == 1
        assert service.stats.handshake_failures == 50


async def test_a_handshake_that_does_not_end_is_aborted(tmp_path: Path) -> None:
    """What comes out of order costs many times its size until what is missing comes, and here it never does."""
    limits = QuicLimits(retry_above=500, handshake_bytes_max=32 << 10)
    async with serving_quic(tmp_path, limits) as service:
        with stranger() as own:
            core, _ = first_flight(service.where)  # which is never sent
            library = core._core
            sent_bytes = 0

            def step() -> bool:
                nonlocal sent_bytes
                library.send_crypto(Epoch.INITIAL, 10_000 + sent_bytes, bytes(900))
                for datagram, _ in core.take_datagrams(time.monotonic(), 10):
                    own.sendto(datagram, service.where)
                    sent_bytes += len(datagram)
                try:
                    while True:
                        now_s = (
                            time.monotonic() + CLOCK_AHEAD_S_MAX
                        )  # which is how far the library's clock may be ahead
                        library.receive_datagram(own.recv(65_535), service.where, now_s)
                except BlockingIOError:
                    return service.stats.handshake_failures > 0

            await until(step)
            assert 16 << 10 < sent_bytes < 64 << 10
        assert service.stats.handshakes_open <= 1  # what was still on its way begins another
        await service.client()


async def test_who_shows_its_address_takes_the_place_of_the_oldest_handshake_at_the_bound(tmp_path: Path) -> None:
    limits = QuicLimits(handshakes_max=20, retry_above=1)
    async with serving_quic(tmp_path, limits) as service:
        with stranger() as flooder:
            for count in range(1, 25):
                await _begin_handshake(service, flooder)
                await until(lambda count=count: service.stats.handshakes_open >= min(count, 20))  # type: ignore[misc]
            await until(lambda: service.stats.handshakes_dropped > 0)
            assert service.stats.handshakes_open == 20
            await service.client()
        service.pass_time(limits.handshake_s_max + 2)
        assert service.stats.handshakes_open == 0


async def test_one_host_cannot_crowd_out_the_handshakes_of_others(tmp_path: Path) -> None:
    limits = QuicLimits(handshakes_max=20, retry_above=1)
    async with serving_quic(tmp_path, limits) as service:
        with stranger() as flooder, stranger("127.0.0.2") as other:
            await _begin_handshake(service, other)
            await until(lambda: service.stats.handshakes_open == 1)
            for count in range(2, 60):
                await _begin_handshake(service, flooder)
                await until(lambda count=count: service.stats.handshakes_open >= min(count, 20))  # type: ignore[misc]
            await until(lambda: service.stats.handshakes_dropped >= 39)
            assert [connection.host for connection in service.listener._half_open].count("127.0.0.2") == 1
            for _ in range(8):
                await _begin_handshake(service, other)
            await until(lambda: service.stats.handshakes_dropped >= 47)
            assert [connection.host for connection in service.listener._half_open].count("127.0.0.2") == 9


async def test_hosts_of_one_network_cannot_crowd_out_the_handshakes_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quic_connection, "network_of", lambda host: "many" if host != "127.0.0.2" else host)
    limits = QuicLimits(handshakes_max=20, retry_above=1)
    async with serving_quic(tmp_path, limits) as service:
        with stranger("127.0.0.2") as other, ExitStack() as stack:
            flooders = [stack.enter_context(stranger(f"127.0.0.{3 + number}")) for number in range(12)]
            for count, own in enumerate([other] * 8 + flooders, 1):
                await _begin_handshake(service, own)
                await until(lambda count=count: service.stats.handshakes_open == count)  # type: ignore[misc]
            for own in flooders:
                await _begin_handshake(service, own)
            await until(lambda: service.stats.handshakes_dropped >= 12)
            assert [connection.host for connection in service.listener._half_open].count("127.0.0.2") == 8


async def _begin_handshake(service: QuicService, own: socket.socket) -> None:
    """Begin a handshake, begin it again after a Retry, and leave it there."""
    core, datagrams = first_flight(service.where)
    for datagram in datagrams:
        own.sendto(datagram, service.where)
    answer = await _answer_to(core, own)
    core.receive(answer, len(answer), service.where, time.monotonic())
    for datagram, _ in core.take_datagrams(time.monotonic(), 10):
        own.sendto(datagram, service.where)


async def _answer_to(core: QuicCore, own: socket.socket) -> bytes:
    """The first datagram for this client; the server repeats itself to others that came by the same socket."""
    answer: list[bytes] = []

    def receive() -> bool:
        try:
            datagram = own.recv(65_535)
        except BlockingIOError:
            return False
        header = long_header(datagram)
        if header is not None and header.destination_cid == core.ids.local:
            answer.append(datagram)
        return bool(answer)

    await until(receive)
    return answer[0]


async def test_a_connection_above_the_bound_is_refused_at_once(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits(max_connections=2)) as service:
        first, _ = await service.client(), await service.client()
        with pytest.raises(Unreachable):
            await service.client()
        assert service.stats.connections_refused >= 1
        assert service.stats.connections_open == 2
        first.close()
        await until(lambda: service.stats.connections_open == 1)
        third = await service.client()
        with pytest.raises(ConnectionLost):
            await first.accept_stream()
        stream = third.open_stream()
        await stream.write(b"echo in\n")
        assert await read_line(stream) == b"in\n"


async def test_what_clients_do_not_take_is_bounded_over_all_connections(tmp_path: Path) -> None:
    limits = QuicLimits(in_flight_total_bytes_max=4 * MIB, send_buffer_bytes_max=4 * MIB)
    async with serving_quic(tmp_path, limits) as service:
        idle = [await service.client() for _ in range(10)]
        news = [session.connection.open_stream(LineStream, one_way=True) for session in service.sessions]
        for client in idle:
            client.pause_receiving()

        def step() -> bool:
            for stream in news:
                if stream.writable:
                    stream.send(bytes(100_000))
            return not any(stream.writable for stream in news)

        await until(step)
        assert service.listener.budget.unsent_bytes < 4 * MIB + 10 * (100_000 + UNSENT_BYTES_FREE)
        for client in idle:
            client.resume_receiving()
        await until(lambda: all(stream.writable for stream in news))

        def is_taken() -> bool:
            service.listener.sweep()
            return service.listener.budget.unsent_bytes == 0

        await until(is_taken)


async def test_room_for_a_reply_that_is_not_made_any_more_is_given_up(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        stream = client.open_stream()
        await stream.write(b"later reply\n")
        await until(lambda: service.sessions[0].streams != [] and len(service.sessions[0].streams[0].later) == 1)
        [session], budget = service.sessions[0].streams, service.listener.budget
        budget.unsent_bytes += budget.bytes_max  # of others
        assert not session.connection.room_for(MIB)
        session.answer()
        budget.unsent_bytes -= budget.bytes_max
        budget.grant_soon()
        await until(lambda: budget.waiting_for_room == 0)
        assert budget.promised_bytes == 0


async def test_under_memory_pressure_a_connection_is_stopped_after_little(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        client.pause_receiving()
        news = service.sessions[0].connection.open_stream(LineStream, one_way=True)
        service.listener.budget.unsent_bytes += service.listener.budget.bytes_max + 1  # of others
        sent_bytes = 0
        while news.writable:
            news.send(bytes(1_000))
            sent_bytes += 1_000
        assert UNSENT_BYTES_FREE < sent_bytes <= UNSENT_BYTES_FREE * 5 // 4 + 2_000


async def test_under_memory_pressure_a_connection_is_resumed_at_half_of_what_stopped_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_quic(tmp_path) as service:
        await service.client()
        connection = connection_of(service)
        budget, others_bytes = service.listener.budget, service.listener.budget.bytes_max + 1

        def is_stopped(waiting_bytes: int) -> bool:
            """Whether a connection that was stopped still is, with so much left."""

            def look(connection: QuicServerConnection) -> None:
                connection.waiting_bytes = waiting_bytes
                connection.waiting_changed()

            monkeypatch.setattr(QuicServerConnection, "look_at_congestion", look)
            connection.congested = True
            service.listener.sweep()
            return connection.congested

        budget.unsent_bytes += others_bytes
        assert is_stopped(UNSENT_BYTES_FREE)
        assert not is_stopped(UNSENT_BYTES_FREE // 2)
        budget.unsent_bytes -= others_bytes
        assert not is_stopped(UNSENT_BYTES_FREE), "the pressure is gone, and so is what it stopped"


async def test_a_client_without_connection_ids_is_refused_at_once_above_the_bound_too(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits(max_connections=1)) as service:
        await service.client()
        quic = aioquic_connection(alpn=ALPN, connection_id_length=0)
        async with aioquic_peer(service.listener.address, connection=quic, wait_connected=False) as peer:
            peer.transmit()
            assert (await peer.ended()).error_code == CONNECTION_REFUSED
        assert service.stats.connections_refused >= 1
        assert service.stats.connections_open == 1


@pytest.mark.parametrize("cid_bytes", [3, 7])  # of shorter ones aioquic may issue the same twice
async def test_a_client_that_gives_the_server_a_short_id_is_given_another_one_by_a_retry(
    tmp_path: Path, cid_bytes: int
) -> None:
    """aioquic chooses ids of its own length for the server too; below eight bytes they may not be unique."""
    async with serving_quic(tmp_path) as service:
        async with aioquic_peer(service.listener.address, alpn=ALPN, connection_id_length=cid_bytes) as peer:
            await echo(peer)
        assert service.stats.retries_sent == 1

"""What a QUIC connection that is not read may hold: its window, and frames that no window bounds."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilder

from penstock.net.limits import QuicLimits
from penstock.net.quic_connection import WAITING_EVENT_BYTES_MIN, WAITING_EVENTS_FREE, Code
from penstock.net.windows import SEND_WINDOW_BYTES_MIN, WINDOW_BYTES_MIN, WINDOWS_LEFT
from penstock.quic.outbox import StreamRefused
from tests.interop.quic.aioquic_peer import Connection as AioquicConnection
from tests.interop.quic.aioquic_peer import aioquic_connection, aioquic_peer
from tests.net.line_session import until
from tests.net.quic_lines import ALPN, read_all, serving_quic, talking
from tests.net.test_quic_limits import connection_of

MIB = 1024 * 1024


async def test_the_more_connections_there_are_the_less_a_new_one_may_send_unread(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits(in_flight_total_bytes_max=16 * MIB)) as service:
        windows = service.listener.budget.windows
        before_bytes = windows.left_bytes
        granted = []
        for number in range(3):
            client = await service.client()
            connection = connection_of(service, number)
            connection.pause_reading()
            client.open_stream().send(bytes(1 * MIB))
            stream_window_bytes = connection.settings.stream_window_bytes
            while client.unsent_bytes != 1 * MIB - stream_window_bytes:
                await asyncio.sleep(0)
            granted.append(connection.settings.connection_window_bytes)
            assert 2 * stream_window_bytes == granted[-1]
        assert granted[0] == before_bytes // WINDOWS_LEFT
        assert granted == sorted(granted, reverse=True)
        assert len(set(granted)) == 3
        assert windows.left_bytes == before_bytes - sum(granted)
        for client in service.clients:
            client.close()
        await until(lambda: windows.left_bytes == before_bytes)


async def test_a_connection_that_takes_much_may_have_more_on_the_way_while_there_is_some_left(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits(in_flight_total_bytes_max=8 * MIB)) as service:
        windows = service.listener.budget.send_windows
        before_bytes = windows.left_bytes
        widths = []
        for number in range(12):
            stream = (await service.client()).open_stream()
            assert connection_of(service, number).core.outbox.window_bytes == SEND_WINDOW_BYTES_MIN
            await stream.write(b"big 1000000\n", end=True)
            assert len(await read_all(stream)) == 1_000_000
            widths.append(connection_of(service, number).core.outbox.window_bytes)
        assert widths[0] == 2 * SEND_WINDOW_BYTES_MIN
        assert widths[-1] == SEND_WINDOW_BYTES_MIN
        assert windows.left_bytes == before_bytes - sum(width - SEND_WINDOW_BYTES_MIN for width in widths)
        for client in service.clients:
            client.close()
        await until(lambda: windows.left_bytes == before_bytes)


async def test_what_peers_have_on_the_way_before_they_authenticate_is_not_taken_from_others(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits(in_flight_total_bytes_max=64 * MIB)) as service:
        windows = service.listener.budget.send_windows
        strangers = service.listener.budget.unauthenticated.send_windows
        before_bytes, strangers_before_bytes = windows.left_bytes, strangers.left_bytes
        client = await service.client()
        connection = connection_of(service, 0)
        connection.set_authenticated(False)
        stream = client.open_stream()
        await stream.write(b"big 1000000\n", end=True)
        assert len(await read_all(stream)) == 1_000_000
        taken_bytes = strangers_before_bytes - strangers.left_bytes
        assert taken_bytes == connection.core.outbox.window_bytes - SEND_WINDOW_BYTES_MIN > 0
        assert windows.left_bytes == before_bytes
        connection.set_authenticated(True)
        assert (windows.left_bytes, strangers.left_bytes) == (before_bytes - taken_bytes, strangers_before_bytes)
        client.close()
        await until(lambda: windows.left_bytes == before_bytes)
        assert strangers.left_bytes == strangers_before_bytes


async def test_a_login_that_is_over_after_its_connection_takes_no_window(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits(in_flight_total_bytes_max=64 * MIB)) as service:
        windows = service.listener.budget.send_windows
        strangers = service.listener.budget.unauthenticated.send_windows
        before = windows.left_bytes, strangers.left_bytes
        client = await service.client()
        connection = connection_of(service, 0)
        connection.set_authenticated(False)
        stream = client.open_stream()
        await stream.write(b"big 1000000\n", end=True)
        assert len(await read_all(stream)) == 1_000_000
        client.close()
        await until(lambda: connection.is_lost)
        connection.set_authenticated(True)
        assert (windows.left_bytes, strangers.left_bytes) == before


async def test_a_closed_connection_keeps_nothing_in_the_library(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, client, stream):
        await stream.write(b"big 1000000\n")
        connections = (client, connection_of(service))
        cores = [connection.core._core for connection in connections]
        client.close()
        await until(lambda: service.sessions[0].is_closed)
        alone = object()
        while cores:
            core = cores.pop()
            assert sys.getrefcount(core) == sys.getrefcount(alone)
        for connection in connections:
            assert connection.unsent_bytes == 0
            assert connection.core.is_idle
            assert connection.core.peer_address[0] == "127.0.0.1"
            connection.core.ping()
            with pytest.raises(StreamRefused):
                connection.core.open_stream(one_way=True)
            with pytest.raises(StreamRefused):
                connection.core.send(stream.id, b"x", end=False)
            for cut_off in (connection.core.reset, connection.core.stop):
                cut_off(stream.id, 0)


async def test_a_peer_that_is_not_read_cannot_fill_memory_with_frames_that_flow_control_does_not_bound(
    tmp_path: Path,
) -> None:
    async with serving_quic(tmp_path, QuicLimits(in_flight_total_bytes_max=1 * MIB)) as service:
        connection = aioquic_connection(alpn=ALPN)
        async with aioquic_peer(service.listener.address, connection=connection) as peer:
            await until(lambda: bool(service.sessions))
            told = send_blocked_frames(connection)
            frames_max = WAITING_EVENTS_FREE + WINDOW_BYTES_MIN // WAITING_EVENT_BYTES_MIN

            async def tell(count: int) -> None:
                told.to_send += count
                while told.to_send and peer.terminated is None:
                    connection.send_ping(0)
                    peer.transmit()
                    await asyncio.sleep(0)

            await tell(2 * frames_max)
            await until(lambda: connection_of(service).core.waiting_events == 0)
            assert peer.terminated is None, "what is read may be as much as the peer likes"
            connection_of(service).pause_reading()
            await tell(frames_max // 2)
            assert peer.terminated is None
            await tell(frames_max)
            assert (await peer.ended()).error_code == Code.TOO_MUCH
            assert service.stats.protocol_errors == 1


class ToldBlocked:
    to_send = 0


def send_blocked_frames(connection: AioquicConnection) -> ToldBlocked:
    """Let every packet of a connection carry as many DATA_BLOCKED frames as fit, until this many are sent."""
    told = ToldBlocked()

    def write(builder: QuicPacketBuilder, space: object) -> None:
        while told.to_send and builder.remaining_flight_space > 40:
            builder.start_frame(QuicFrameType.DATA_BLOCKED, capacity=9).push_uint_var(0)
            told.to_send -= 1

    connection._write_connection_limits = write  # type: ignore[method-assign]
    return told

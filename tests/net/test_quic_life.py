"""The life of a QUIC connection: silence, moves from one address to another, and a server that stops."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.clients.quic import connect_quic
from penstock.errors import ConfigError, ConnectionLost, Unreachable
from penstock.net.limits import QuicLimits
from penstock.net.quic import QuicListener
from penstock.quic.settings import QuicSettings
from tests.descriptors import open_sockets
from tests.net.line_session import until
from tests.net.quic_lines import LineStream, read_all, read_line, serving_quic, talking


async def test_a_client_that_vanished_is_noticed(tmp_path: Path) -> None:
    async with talking(tmp_path, QuicLimits.model_construct(idle_s_max=0.3)) as (service, client, stream):
        await stream.write(b"later x\n")
        await until(lambda: service.stats.streams_open == 1)
        client.endpoint.close()
        client.abandon("without a word")
        await until(lambda: service.sessions[0].is_closed)
        assert service.stats.connections_open == 0
        assert service.stats.closed_idle == 1


async def test_a_client_that_says_nothing_stays_as_long_as_it_lives(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits.model_construct(idle_s_max=0.4)) as service:
        client = await service.client()
        loop = asyncio.get_running_loop()
        later = loop.time() + 1.2
        await until(lambda: loop.time() > later)
        stream = client.open_stream()
        await stream.write(b"echo here\n")
        assert await read_line(stream) == b"here\n"
        assert service.stats.connections_total == 1


async def test_a_server_that_vanished_is_noticed(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client(settings=QuicSettings(idle_s_max=0.3))
        assert service.listener._endpoint is not None
        service.listener._endpoint.close()
        await asyncio.wait_for(client.wait_closed(), 20)
        with pytest.raises(ConnectionLost):
            client.open_stream()


async def test_a_client_may_continue_from_another_port(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, client, stream):
        await stream.write(b"echo one\n")
        assert await read_line(stream) == b"one\n"
        (session,) = service.sessions
        before = session.connection.peer
        for count in range(1, 8):
            client.rebind()
            await stream.write(b"echo again\n")
            assert await read_line(stream) == b"again\n"
            await until(lambda count=count: service.stats.rebindings == count)  # type: ignore[misc]
            assert session.connection.peer != before
            before = session.connection.peer
        assert session.streams[0].stream.peer == session.connection.peer
        await stream.write(b"big 3000000\n", end=True)
        assert len(await read_all(stream)) == 3_000_000
        assert service.stats.connections_total == 1


async def test_a_client_with_a_new_port_is_pinged_until_it_acknowledges(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, client, stream):
        await stream.write(b"echo one\n")
        assert await read_line(stream) == b"one\n"
        send = service.endpoint.send
        withheld: list[tuple[bytes, Any]] = []
        service.endpoint.send = lambda datagrams, origin=b"": withheld.extend(datagrams)  # type: ignore[method-assign]
        client.rebind()
        await until(lambda: len(withheld) > 1)  # the question is lost, and more than that
        service.endpoint.send = send  # type: ignore[method-assign]
        await stream.write(b"big 2000000\n", end=True)
        assert len(await read_all(stream)) == 2_000_000


async def test_until_a_new_port_is_validated_it_is_sent_three_times_what_came_from_it(tmp_path: Path) -> None:
    """A client could otherwise point its connection at another program of its host."""
    async with serving_quic(tmp_path, QuicLimits(sweep_s=600)) as service:
        client = await service.client()
        (session,) = service.sessions
        news = session.connection.open_stream(LineStream, one_way=True)
        news.send(b"0\n")
        stream = await client.accept_stream()
        assert await read_line(stream) == b"0\n"
        client.endpoint.close()  # from now on it speaks from elsewhere only, and hears nothing
        sent_bytes = received_bytes = 0
        with socket.socket(type=socket.SOCK_DGRAM) as victim:
            victim.bind(("127.0.0.1", 0))
            async with asyncio.timeout(30):
                while sent_bytes < 3_000:  # the congestion window allows more than three times as much
                    if not service.stats.rebindings:
                        sent_bytes = 0  # what came before is dropped
                    client.core.ping()
                    for datagram, _ in client.core.take_datagrams(time.monotonic(), 100):
                        victim.sendto(datagram, service.where)
                        sent_bytes += len(datagram)
                    if service.stats.rebindings and news.unsent_bytes < 500_000:
                        news.send(bytes(500_000))
                    await asyncio.sleep(0)
                    received_bytes += _all_that_came(victim)
            datagram_bytes = service.listener.limits.datagram_bytes
            assert 0 < received_bytes <= 3 * sent_bytes + datagram_bytes
            (connection,) = service.listener._connections
            await until(lambda: (connection._allowance_bytes or 0) <= 0)
            _all_that_came(victim)
            # All of it may have been lost, so that the peer has nothing to acknowledge: each sweep lets one datagram pass.
            for _ in range(3):
                service.listener.sweep()
                await until(lambda: bool(select.select([victim], [], [], 0)[0]))
                assert 0 < _all_that_came(victim) <= datagram_bytes


def _all_that_came(own: socket.socket) -> int:
    own.setblocking(False)
    received_bytes = 0
    try:
        while True:
            received_bytes += len(own.recv(65_535))
    except BlockingIOError:
        return received_bytes


async def test_a_client_that_only_listens_is_followed_too(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        (session,) = service.sessions
        news = session.connection.open_stream(LineStream, one_way=True)
        news.send(b"0\n")
        stream = await client.accept_stream()
        assert await read_line(stream) == b"0\n"
        for count in range(1, 7):
            client.rebind()
            news.send(b"%d\n" % count)
            assert await read_line(stream) == b"%d\n" % count
        news.send(b"x" * 2_000_000, end=True)
        assert len(await read_all(stream)) == 2_000_000


async def test_a_peer_is_not_believed_to_be_where_somebody_repeats_its_datagrams(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, client, stream):
        (session,) = service.sessions
        for moves in (0, 4):  # what the library follows, and what it does not
            for _ in range(moves):
                client.rebind()
                await stream.write(b"echo moved\n")
                assert await read_line(stream) == b"moved\n"
            peer, seen = session.connection.peer, service.stats.rebindings
            with socket.socket(type=socket.SOCK_DGRAM) as copier:
                send = client.endpoint.send

                def twice(
                    datagrams: Any, origin: bytes = b"", send: Any = send, copier: socket.socket = copier
                ) -> None:
                    for datagram, _ in datagrams:
                        copier.sendto(datagram, service.where)
                    send(datagrams, origin)

                client.endpoint.send = twice  # type: ignore[method-assign]
                for number in range(20):
                    await stream.write(b"echo %d\n" % number)
                    assert await read_line(stream) == b"%d\n" % number
                client.endpoint.send = send  # type: ignore[method-assign]
            assert (session.connection.peer, service.stats.rebindings) == (peer, seen)


async def test_a_client_whose_port_changes_while_it_does_not_read_gets_everything_later(tmp_path: Path) -> None:
    """Congestion stops events from being taken, so what validates the new port must be none."""
    limits = QuicLimits(send_buffer_bytes_max=64 * 1024)
    async with serving_quic(tmp_path, limits) as service:
        client = await service.client()
        client.pause_receiving()
        streams = [client.open_stream() for _ in range(30)]
        for stream in streams:
            await stream.write(b"big 60000\n" * 5, end=True)
        (connection,) = service.listener._connections
        await until(lambda: connection.congested)
        client.rebind()
        client.resume_receiving()
        received = await asyncio.gather(*(read_all(stream) for stream in streams))
        assert [len(data) for data in received] == [300_000] * 30
        assert service.stats.rebindings == 1


async def test_what_comes_from_another_host_is_dropped(tmp_path: Path) -> None:
    """A client that spoofs somebody's address, and acknowledges what it cannot see, must not have data sent there."""
    async with talking(tmp_path) as (service, client, stream):
        (session,) = service.sessions
        peer = session.connection.peer
        before = service.stats.datagrams_dropped
        with socket.socket(type=socket.SOCK_DGRAM) as victim:
            victim.bind(("127.0.0.2", 0))
            send = client.endpoint.send

            def send_from_there(datagrams: Any, origin: bytes = b"") -> None:
                for datagram, _ in datagrams:
                    victim.sendto(datagram, service.where)

            client.endpoint.send = send_from_there  # type: ignore[method-assign]
            await stream.write(b"echo here\n")
            await until(lambda: service.stats.datagrams_dropped > before + 1)  # it is sent again, and dropped again
            assert _all_that_came(victim) == 0
            client.endpoint.send = send  # type: ignore[method-assign]
            assert await read_line(stream) == b"here\n"
        assert (session.connection.peer, service.stats.rebindings) == (peer, 0)


async def test_a_stop_waits_for_what_is_owed_and_then_closes(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client, idle, gone = [await service.client() for _ in range(3)]
        gone.close()
        await until(lambda: service.stats.connections_open == 2)
        stream = client.open_stream()
        await stream.write(b"later owed\n")
        await until(lambda: bool(service.sessions[0].streams) and bool(service.sessions[0].streams[0].later))
        stopping = asyncio.ensure_future(service.listener.stop(20))
        await until(lambda: service.sessions[0].is_stopping)
        assert not service.sessions[0].is_closed
        service.sessions[0].streams[0].answer()
        assert await read_all(stream) == b"owed\n"
        await asyncio.wait_for(stopping, 20)
        assert all(session.is_closed for session in service.sessions)
        assert service.stats.closed_unanswered == service.stats.connections_open == 0
        for connection in (client, idle):
            await asyncio.wait_for(connection.wait_closed(), 20)
            assert "the server stops" in str(connection.loss)


async def test_a_stop_does_not_wait_forever(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, client, stream):
        await stream.write(b"later never\n")
        await until(lambda: bool(service.sessions[0].streams) and bool(service.sessions[0].streams[0].later))
        await service.listener.stop(0.05)
        assert service.sessions[0].is_closed
        assert service.stats.closed_unanswered == 1
        await asyncio.wait_for(client.wait_closed(), 20)
        assert service.listener.budget.held_bytes == 0


async def test_nothing_is_left_open_by_a_listener_and_its_clients(tmp_path: Path) -> None:
    before = open_sockets()
    async with serving_quic(tmp_path) as service:
        await service.client()
        assert (open_sockets() - before).total() == 2
    assert open_sockets() <= before


async def test_a_stopped_listener_admits_nobody(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        where = service.where
        client = await service.client()
        await service.listener.stop(0)
        await service.listener.stop(0)
        with pytest.raises(Unreachable):
            await service.client()
        assert service.where == where
        await asyncio.wait_for(client.wait_closed(), 20)


async def test_a_client_that_missed_the_end_is_told_again(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, client, stream):
        await stream.write(b"echo x\n")
        assert await read_line(stream) == b"x\n"
        client.endpoint.received = lambda buffer, segment_bytes, address: None
        service.sessions[0].connection.close(5, "over")
        loop = asyncio.get_running_loop()
        later = loop.time() + 0.05
        await until(lambda: loop.time() > later)
        assert not client.is_lost
        client.endpoint.received = client.take_datagrams
        await stream.write(b"echo y\n")
        await asyncio.wait_for(client.wait_closed(), 20)
        assert (client.loss_code, "over" in str(client.loss)) == (5, True)


async def test_a_client_of_a_run_before_is_told_that_it_is_forgotten(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, client, stream):
        await stream.write(b"echo x\n")
        assert await read_line(stream) == b"x\n"
        first = service.listener
        assert first._endpoint is not None
        client.endpoint.refused = None  # what the kernel says while nobody listens is another way to find out
        first._endpoint.close()
        again = QuicListener("again", first.address, service._open, first._tls)
        await again.start()
        await stream.write(b"echo y\n")
        await asyncio.wait_for(client.wait_closed(), 5)
        assert again.stats.datagrams_dropped >= 1
        assert not again.stats.connections_total
        await again.stop()


@pytest.mark.parametrize(
    ("bind", "hosts"), [("0.0.0.0:0", ["127.0.0.1", "127.0.0.2", "127.1.2.3"]), ("[::]:0", ["::1"])]
)
async def test_on_every_address_of_the_machine_a_client_is_answered_from_the_one_it_uses(
    tmp_path: Path, bind: str, hosts: list[str]
) -> None:
    async with serving_quic(tmp_path) as service:
        everywhere = QuicListener("everywhere", bind, service._open, service.listener._tls, QuicLimits(retry_above=1))
        await everywhere.start()
        port = int(everywhere.address.rpartition(":")[2])
        for host in hosts:
            client = await connect_quic(host, port, alpn="lines", ca_file=service.trusted, server_name="localhost")
            service.clients.append(client)
            stream = client.open_stream()
            await stream.write(b"echo hello\nbig 300000\n", end=True)
            assert len(await read_all(stream)) == 300_006
            client.rebind()
            other = client.open_stream()
            await other.write(b"echo again\n")
            assert await read_line(other) == b"again\n"
        await everywhere.stop(0)
        for client in service.clients:
            await asyncio.wait_for(client.wait_closed(), 20)
            assert "the server stops" in str(client.loss)


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        second = QuicListener("second", service.listener.address, service._open, service.listener._tls)
        with pytest.raises(ConfigError, match=r"listeners\.second\.bind: cannot listen on 127\.0\.0\.1:\d+/udp"):
            await second.start()


async def test_a_name_is_listened_on_as_its_first_kind_of_address(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        second = QuicListener("second", "localhost:0", service._open, service.listener._tls)
        await second.start()
        assert second.address.startswith("127.0.0.1:")
        await second.stop()
        sixth = QuicListener("sixth", "[::1]:0", service._open, service.listener._tls)
        await sixth.start()
        host, _, port = sixth.address.rpartition(":")
        assert host == "[::1]"
        with capture_logs():
            client = await connect_quic("::1", int(port), alpn="lines", ca_file=service.trusted)
            stream = client.open_stream()
            await stream.write(b"echo six\n")
            assert await read_line(stream) == b"six\n"
            client.rebind()
            await stream.write(b"echo again\n")
            assert await read_line(stream) == b"again\n"
            client.close()
        await sixth.stop()

"""Listeners: accepting, refusing, running out of descriptors, stopping."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.errors import ConfigError
from penstock.net.limits import TcpLimits
from penstock.net.tcp import TcpListener
from tests.descriptors import open_sockets
from tests.net.line_session import LineSession, Service, hang_up, read_to_end, serving, until


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open this many more descriptors, numbered after all others: tests before may have left gaps."""
    gc.collect()  # what is closed by it later would be another gap
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    fillers: list[int] = []
    while not fillers or fillers[-1] <= highest:
        fillers.append(os.dup(0))
    first = fillers.pop()
    os.close(first)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


async def test_a_request_is_answered() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        writer.write(b"echo hello\n")
        assert await reader.readline() == b"hello\n"
        assert session.connection.listener == "lines"
        assert session.connection.peer == "{}:{}".format(*writer.get_extra_info("sockname"))
        assert session.connection.principal_hint is None
        assert (service.stats.bytes_in, service.stats.bytes_out) == (11, 6)
        assert (service.stats.connections_open, service.stats.connections_total) == (1, 1)
        await hang_up(writer)
        await until(lambda: session.is_closed)
        assert service.stats.connections_open == 0


async def test_small_answers_are_not_held_back_and_dead_peers_are_noticed() -> None:
    async with serving(quickack=True) as service:
        accepted: list[socket.socket] = []
        take = service.listener._take

        async def spy(taken: socket.socket, peer: str) -> None:
            await take(taken, peer)
            accepted.append(taken)

        service.listener._take = spy  # type: ignore[assignment,method-assign]
        reader, writer, _ = await service.connect()
        await until(lambda: bool(accepted))
        assert accepted[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accepted[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        accepted[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        writer.write(b"echo x\n")
        await reader.readline()
        assert accepted[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
        await hang_up(writer)


async def test_port_0_picks_a_free_port_and_the_address_says_which() -> None:
    async with serving() as service:
        assert service.port > 0
        assert service.listener.address == f"127.0.0.1:{service.port}"


async def test_an_ipv6_address_is_written_with_brackets() -> None:
    listener = TcpListener("lines", "[::1]:0", LineSession)
    await listener.start()
    assert listener.address.startswith("[::1]:")
    await listener.stop()


async def test_localhost_means_the_ipv4_address() -> None:
    listener = TcpListener("lines", "localhost:0", LineSession)
    await listener.start()
    assert listener.address.startswith("127.0.0.1:")
    await listener.stop()


def test_an_address_is_known_only_after_the_start() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        _ = TcpListener("lines", "127.0.0.1:0", LineSession).address


async def test_an_address_in_use_is_an_error_that_says_what_to_do() -> None:
    async with serving() as service:
        before = open_sockets()
        with pytest.raises(
            ConfigError, match=r"listeners\.flymq\.bind: cannot listen on .*another process listens there"
        ):
            await TcpListener("flymq", service.listener.address, LineSession).start()
        assert open_sockets() <= before


async def test_an_address_of_another_machine_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="this machine has no such address"):
        await TcpListener("flymq", "203.0.113.7:0", LineSession).start()


async def test_a_name_that_does_not_resolve_is_an_error() -> None:
    # No host has such a name, so no name server is asked: it may be out of reach, and take minutes to be found so.
    with pytest.raises(ConfigError, match="'no!such!host' cannot be resolved"):
        await TcpListener("flymq", "no!such!host:0", LineSession).start()


async def test_a_connection_above_the_bound_is_closed_at_once_and_counted() -> None:
    async with serving(TcpLimits(max_connections=2)) as service:
        _, first, session = await service.connect()
        _, second, _ = await service.connect()
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            assert await reader.read() == b""
            await hang_up(writer)
        assert (service.stats.connections_open, service.stats.connections_total) == (2, 2)
        assert service.stats.connections_refused == 3

        await hang_up(first)
        await until(lambda: session.is_closed)
        _, third, _ = await service.connect()
        await hang_up(second)
        await hang_up(third)


async def test_a_refusal_is_logged_once_until_there_is_room_again() -> None:
    async with serving(TcpLimits(max_connections=1)) as service:
        for _ in range(2):
            _, kept, session = await service.connect()
            with capture_logs() as lines:
                for _ in range(3):
                    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
                    assert await reader.read() == b""
                    await hang_up(writer)
            assert [line["event"] for line in lines] == ["connections_refused"]
            await hang_up(kept)
            await until(lambda session=session: session.is_closed)  # type: ignore[misc]


async def test_connections_leave_descriptors_to_the_log() -> None:
    clients = [socket.socket() for _ in range(8)]
    service = Service(TcpLimits(descriptors_reserved=6))
    for client in clients:
        client.setblocking(False)
    with descriptors_left(12):
        await service.listener.start()  # takes one, so 5 are left above the reserve
        loop = asyncio.get_running_loop()
        for client in clients:
            await loop.sock_connect(client, ("127.0.0.1", service.port))
        await until(lambda: service.stats.accept_pauses == 1)
        await until(lambda: len(service.sessions) == service.stats.connections_total)
        served = service.stats.connections_open
        assert 0 < served < len(clients)
        with Path(os.devnull).open("rb"):  # what the log would want is still there
            service.listener.sweep()
            await asyncio.sleep(0)
            assert service.stats.connections_open == served

        for number in range(len(clients)):  # as connections end, those that wait are let in
            await loop.sock_sendall(clients[number], b"echo hi\n")
            assert await loop.sock_recv(clients[number], 10) == b"hi\n"
            clients[number].close()
        await until(lambda: all(session.is_closed for session in service.sessions))
        assert service.stats.connections_total == len(clients)
        await service.listener.stop()


async def test_a_process_without_descriptors_pauses_accepting_and_recovers() -> None:
    client = socket.socket()
    client.setblocking(False)
    async with serving(TcpLimits(descriptors_reserved=1)) as service:
        taken: list[int] = []
        with descriptors_left(4):
            try:
                while True:
                    taken.append(os.dup(0))
            except OSError:
                pass
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", service.port))
            await until(lambda: service.stats.accept_pauses == 1)
            service.listener.sweep()
            await asyncio.sleep(0)
            assert (service.stats.connections_total, service.stats.accept_pauses) == (0, 1)
            for descriptor in taken:
                os.close(descriptor)
            service.listener.sweep()
            await until(lambda: len(service.sessions) == 1)
        client.close()


async def test_a_flood_of_connections_is_accepted_in_turns() -> None:
    async with serving(TcpLimits(accepts_per_turn_max=2)) as service:
        loop = asyncio.get_running_loop()
        clients = [socket.socket() for _ in range(20)]
        for client in clients:
            client.setblocking(False)
        await asyncio.gather(*(loop.sock_connect(client, ("127.0.0.1", service.port)) for client in clients))
        await until(lambda: len(service.sessions) == len(clients))
        for client in clients:
            client.close()


async def test_stopping_answers_what_is_in_flight_and_takes_nothing_new() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        writer.write(b"later one\nlater two\n")
        await until(lambda: len(session.later) == 2)
        stopping = asyncio.create_task(service.listener.stop(grace_s=20))
        await asyncio.sleep(0)
        writer.write(b"later three\n")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", service.port)
        session.answer()
        assert not stopping.done()
        session.answer()
        assert await reader.read() == b"one\ntwo\n"  # and then the end, not a reset, although a request was left unread
        await hang_up(writer)
        await stopping
        assert session.is_closed
        assert service.stats.closed_unanswered == 0


async def test_stopping_waits_for_answers_also_after_other_connections_have_ended() -> None:
    async with serving() as service:
        _, gone, _ = await service.connect()
        reader, writer, session = await service.connect()
        await hang_up(gone)
        await until(lambda: service.stats.connections_open == 1)
        writer.write(b"later owed\n")
        await until(lambda: bool(session.later))
        stopping = asyncio.ensure_future(service.listener.stop(20))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not stopping.done()
        session.answer()
        assert await read_to_end(reader) == b"owed\n"
        await hang_up(writer)
        await stopping
        assert service.stats.closed_unanswered == 0


async def test_stopping_waits_no_longer_than_its_grace() -> None:
    async with serving(TcpLimits(stop_grace_s=0.01)) as service:
        reader, writer, session = await service.connect()
        writer.write(b"later one\n")
        await until(lambda: len(session.later) == 1)
        await service.listener.stop()
        assert service.stats.closed_unanswered == 1
        assert session.is_closed
        assert service.listener.budget.held_bytes == 0
        assert await read_to_end(reader) == b""
        await hang_up(writer)


async def test_stopping_waits_no_longer_than_its_grace_for_a_peer_that_leaves_its_last_replies_unread() -> None:
    async with serving(TcpLimits(linger_s_max=1000)) as service:
        reader, writer, session = await service.connect()
        writer.write(b"echo one\n")
        await reader.readline()
        writer.write(b"bad\n")
        await until(lambda: service.stats.protocol_errors == 1)
        async with asyncio.timeout(10):
            await service.listener.stop(grace_s=0.05)
        assert session.is_closed
        await hang_up(writer)


async def test_stopping_does_not_wait_for_peers_that_wait_for_nothing() -> None:
    async with serving(TcpLimits(linger_s_max=1000)) as service:
        _, writer, session = await service.connect()
        await service.listener.stop(grace_s=1000)
        assert session.is_closed
        await hang_up(writer)


async def test_a_stop_ends_connections_that_are_being_made() -> None:
    service = Service()
    await service.listener.start()
    client = socket.socket()
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", service.port))
    service.listener._accept_some()
    await service.listener.stop()
    assert service.stats.connections_open == 0
    assert all(session.is_closed for session in service.sessions)
    client.close()


async def test_nothing_is_left_behind() -> None:
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    async with serving() as service:
        for request in (b"echo x\n", b"later x\n", b"bad\n", b"big 10000000\n", b"half", b"quit\n"):
            _, writer, session = await service.connect()
            writer.write(request)
            await until(lambda session=session: session.received > 0)  # type: ignore[misc]
            await hang_up(writer)
    assert all(session.is_closed for session in service.sessions)
    assert (service.stats.connections_open, service.listener.budget.held_bytes) == (0, 0)
    await until(lambda: asyncio.all_tasks() <= tasks)
    assert open_sockets() <= sockets


async def test_a_listener_can_be_stopped_twice_and_before_it_was_started() -> None:
    listener = TcpListener("lines", "127.0.0.1:0", LineSession)
    await listener.stop()
    await listener.stop()

"""The client side of QUIC: reading, writing and waiting, beside what the tests of the listener show."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.clients.quic import ACCEPTED_MAX, READ_AHEAD_BYTES, QuicStream, connect_quic
from penstock.errors import ConnectionLost, Unreachable
from penstock.net.limits import QuicLimits
from penstock.quic.settings import QuicSettings
from tests.net.line_session import until
from tests.net.quic_lines import LineStream, read_all, read_line, serving_quic, talking


async def test_bytes_may_be_handed_over_as_they_come(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        told: list[bytes] = []
        stream = client.open_stream(on_data=told.append)
        await stream.write(b"echo one\n")
        await until(lambda: b"".join(told) == b"one\n")
        await stream.write(b"echo two\n", end=True)
        await until(lambda: told[-1] == b"")
        assert b"".join(told) == b"one\ntwo\n"


async def test_what_has_come_before_is_handed_over_first(tmp_path: Path) -> None:
    async with talking(tmp_path) as (_, _, stream):
        await stream.write(b"echo early\n", end=True)
        await until(lambda: stream.is_over)
        told: list[bytes] = []
        stream.on_data(told.append)
        assert told == [b"early\n", b""]


async def test_an_error_of_the_receiver_of_bytes_ends_the_connection(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

        def fail(data: bytes) -> None:
            if data:
                raise RuntimeError("no idea what to do with this")

        stream = client.open_stream(on_data=fail)
        await stream.write(b"echo x\n")
        await asyncio.wait_for(client.wait_closed(), 20)
        asyncio.get_running_loop().set_exception_handler(None)
        assert "no idea what to do with this" in str(client.loss)
        assert isinstance(reported[0]["exception"], RuntimeError)


async def test_what_is_not_read_waits_and_holds_the_server_back(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        idle, busy = client.open_stream(), client.open_stream()
        await idle.write(b"big 100000\n" * 300, end=True)
        await until(lambda: idle.is_paused)
        assert idle._chunks_bytes < READ_AHEAD_BYTES + QuicSettings().stream_window_bytes
        await until(lambda: not service.sessions[0].streams[0].stream.writable)
        assert service.stats.bytes_out < 300 * 100_000
        assert len(await read_all(idle)) == 300 * 100_000
        await busy.write(b"echo x\n")
        assert await read_line(busy) == b"x\n"


async def test_writing_waits_while_the_server_takes_nothing(tmp_path: Path) -> None:
    limits = QuicLimits(in_flight_bytes_max=64 * 1024)
    async with serving_quic(tmp_path, limits) as service:
        client = await service.client()
        stream = client.open_stream(on_data=lambda data: None)
        line = b"later " + b"x" * 9_993 + b"\n"

        async def write() -> None:
            for _ in range(1_000):
                await stream.write(line)

        writing = asyncio.ensure_future(write())
        await until(lambda: not stream.writable)
        assert not writing.done()
        assert stream.unsent_bytes < 2 * client.settings.send_high_bytes
        (session,) = service.sessions
        await until(lambda: bool(session.streams))
        async with asyncio.timeout(30):
            while not writing.done() or session.streams[0].received < 1_000 * len(line) or session.streams[0].later:
                while session.streams[0].later:
                    session.streams[0].answer()
                await asyncio.sleep(0)
        assert service.stats.bytes_in == 1_000 * len(line)


async def test_a_writer_that_waits_hears_that_the_connection_is_gone(tmp_path: Path) -> None:
    limits = QuicLimits(in_flight_bytes_max=64 * 1024)
    async with talking(tmp_path, limits) as (service, _, stream):

        async def write() -> None:
            while True:
                await stream.write(b"later " + b"x" * 9_993 + b"\n")

        writing = asyncio.ensure_future(write())
        await until(lambda: not stream.writable)
        service.sessions[0].connection.close(1, "no more")
        with pytest.raises(ConnectionLost, match="no more"):
            await asyncio.wait_for(writing, 20)


async def test_streams_of_the_server_wait_to_be_accepted_up_to_a_bound(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client(settings=QuicSettings(streams_max=2 * ACCEPTED_MAX))
        opened = [service.sessions[0].connection.open_stream(LineStream, one_way=True) for _ in range(ACCEPTED_MAX + 5)]
        for stream in opened:
            stream.send(b"%d" % stream.id)
        await until(lambda: service.stats.streams_aborted == 5)
        accepted = [await client.accept_stream() for _ in range(ACCEPTED_MAX)]
        assert [await stream.read() for stream in accepted[:3]] == [b"%d" % stream.id for stream in opened[:3]]


async def test_streams_of_the_server_may_be_handed_over(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        handed: list[QuicStream] = []
        client.on_stream = handed.append
        service.sessions[0].connection.open_stream(LineStream).send(b"hello")
        await until(lambda: bool(handed))
        assert await handed[0].read() == b"hello"
        assert not handed[0].is_one_way
        await handed[0].write(b"echo back\n")
        assert await read_line(handed[0]) == b"back\n"


async def test_the_callback_for_the_end_of_a_connection_is_called(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        told: list[ConnectionLost] = []
        client.on_lost = told.append
        waiting = asyncio.ensure_future(client.accept_stream())
        await asyncio.sleep(0)
        service.sessions[0].connection.close(9, "that was all")
        with pytest.raises(ConnectionLost, match="that was all"):
            await asyncio.wait_for(waiting, 20)
        assert told == [client.loss]
        client.close()  # twice is once
        assert len(told) == 1


async def test_a_connection_is_closed_at_the_end_of_its_block(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        async with await service.client() as client:
            client.open_stream()
        assert client.loss is not None
        await until(lambda: service.sessions[0].is_closed)


async def test_a_name_that_does_not_exist_cannot_be_reached() -> None:
    with pytest.raises(Unreachable, match="cannot be resolved"):
        await connect_quic("no-such-host.invalid", 1)


async def test_who_is_not_trusted_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        with pytest.raises(
            Unreachable, match=r"cannot connect to 127\.0\.0\.1:\d+: .* name a trusted CA with \?ca=FILE"
        ):
            await connect_quic("127.0.0.1", service.port, alpn="lines")


async def test_giving_up_on_a_connection_attempt_leaves_nothing_behind(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        attempt = asyncio.ensure_future(service.client())
        await asyncio.sleep(0)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        service.pass_time(service.listener.limits.handshake_s_max + 2)
        await until(lambda: service.stats.connections_open == 0)

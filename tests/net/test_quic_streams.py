"""Streams over real QUIC: what is said on one, in both directions, and how it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.errors import ConnectionLost, LimitExceeded
from penstock.net.limits import QuicLimits
from penstock.net.quic_session import Stream
from penstock.quic.settings import QuicSettings
from tests.net.line_session import until
from tests.net.quic_lines import LineStream, read_all, read_line, serving_quic, talking


async def test_many_streams_are_many_conversations(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        assert client.alpn == "lines"

        async def talk(number: int) -> bytes:
            stream = client.open_stream()
            await stream.write(b"echo %d\n" % number)
            await stream.write(b"echo again\n", end=True)
            return await read_all(stream)

        answers = await asyncio.gather(*map(talk, range(200)))
        assert answers == [b"%d\nagain\n" % number for number in range(200)]
        (session,) = service.sessions
        await until(lambda: service.stats.streams_open == 0)
        assert len(session.streams) == service.stats.streams_total == 200
        assert all(each.is_closed and each.has_ended for each in session.streams)
        assert service.stats.connections_total == service.stats.connections_open == 1
        assert not client.streams


@pytest.mark.parametrize("piece_bytes", [1, 7, 1_000])
async def test_any_fragmentation_is_one_conversation(tmp_path: Path, piece_bytes: int) -> None:
    said = b"".join(b"echo %s\n" % (b"x" * size) for size in range(40))
    async with talking(tmp_path) as (_, _, stream):
        answer = asyncio.ensure_future(read_all(stream))
        for start in range(0, len(said), piece_bytes):
            await stream.write(said[start : start + piece_bytes])
            await asyncio.sleep(0)
        stream.end()
        assert await answer == b"".join(b"x" * size + b"\n" for size in range(40))


async def test_megabytes_come_whole_both_ways_at_every_datagram_size(tmp_path: Path) -> None:
    text = bytes(range(256)) * 4096
    text = text.replace(b"\n", b"_")
    for datagram_bytes in (1_200, 1_452, 8_900, 65_000):
        async with serving_quic(tmp_path, QuicLimits(datagram_bytes=datagram_bytes)) as service:
            client = await service.client(settings=QuicSettings(datagram_bytes=datagram_bytes))
            stream = client.open_stream()
            answer = asyncio.ensure_future(read_all(stream))
            for _ in range(4):
                await stream.write(b"echo " + text + b"\n")
            stream.end()
            assert await answer == (text + b"\n") * 4


async def test_the_server_opens_streams_of_both_kinds(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        (session,) = service.sessions
        opened: list[LineStream] = []

        def talk(stream: Stream) -> LineStream:
            opened.append(LineStream(stream))
            return opened[-1]

        two_way = session.connection.open_stream(talk)
        two_way.send(b"ping", end=True)
        assert (two_way.can_send, two_way.can_receive) == (False, True)
        one_way = session.connection.open_stream(talk, one_way=True)
        one_way.send(b"news", end=True)
        assert (one_way.can_send, one_way.can_receive) == (False, False)

        accepted = [await client.accept_stream(), await client.accept_stream()]
        assert [(stream.id, stream.is_one_way) for stream in accepted] == [(two_way.id, False), (one_way.id, True)]
        assert [await read_all(stream) for stream in accepted] == [b"ping", b"news"]
        with pytest.raises(ConnectionLost):
            await accepted[1].write(b"a one-way stream of the server's")
        await accepted[0].write(b"echo pong\n", end=True)
        await until(lambda: opened[0].is_closed and opened[1].is_closed)
        assert opened[0].has_ended
        assert not opened[1].has_ended
        assert service.stats.streams_open == 0


async def test_a_byte_and_the_end_of_a_stream_come_in_one_read(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        told: list[bytes] = []
        client.on_stream = lambda stream: stream.on_data(told.append)
        (session,) = service.sessions
        session.connection.open_stream(LineStream).send(b"\x0b", end=True)
        await until(lambda: told == [b"\x0b", b""])


async def test_the_peer_bounds_how_many_streams_the_server_opens(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client(settings=QuicSettings(streams_max=3))
        (session,) = service.sessions
        streams = [session.connection.open_stream(LineStream, one_way=True) for _ in range(3)]
        with pytest.raises(LimitExceeded, match="allows no more streams"):
            session.connection.open_stream(LineStream, one_way=True)
        for stream in streams:
            stream.send(b"x", end=True)
        for _ in streams:
            assert await read_all(await client.accept_stream()) == b"x"
        await until(lambda: service.stats.streams_open == 0)
        await until(lambda: _opens(session.connection))


def _opens(connection: object) -> bool:
    try:
        connection.open_stream(LineStream, one_way=True)  # type: ignore[attr-defined]
    except LimitExceeded:
        return False
    return True


async def test_a_client_may_have_so_many_streams_open_and_more_once_some_end(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits(streams_max=5)) as service:
        client = await service.client()
        streams = [client.open_stream() for _ in range(5)]
        with pytest.raises(LimitExceeded, match="allows no more streams now"):
            client.open_stream()
        client.open_stream(one_way=True)  # these are counted apart
        waiting = asyncio.ensure_future(client.open_stream_when_allowed())
        for stream in streams:
            await stream.write(b"echo x\n", end=True)
        for stream in streams:
            assert await read_all(stream) == b"x\n"
        late = await asyncio.wait_for(waiting, 20)
        await late.write(b"echo late\n", end=True)
        assert await read_all(late) == b"late\n"


async def test_a_stream_that_the_client_resets_is_over_for_the_session(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, client, stream):
        await stream.write(b"echo first\nlater never\n")
        assert await read_line(stream) == b"first\n"
        session = service.sessions[0].streams[0]
        stream.reset(7)
        await until(lambda: session.is_closed)
        assert session.aborts == [7]
        assert not session.has_ended
        assert service.stats.streams_aborted == 1
        with pytest.raises(ConnectionLost):
            await read_all(stream)
        other = client.open_stream()
        await other.write(b"echo still here\n")
        assert await read_line(other) == b"still here\n"


async def test_a_client_that_takes_no_more_is_sent_no_more(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, client, stream):
        await stream.write(b"echo first\n")
        assert await read_line(stream) == b"first\n"
        session = service.sessions[0].streams[0]
        stream.stop_receiving(9)
        await until(lambda: session.is_closed)
        assert session.aborts == [9]
        assert not session.stream.can_send
        session.stream.send(b"dropped without a word")
        await until(lambda: service.stats.streams_open == 0)
        await until(lambda: not client.streams)


async def test_a_server_may_refuse_what_comes_on_a_stream_and_still_answer(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, _, stream):
        await stream.write(b"echo first\n")
        assert await read_line(stream) == b"first\n"
        session = service.sessions[0].streams[0]
        session.stream.stop_receiving(4)
        session.stream.send(b"no more, please", end=True)
        assert await read_all(stream) == b"no more, please"
        await until(lambda: not stream.can_send)
        with pytest.raises(ConnectionLost, match="takes no more"):
            await stream.write(b"echo ignored\n")


async def test_a_session_that_closes_its_stream_answers_what_it_owes_first(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, _, stream):
        await stream.write(b"later owed\nquit\n")
        assert await read_line(stream) == b"bye\n"
        session = service.sessions[0].streams[0]
        assert not session.is_closed
        session.answer()
        assert await read_all(stream) == b"owed\n"
        await until(lambda: session.is_closed)


async def test_a_violation_ends_its_stream_and_no_other(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        stream, other = client.open_stream(), client.open_stream()
        with capture_logs() as logs:
            await stream.write(b"GET / HTTP/1.1\n")
            assert await read_all(stream) == b""
        assert service.stats.protocol_errors == 1
        (line,) = [line for line in logs if line["event"] == "protocol_violation"]
        assert line["starts_with"] == "GET / HTTP/1.1\\n"
        await other.write(b"echo here\n", end=True)
        assert await read_all(other) == b"here\n"


async def test_a_bug_of_a_session_ends_its_stream_and_no_other(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        client = await service.client()
        stream, other = client.open_stream(), client.open_stream()
        with capture_logs() as logs:
            await stream.write(b"bug\n")
            with pytest.raises(ConnectionLost, match="cut stream 0 off"):
                await read_all(stream)
        assert service.stats.session_errors == 1
        assert [line["event"] for line in logs if line["log_level"] == "error"] == ["session_failed"]
        await other.write(b"echo here\n", end=True)
        assert await read_all(other) == b"here\n"


async def test_streams_and_then_the_session_hear_that_a_client_is_gone(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, client, stream):
        await stream.write(b"later x\n")
        (session,) = service.sessions
        await until(lambda: bool(session.streams) and bool(session.streams[0].later))
        client.close(3, "bye")
        await until(lambda: session.is_closed)
        assert session.streams[0].is_closed
        assert service.stats.connections_open == service.stats.streams_open == 0
        with pytest.raises(ConnectionLost):
            await stream.read()


async def test_a_client_hears_why_the_server_closed_the_connection(tmp_path: Path) -> None:
    async with talking(tmp_path) as (service, client, stream):
        waiting = asyncio.ensure_future(stream.read())
        service.sessions[0].connection.close(42, "go away")
        await asyncio.wait_for(client.wait_closed(), 20)
        assert client.loss_code == 42
        with pytest.raises(ConnectionLost, match="go away"):
            await waiting
        with pytest.raises(ConnectionLost, match="go away"):
            client.open_stream()
        assert service.sessions[0].is_closed

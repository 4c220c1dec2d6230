"""Connections: bytes both ways, bad input, slow readers, silent peers, and how they end."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import ExitStack

import pytest
from structlog.testing import capture_logs

from penstock.net.connection import READ_BYTES_UNDER_PRESSURE
from penstock.net.flow import PARTIAL_BYTES_FREE, PARTIAL_SHARE, UNSENT_BYTES_FREE
from penstock.net.limits import TcpLimits
from tests.descriptors import open_sockets
from tests.net.line_session import hang_up, read_to_end, serving, until

MIB = 1 << 20


async def test_requests_may_arrive_in_pieces_of_any_size() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        for number, byte in enumerate(b"echo ab\necho cd\n", 1):
            writer.write(bytes([byte]))
            await until(lambda number=number: session.received == number)  # type: ignore[misc]
        assert await reader.readexactly(6) == b"ab\ncd\n"
        await hang_up(writer)


async def test_reads_are_small_while_partial_frames_have_more_than_their_share() -> None:
    async with serving(TcpLimits(in_flight_total_bytes_max=4 * MIB)) as service:
        _, first, _ = await service.connect()
        first.write(bytes(5 * MIB // PARTIAL_SHARE))
        await until(lambda: service.listener.budget.partial.is_over)
        for _ in range(5):
            _, writer, session = await service.connect()
            writer.write(bytes(1 * MIB))
            while session.received <= PARTIAL_BYTES_FREE:
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert session.received <= PARTIAL_BYTES_FREE + READ_BYTES_UNDER_PRESSURE
            writer.transport.abort()
        first.transport.abort()


@pytest.mark.parametrize(
    ("hello", "shown"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\\r\\n"),
        (bytes.fromhex("160301020001000100\x0a".replace("\x0a", "0a")) * 3, "\\x16\\x03\\x01"),
        (b"secret-payload-that-must-not-be-logged\n", "secret-payload-t"),
    ],
)
async def test_the_wrong_protocol_is_closed_with_one_line_and_no_payload(hello: bytes, shown: str) -> None:
    async with serving() as service:
        with capture_logs() as lines:
            reader, writer, session = await service.connect()
            writer.write(hello)
            assert await reader.read() == b""
            await until(lambda: session.is_closed)
        assert [line["event"] for line in lines] == ["protocol_violation"]
        assert lines[0]["starts_with"].startswith(shown)
        assert "must-not-be-logged" not in str(lines)
        assert "exc_info" not in lines[0]
        assert service.stats.protocol_errors == 1
        await hang_up(writer)


async def test_bytes_of_a_running_conversation_are_not_logged_at_all() -> None:
    async with serving() as service:
        with capture_logs() as lines:
            reader, writer, _ = await service.connect()
            writer.write(b"echo fine\n")
            assert await reader.readline() == b"fine\n"
            writer.write(b"bad\n")
            assert await reader.read() == b""
        assert "starts_with" not in lines[0]
        await hang_up(writer)


async def test_a_violation_lets_what_came_before_it_be_answered() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        writer.write(b"later one\nbad\n")
        await until(lambda: service.stats.protocol_errors == 1)
        writer.write(b"echo too late\n" * 100)
        session.answer()
        assert await reader.read() == b"one\n"
        assert session.received == len(b"later one\nbad\n")
        await hang_up(writer)
        await until(lambda: session.is_closed)


async def test_a_peer_that_does_not_hang_up_after_a_violation_is_cut_off() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        writer.write(b"echo x\nbad\n")
        assert await reader.read() == b"x\n"
        service.pass_time(1)
        assert not session.is_closed
        service.pass_time(1)
        await until(lambda: session.is_closed)
        await hang_up(writer)


async def test_a_bug_in_a_session_ends_its_connection_and_no_other() -> None:
    async with serving() as service:
        _, bystander, other = await service.connect()
        _, writer, session = await service.connect()
        with capture_logs() as lines:
            writer.write(b"bug\n")
            await until(lambda: session.is_closed)
        assert [(line["event"], str(line["exc_info"])) for line in lines] == [
            ("session_failed", "a bug of the session")
        ]
        assert service.stats.session_errors == 1
        assert not other.is_closed
        await hang_up(writer)
        await hang_up(bystander)


async def test_a_session_that_cannot_be_opened_ends_its_connection() -> None:
    async with serving() as service:

        def broken(_: object) -> None:
            raise RuntimeError("no session today")

        service.listener.factory = broken  # type: ignore[assignment]
        with capture_logs() as lines:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            assert await read_to_end(reader) == b""
            await until(lambda: service.stats.connections_open == 0)
        assert [line["event"] for line in lines] == ["session_failed"]
        await hang_up(writer)


async def test_a_session_may_close_and_its_last_answer_arrives() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        writer.write(b"quit\n" + b"echo unread\n" * 10_000)
        assert await reader.read() == b"bye\n"
        await hang_up(writer)
        await until(lambda: session.is_closed)
        assert service.stats.resets == 0


async def test_a_peer_that_sends_no_more_is_gone_where_that_is_so() -> None:
    async with serving(half_closes=False) as service:
        reader, writer, session = await service.connect()
        writer.write(b"later one\n")
        await until(lambda: len(session.later) == 1)
        writer.write_eof()
        assert await reader.read() == b""
        await until(lambda: session.is_closed)
        await hang_up(writer)


async def test_half_a_connection_is_enough_to_receive_answers() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        writer.write(b"later one\nlater two\n")
        writer.write_eof()
        await until(lambda: len(session.later) == 2)
        session.answer()
        assert await reader.readline() == b"one\n"
        session.answer()
        assert await reader.read() == b"two\n"
        await until(lambda: session.is_closed)
        await hang_up(writer)


async def test_a_peer_that_is_done_and_waits_for_nothing_is_closed() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        writer.write(b"half a fr")
        writer.write_eof()
        assert await reader.read() == b""
        await until(lambda: session.is_closed)
        await hang_up(writer)


async def test_a_reset_is_no_error_of_ours() -> None:
    async with serving() as service:
        client = socket.create_connection(("127.0.0.1", service.port))
        await until(lambda: len(service.sessions) == 1)
        session = service.sessions[0]
        client.sendall(b"later one\nhalf a fr")
        await until(lambda: session.received > 0)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with capture_logs() as lines:
            client.close()
            await until(lambda: session.is_closed)
        assert lines == []
        assert service.stats.resets == 1
        assert service.listener.budget.held_bytes == 0
        session.connection.send(b"nobody listens")  # the answer of a request that outlived its connection
        session.connection.close()


async def test_a_slow_reader_costs_a_bounded_buffer_and_gets_everything_in_the_end() -> None:
    limits = TcpLimits(send_buffer_bytes_max=MIB)
    async with serving(limits) as service:
        reader, writer, session = await service.connect(limit=1 << 16)
        count, size = 64, MIB
        writer.write(b"big %d\n" % size * count)
        await until(lambda: bool(session.put_off) and not session.connection.writable)
        assert service.stats.bytes_out < count * size  # what fits into the buffers of the kernel and ours, no more
        assert session.connection._transport.get_write_buffer_size() <= 2 * MIB  # type: ignore[attr-defined]
        assert service.stats.read_pauses == 1
        assert len(await reader.readexactly(count * size)) == count * size
        await until(lambda: session.connection.writable)
        writer.write(b"echo after\n")
        assert await reader.readline() == b"after\n"
        assert service.listener.budget.held_bytes == 0
        await hang_up(writer)


async def test_a_reader_that_never_reads_is_closed_and_counted() -> None:
    async with serving() as service:
        _, writer, session = await service.connect(limit=1 << 16)
        writer.write(b"big 1000000\n" * 50)
        await until(lambda: not session.connection.writable)
        service.pass_time(302)
        await until(lambda: session.is_closed)
        assert service.stats.closed_unread == 1
        assert service.listener.budget.held_bytes == 0
        await hang_up(writer)


async def test_a_reader_that_moves_on_is_left_alone() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect(limit=1 << 16)
        writer.write(b"big 1000000\n" * 50)
        await until(lambda: not session.connection.writable)
        for _ in range(4):
            service.pass_time(200)
            delivered = service.stats.bytes_out
            while service.stats.bytes_out == delivered:
                await reader.read(1 << 16)
            await until(lambda: not session.connection.writable)
        assert not session.is_closed
        await hang_up(writer)


async def test_a_connection_that_hears_nothing_is_closed_after_its_idle_time() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        service.pass_time(299)
        assert not session.is_closed
        writer.write(b"echo still here\n")
        assert await reader.readline() == b"still here\n"
        service.pass_time(299)
        assert not session.is_closed
        service.pass_time(3)
        assert await reader.read() == b""
        await until(lambda: session.is_closed)
        assert service.stats.closed_idle == 1
        await hang_up(writer)


async def test_waiting_for_an_answer_of_ours_is_not_idling() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        writer.write(b"later one\n")
        await until(lambda: len(session.later) == 1)
        service.pass_time(1000)
        session.answer()
        assert await reader.readline() == b"one\n"
        await hang_up(writer)


async def test_a_frame_that_stays_half_received_closes_the_connection() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        for number in range(1, 31):  # one byte a second is no progress
            writer.write(b"x")
            await until(lambda number=number: session.received == number)  # type: ignore[misc]
            service.pass_time(1)
        service.pass_time(1)
        assert await reader.read() == b""
        await until(lambda: session.is_closed)
        assert service.stats.closed_header == 1
        await hang_up(writer)


async def test_frames_that_keep_completing_have_their_own_time_each() -> None:
    async with serving() as service:
        reader, writer, session = await service.connect()
        writer.write(b"ec")
        sent = 2
        for _ in range(50):
            await until(lambda sent=sent: session.received == sent)  # type: ignore[misc]
            service.pass_time(20)
            writer.write(b"ho x\nec")
            sent += 7
            assert await reader.readline() == b"x\n"
        assert not session.is_closed
        await hang_up(writer)


async def test_a_frame_we_do_not_read_is_not_the_peers_delay() -> None:
    async with serving(TcpLimits.model_construct(in_flight_bytes_max=8)) as service:
        reader, writer, session = await service.connect()
        writer.write(b"later one\nhalf")
        await until(lambda: len(session.later) == 1)
        service.pass_time(100)
        session.answer()
        assert await reader.readline() == b"one\n"
        assert not session.is_closed
        await hang_up(writer)


async def test_too_many_bytes_in_flight_stop_the_reading_of_that_connection_only() -> None:
    async with serving(TcpLimits.model_construct(in_flight_bytes_max=100)) as service:
        reader, writer, session = await service.connect()
        other_reader, other, _ = await service.connect()
        request = b"later " + b"x" * 59 + b"\n"
        writer.write(request * 2)
        await until(lambda: len(session.later) == 2)
        writer.write(request)
        other.write(b"echo free\n")
        assert await other_reader.readline() == b"free\n"
        assert (len(session.later), service.stats.read_pauses) == (2, 1)
        session.answer()
        session.answer()
        await until(lambda: len(session.later) == 1)
        session.answer()
        for _ in range(3):
            assert await reader.readline() == b"x" * 59 + b"\n"
        await hang_up(writer)
        await hang_up(other)


async def test_every_prefix_of_a_conversation_ends_without_a_trace() -> None:
    conversation = b"echo a\nlater b\nbig 10\nquit\n"
    sockets = open_sockets()
    async with serving() as service:
        with capture_logs() as lines:
            for length in range(1, len(conversation) + 1):
                _, writer, session = await service.connect()
                writer.write(conversation[:length])
                await until(lambda session=session, length=length: session.received == length)  # type: ignore[misc]
                await hang_up(writer)
                while session.later:
                    session.answer()
                await until(lambda session=session: session.is_closed)  # type: ignore[misc]
        assert lines == []
        assert service.listener.budget.held_bytes == 0
        assert service.stats.connections_open == 0
    assert open_sockets() <= sockets


async def test_a_request_that_is_held_later_does_not_make_a_partial_frame_count_less() -> None:
    limits = TcpLimits(header_s_max=10.0)
    async with serving(limits) as service:
        _, writer, session = await service.connect()
        writer.write(b"later whole\necho hal")
        await until(lambda: len(session.later) == 1)
        counted = service.listener.budget.partial.total_bytes
        assert counted >= len(b"echo hal")
        service.pass_time(limits.header_s_max - 2)
        session.connection.hold(5)  # a request that was decoded in a thread, say
        assert service.listener.budget.partial.total_bytes == counted
        session.connection.release(5)
        service.pass_time(4)
        await until(lambda: service.stats.closed_header == 1)
        session.answer()
        writer.transport.abort()


async def test_frames_that_are_never_finished_cost_bounded_memory_and_keep_nobody_else_out() -> None:
    limits = TcpLimits(in_flight_total_bytes_max=2 * MIB, header_s_max=10.0)
    async with serving(limits) as service:
        hostile = [await service.connect() for _ in range(12)]
        budget = service.listener.budget
        for _, writer, _ in hostile:
            writer.write(b"x" * (4 * MIB))
        await until(lambda: budget.partial.waiting >= 11)
        kept_bytes = sum(session.received for _, _, session in hostile)
        assert kept_bytes < 4 * MIB + 12 * 512 * 1024 + budget.partial.bytes_max
        assert budget.partial.total_bytes >= kept_bytes

        reader, writer, _ = await service.connect()
        writer.write(b"echo served\n")
        assert await reader.readline() == b"served\n"
        await hang_up(writer)

        # Each in turn is read to its end, is found not to finish, and makes way.
        for left in range(11, -1, -1):
            service.pass_time(2 * limits.header_s_max)
            await until(lambda left=left: len(service.listener._connections) <= left)  # type: ignore[misc]
        assert budget.partial.total_bytes == 0
        assert service.stats.closed_header == 12
        for _, writer, _ in hostile:
            writer.transport.abort()


async def test_replies_that_nobody_takes_are_bounded_over_all_connections_and_those_who_read_are_served() -> None:
    limits = TcpLimits(in_flight_total_bytes_max=8 * MIB, under_pressure_s_max=5.0)
    async with serving(limits) as service:
        budget = service.listener.budget
        with ExitStack() as hostile:
            for count in range(1, 41):
                peer = hostile.enter_context(socket.create_connection(("127.0.0.1", service.port)))
                peer.send(b"big 900000\n" * 20)
                await until(lambda count=count: len(service.sessions) == count)  # type: ignore[misc]
            await until(
                lambda: all(session.put_off and not session.connection.writable for session in service.sessions)
            )
            service.listener.sweep()
            # Each may have a full buffer until the bound is crossed, and half a buffer and a reply afterwards at most.
            assert budget.unsent_bytes < 8 * MIB + 40 * (900_000 + UNSENT_BYTES_FREE)

            reader, writer, _ = await service.connect()
            writer.write(b"big 1000000\n" * 20)
            assert len(await reader.readexactly(20_000_000)) == 20_000_000
            service.pass_time(20)
            assert not budget.is_unsent_over
            assert 0 < service.stats.closed_unread < 40
            await hang_up(writer)

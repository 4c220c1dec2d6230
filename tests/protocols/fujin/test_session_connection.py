"""What concerns a whole connection: pings, stopping, who is asking, and streams beside each other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.broker.access.checks import ANONYMOUS, UNAUTHENTICATED, Principal
from penstock.broker.broker import Broker
from penstock.protocols.fujin.session import Fujin, FujinConnection
from penstock.protocols.fujin.wire import STOPPING
from tests.broker.producing import produce
from tests.protocols.fujin.conftest import Connect
from tests.protocols.fujin.memory import Client, MemoryConnection, MemoryStream, Timers, settle, until
from tests.protocols.fujin.requests import (
    CONNECT_WRITER,
    DISCONNECT,
    ack,
    connect_reader,
    failed,
    fetch,
    message,
    settled,
    tag,
    write,
    write_table,
    written,
)

PING = b"\x0b"
STOP = b"\x0c"

# -- pings -------------------------------------------------------------------------------------------------------------------


async def test_a_client_is_pinged_again_and_again_on_streams_of_their_own(client: Client, timers: Timers) -> None:
    timers.advance(1.99)
    assert client.connection.opened == []
    timers.advance(0.01)
    for count in range(1, 6):
        assert len(client.connection.opened) == count
        stream, session = client.connection.opened[-1]
        assert stream.sends == [(PING, True)], "byte and end in one frame"
        session.receive(PING)
        session.ended()
        session.closed()
        timers.advance(2.0)
    assert client.connection.closed_with is None


@pytest.mark.parametrize("answer", ["byte and end", "end alone", "byte alone", "another byte and end", "reset"])
async def test_any_sign_of_life_is_an_answer(client: Client, timers: Timers, answer: str) -> None:
    for _ in range(3):
        timers.advance(2.0)
        stream, session = client.connection.opened[-1]
        timers.advance(4.9)
        if answer == "reset":
            session.aborted(0)
        if "byte" in answer:
            session.receive(b"\x11" if "another" in answer else PING)
        if "end" in answer:
            session.ended()
        elif answer == "byte alone":
            assert stream.stopped == 0
    assert len(client.connection.opened) == 3
    assert client.connection.closed_with is None


async def test_a_client_that_does_not_answer_is_disconnected(client: Client, timers: Timers) -> None:
    timers.advance(6.9)
    assert client.connection.closed_with is None
    timers.advance(0.1)
    assert client.connection.closed_with == (3, "read: deadline exceeded")


async def test_what_is_no_answer_does_not_count(client: Client, timers: Timers) -> None:
    timers.advance(2.0)
    client.connection.opened[0][1].receive(b"\x63")
    timers.advance(5.0)
    assert client.connection.closed_with is not None


async def test_a_client_that_never_ends_the_streams_of_its_pings_is_disconnected_after_some(
    client: Client, timers: Timers
) -> None:
    """It answers with a byte, and does not listen when it is asked to stop sending: each ping would leave a stream behind."""
    for _ in range(16):
        timers.advance(2.0)
        stream, session = client.connection.opened[-1]
        session.receive(PING)
        assert (stream.stopped, client.connection.closed_with) == (0, None)
    timers.advance(2.0)
    assert client.connection.closed_with == (3, "the streams of 16 pings were not ended")
    assert len(client.connection.opened) == 16


async def test_streams_of_pings_that_end_late_are_not_held_against_a_client(client: Client, timers: Timers) -> None:
    for _ in range(40):
        timers.advance(2.0)
        client.connection.opened[-1][1].receive(PING)
        if len(client.connection.opened) > 10:
            client.connection.opened[-10][1].closed()
    assert client.connection.closed_with is None


async def test_interval_and_timeout_are_settings(connect: Connect, timers: Timers) -> None:
    client = connect(ping_interval_s=0.5, ping_timeout_s=1.5)
    timers.advance(0.5)
    assert len(client.connection.opened) == 1
    timers.advance(1.5)
    assert client.connection.closed_with is not None


async def test_a_client_that_allows_no_more_streams_is_asked_later(client: Client, timers: Timers) -> None:
    client.connection.streams_allowed = 0
    timers.advance(20)
    assert client.connection.closed_with is None
    client.connection.streams_allowed = 1
    timers.advance(2)
    assert len(client.connection.opened) == 1


async def test_a_client_is_not_given_up_while_it_is_not_listened_to(client: Client, timers: Timers) -> None:
    timers.advance(2.0)
    (_, ping) = client.connection.opened[-1]
    client.connection.reading = False
    timers.advance(60.0)
    assert client.connection.closed_with is None
    assert len(client.connection.opened) == 1
    client.connection.reading = True
    ping.ended()
    timers.advance(2.0)
    assert len(client.connection.opened) == 2, "pings go on"
    timers.advance(5.0)
    assert client.connection.closed_with is not None


async def test_nobody_is_pinged_after_the_end(client: Client, timers: Timers) -> None:
    client.hang_up()
    timers.advance(100)
    assert client.connection.opened == []


# -- stopping ----------------------------------------------------------------------------------------------------------------


async def test_stop_comes_alone_and_after_every_reply(client: Client, broker: Broker, timers: Timers) -> None:
    await broker.topics.ensure(ANONYMOUS, "a")
    side = client.writer()
    side.say(write(1, b"a", b"x"), write(2, b"a", b"y"))
    client.session.stopping()
    side.say(write(3, b"a", b"z"))
    assert await side.hear(13) == written(1, 2) + STOP
    assert side.stream.sends[-1] == (STOP, False)
    await until(lambda: side.stream.held_bytes == 0)
    await side.silence()
    timers.advance(0.01)
    assert await side.hear(6) == written(3)
    side.say(DISCONNECT)
    assert await side.end() == DISCONNECT


async def test_a_reader_that_was_told_to_stop_is_pushed_nothing_more(
    client: Client, broker: Broker, timers: Timers
) -> None:
    reader = await client.reader(b"orders")
    await produce(broker, "orders", [b"a"])
    await reader.hear(18)
    client.session.stopping()
    assert await reader.hear(1) == STOP
    timers.advance(0.01)
    await produce(broker, "orders", [b"b"])
    await reader.silence()
    assert await reader.ask(ack(1, [tag(1)]), size=23) == settled(8, 1, (tag(1), None))
    reader.say(DISCONNECT)
    assert await reader.end() == DISCONNECT


async def test_a_held_fetch_is_answered_before_stop(client: Client, timers: Timers) -> None:
    reader = await client.reader(b"orders", pull=True)
    reader.say(fetch(1, 1))
    await settle()
    client.session.stopping()
    expected = failed(7, 1, STOPPING.encode()) + STOP
    assert await reader.hear(len(expected)) == expected
    timers.advance(0.01)
    later = failed(7, 2, STOPPING.encode())
    assert await reader.ask(fetch(2, 1), size=len(later)) == later


async def test_a_stream_opened_while_the_server_stops_is_told_so(client: Client, timers: Timers) -> None:
    client.session.stopping()
    side = client.open()
    side.say(CONNECT_WRITER)
    assert await side.hear(1) == STOP
    reader = client.open()
    reader.say(connect_reader(b"orders"))
    assert await reader.hear(2) == b"\1\0"
    timers.advance(0.01)
    assert await reader.hear(1) == STOP


async def test_a_writer_of_whose_id_the_form_is_not_known_yet_is_told_too(client: Client, timers: Timers) -> None:
    """A number for an id is told from the length of a text by what follows; that it is a writer is clear before."""
    side = client.open()
    side.say(bytes((1, 0, 0, 0, 3)))
    client.session.stopping()
    assert await side.hear(1) == STOP
    timers.advance(0.01)
    assert await side.ask(b"wid", write(1, b"a", b"x"), size=6) == written(1)
    side.say(DISCONNECT)
    assert await side.end() == DISCONNECT
    assert side.stream.sent.count(STOP) == 1


async def test_a_stream_that_has_ended_is_told_nothing(client: Client) -> None:
    side = client.writer()
    side.say(DISCONNECT)
    await side.end()
    client.session.stopping()
    await settle()
    assert side.stream.sent == DISCONNECT


# -- beside each other -------------------------------------------------------------------------------------------------------


async def test_streams_of_a_connection_share_what_is_known_of_its_writes(client: Client) -> None:
    first, second = client.writer(), client.writer()
    assert await first.ask(write_table(1, b"a", b"x"), size=6) == written(1)
    assert await second.ask(write_table(2, b"a", bytes(70_000)), size=6) == written(2)


async def test_what_one_stream_does_wrong_does_not_touch_the_others(client: Client, broker: Broker) -> None:
    good, reader = client.writer(), await client.reader(b"a")
    for bad in (b"\xff", b"\1\0\0\0\0\xff", b"\2\1\0\xff\xff\xff\xff", b"\3\3\3"):
        client.open().say(bad)
    assert await good.ask(write(1, b"a", b"x"), size=6) == written(1)
    assert await reader.hear(18) == message(b"x", 1)
    assert client.connection.closed_with is None


async def test_what_is_counted(client: Client, connect: Connect, broker: Broker, timers: Timers) -> None:
    fujin = Fujin(broker, after=timers.after)
    client = Client(fujin, timers)
    side = client.writer()
    side.say(write(1, b"a", b"xx"), write(2, b"a", b"yy"), write(3, b"a", b""), b"\x05\0\0\0\4", b"\xff")
    await side.end()
    reader = await client.reader(b"a", pull=True)
    await reader.ask(fetch(1, 2), size=46)
    reader.say(ack(2, [b"?"]))
    client.open().say(b"\0")
    await settle()
    assert fujin.stats.requests_by_name() == {
        "connect_writer": 1,
        "connect_reader": 1,
        "write": 3,
        "commit": 1,
        "fetch": 1,
        "ack": 1,
        "unknown": 2,
    }
    assert (fujin.stats.errors, fujin.stats.internal_errors) == (3, 0)
    assert (fujin.stats.received_records, fujin.stats.sent_records, fujin.stats.subscribers) == (3, 2, 1)
    client.hang_up()
    assert fujin.stats.subscribers == 0


async def test_a_fault_of_ours_is_answered_counted_and_logged(
    client: Client, broker: Broker, timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **more: object) -> None:
        raise RuntimeError("a bug")

    fujin = Fujin(broker, after=timers.after)
    side = Client(fujin, timers).writer()
    assert await side.ask(write(1, b"a", b"x"), size=6) == written(1)
    monkeypatch.setattr(broker.records, "produce", fail)
    reason = b"internal error: the server's log has the details"
    expected = failed(2, 2, reason)
    assert await side.ask(write(2, b"a", b"x"), size=len(expected)) == expected
    assert fujin.stats.internal_errors == 1


# -- who is asking -----------------------------------------------------------------------------------------------------------


def principals(fujin: Fujin, timers: Timers, subjects: Sequence[str | None]) -> list[Principal]:
    connections = [Client(fujin, timers, subject).connection for subject in subjects]
    return [principal_on_a_stream(fujin(connection), connection, 0) for connection in connections]


def principal_on_a_stream(session: FujinConnection, connection: MemoryConnection, stream_id: int) -> Principal:
    return session.stream_opened(MemoryStream(stream_id, connection)).principal


async def test_a_certificate_says_who_a_client_is(broker: Broker, timers: Timers) -> None:
    open_to_all = Fujin(broker, principal=ANONYMOUS, after=timers.after)
    strict = Fujin(broker, principal=UNAUTHENTICATED, after=timers.after)
    nobody, alice = principals(open_to_all, timers, [None, "CN=alice"])
    assert (nobody.name, nobody.trusted) == ("anonymous", True)
    assert (alice.name, alice.trusted) == ("CN=alice", True)
    nobody, alice = principals(strict, timers, [None, "CN=alice"])
    assert (nobody.name, nobody.trusted) == ("", False)
    assert (alice.name, alice.trusted) == ("CN=alice", False)
    assert alice.address == "192.0.2.1:50000"


async def test_the_audit_sees_a_client_that_has_moved_where_it_is(broker: Broker, timers: Timers) -> None:
    fujin = Fujin(broker, principal=ANONYMOUS, after=timers.after)
    connection = MemoryConnection()
    session = fujin(connection)
    assert principal_on_a_stream(session, connection, 0).address == "192.0.2.1:50000"
    connection.peer = "198.51.100.7:1234"
    assert principal_on_a_stream(session, connection, 4).address == "198.51.100.7:1234"

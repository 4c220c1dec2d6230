"""The examples of the contract, byte for byte; and what goes over the wire between deployed clients and servers.

Numbers are decimal, as the contract writes them, or hexadecimal where a whole conversation stands.
"""

from __future__ import annotations

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from tests.broker.producing import produce, read_values
from tests.protocols.fujin.conftest import Connect
from tests.protocols.fujin.memory import Client, Timers, until


def hexa(text: str) -> bytes:
    return bytes.fromhex(text)


CONNECT_WRITER = bytes((1, 0, 0, 0, 0))
HELLO = [104, 101, 108, 108, 111]
INVALID_TX_STATE = bytes((0, 0, 0, 16)) + b"invalid tx state"


async def values(broker: Broker, topic: str) -> list[bytes]:
    return [value or b"" for value in await read_values(broker.records.partition(ANONYMOUS, topic, 0))]


# -- the contract ------------------------------------------------------------------------------------------------------------


async def test_ping(client: Client, timers: Timers) -> None:
    timers.advance(2.0)
    [(stream, session)] = client.connection.opened
    assert stream.sends == [(bytes([11]), True)]
    session.receive(bytes([11]))
    session.ended()


@pytest.mark.parametrize("writer_id", [0, 1])
async def test_connect_writer(client: Client, writer_id: int) -> None:
    side = client.open()
    side.say(bytes([1, 0, 0, 0, writer_id]))
    await side.silence()
    assert await side.ask(bytes([4, 0, 0, 0, 1]), size=6) == bytes([3, 0, 0, 0, 1, 0])


async def test_write(client: Client, broker: Broker) -> None:
    side = client.writer()
    request = bytes([3, 0, 1, 1, 1, 0, 0, 0, 3, 112, 117, 98, 0, 0, 0, 5, *HELLO])
    assert await side.ask(request, size=6) == bytes([2, 0, 1, 1, 1, 0])
    assert await values(broker, "pub") == [b"hello"]


async def test_transactions(client: Client) -> None:
    side = client.writer()
    assert await side.ask(bytes([4, 0, 0, 0, 1]), size=6) == bytes([3, 0, 0, 0, 1, 0])
    assert await side.ask(bytes([5, 0, 0, 0, 1]), size=6) == bytes([4, 0, 0, 0, 1, 0])
    assert await side.ask(bytes([4, 0, 0, 0, 1]), size=6) == bytes([3, 0, 0, 0, 1, 0])
    assert await side.ask(bytes([6, 0, 0, 0, 1]), size=6) == bytes([5, 0, 0, 0, 1, 0])


async def test_connect_reader_and_message(client: Client, broker: Broker, timers: Timers) -> None:
    side = client.open()
    assert await side.ask(bytes([2, 1, 0, 0, 0, 0, 3, 112, 117, 98]), size=2) == bytes([1, 0])
    timers.advance(0.01)
    await produce(broker, "pub", [b"hello"])
    # Auto commit is off in the example, so its messages have ids.
    assert await side.hear(22) == bytes([6, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5, *HELLO])


async def test_message_without_an_id(client: Client, broker: Broker) -> None:
    side = await client.reader(b"pub", auto_commit=True)
    await produce(broker, "pub", [b"hello"])
    assert await side.hear(10) == bytes([6, 0, 0, 0, 5, *HELLO])


@pytest.mark.parametrize("number", [8, 9])
async def test_the_ids_that_the_examples_of_ack_and_nack_leave_out_are_waited_for(client: Client, number: int) -> None:
    side = await client.reader(b"pub")
    side.say(bytes([number, 0, 0, 0, 1, 0, 0, 0, 1]))
    await side.silence()
    assert side.stream.pending


async def test_fetch_with_a_message(client: Client, broker: Broker) -> None:
    """The error stands before the count, as in the contract's table; its example has them the other way round."""
    side = await client.reader(b"pub", pull=True, auto_commit=True)
    await produce(broker, "pub", [b"hello"])
    reply = await side.ask(bytes([7, 0, 0, 0, 1, 0, 0, 0, 1]), size=19)
    assert reply == bytes([7, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 5, *HELLO])


async def test_fetch_with_nothing(connect: Connect, timers: Timers) -> None:
    side = await connect(dialect="spec").reader(b"pub", pull=True, auto_commit=True)
    side.say(bytes([7, 0, 0, 0, 1, 0, 0, 0, 1]))
    await side.silence()
    timers.advance(5.0)
    assert await side.hear(10) == bytes([7, 0, 0, 0, 1, 0, 0, 0, 0, 0])


async def test_fetch_with_an_error(client: Client, timers: Timers) -> None:
    """As in the contract's table; its example has the four bytes of a count before the error."""
    side = await client.reader(b"pub", pull=True, auto_commit=True)
    side.say(bytes([7, 0, 0, 0, 1, 0, 0, 0, 1]))
    await side.silence()
    timers.advance(5.0)
    assert await side.hear(21) == bytes([7, 0, 0, 0, 1, 1, 0, 0, 0, 11]) + b"no messages"


async def test_disconnect(client: Client) -> None:
    for side in (client.writer(), await client.reader(b"pub"), await client.reader(b"pub", pull=True)):
        side.say(bytes([10]))
        await until(lambda side=side: side.stream.has_ended)  # type: ignore[misc]
        assert side.stream.sends[-1] == (bytes([10]), True)


async def test_stop(client: Client) -> None:
    sides = [client.writer(), await client.reader(b"pub"), await client.reader(b"pub", pull=True)]
    client.session.stopping()
    for side in sides:
        assert await side.hear(1) == bytes([12])
        assert side.stream.sends[-1] == (bytes([12]), False)


# -- what is deployed --------------------------------------------------------------------------------------------------------

WRITE_CODE = "03 00 00 00 01 00 00 00 03 70 75 62 00 00 00 05 68 65 6c 6c 6f"
WRITE_TABLE = "03 00 00 00 01 00 00 00 03 70 75 62 00 00 00 00 00 05 68 65 6c 6c 6f"
WRITE_HEADERS = "03 00 00 00 01 00 00 00 03 70 75 62 00 02 00 00 00 01 6b 00 00 00 01 76 00 00 00 05 68 65 6c 6c 6f"


@pytest.mark.parametrize("connects", ["01 00 00 00 00", "01 00 00 00 03 77 69 64", "01 00 00 00 07"])
@pytest.mark.parametrize("writes", [WRITE_CODE, WRITE_TABLE, WRITE_HEADERS])
async def test_all_forms_of_writers_and_writes(client: Client, broker: Broker, connects: str, writes: str) -> None:
    """Examples 1 to 6."""
    side = client.open()
    assert await side.ask(hexa(connects), hexa(writes), size=6) == hexa("02 00 00 00 01 00")
    assert await values(broker, "pub") == [b"hello"]
    block = (await broker.records.partition(ANONYMOUS, "pub", 0).read(0))[0]
    headers = block.headers(0, 1)
    assert (headers is not None and headers[0] is not None) == (writes is WRITE_HEADERS)


async def test_a_write_that_is_refused(connect: Connect) -> None:
    """Example 7."""
    side = connect(auto_create=False).writer()
    refused = "02 00 00 00 01 01 00 00 00 10 77 72 69 74 65 72 20 6e 6f 74 20 66 6f 75 6e 64"
    assert await side.ask(hexa(WRITE_CODE), size=26) == hexa(refused)


async def test_transactions_in_bytes(client: Client) -> None:
    """Examples 8 to 10."""
    side = client.writer()
    refused = "04 00 00 00 03 01 00 00 00 10 69 6e 76 61 6c 69 64 20 74 78 20 73 74 61 74 65"
    assert await side.ask(hexa("05 00 00 00 03"), size=26) == hexa(refused)
    assert await side.ask(hexa("04 00 00 00 02"), size=6) == hexa("03 00 00 00 02 00")
    assert await side.ask(hexa("06 00 00 00 04"), size=6) == hexa("05 00 00 00 04 00")


@pytest.mark.parametrize(
    "connects", ["02 01 01 00 00 00 06 6f 72 64 65 72 73", "02 02 00 00 00 00 06 6f 72 64 65 72 73"]
)
async def test_readers_connect(client: Client, connects: str) -> None:
    """Examples 11 and 12."""
    assert await client.open().ask(hexa(connects), size=2) == hexa("01 00")


async def test_a_reader_that_is_refused(connect: Connect, timers: Timers) -> None:
    """Example 13: the end comes separately."""
    side = connect(auto_create=False).open()
    refused = "01 01 00 00 00 10 72 65 61 64 65 72 20 6e 6f 74 20 66 6f 75 6e 64"
    assert await side.ask(hexa("02 01 01 00 00 00 06 6f 72 64 65 72 73"), size=22) == hexa(refused)
    assert not side.stream.has_ended
    timers.advance(0.1)
    assert side.stream.sends == [(hexa(refused), False), (b"", True)]


async def test_messages_in_bytes(client: Client, broker: Broker) -> None:
    """Examples 14 and 15."""
    await broker.topics.ensure(ANONYMOUS, "orders")
    await produce(broker, "orders", [b"hello"] * 258)
    reader = await client.reader(b"orders", auto_commit=True)
    assert await reader.hear(10) == hexa("06 00 00 00 05 68 65 6c 6c 6f")


@pytest.mark.dense
async def test_messages_with_ids_in_bytes(connect: Connect, broker: Broker) -> None:
    await broker.topics.ensure(ANONYMOUS, "orders")
    await produce(broker, "orders", [b"hello"] * 258)
    reader = await connect(unacknowledged_max=300).reader(b"orders")
    await reader.hear(22 * 257)
    last = "06 00 00 00 08 00 00 00 00 00 00 01 02 00 00 00 05 68 65 6c 6c 6f"
    assert await reader.hear(22) == hexa(last)


FETCH = "07 00 00 00 09 00 00 00 02"


@pytest.mark.parametrize(
    ("auto_commit", "reply"),
    [
        (True, "07 00 00 00 09 00 00 00 00 02 00 00 00 02 61 31 00 00 00 02 62 32"),
        (
            False,
            (
                "07 00 00 00 09 00 00 00 00 02 00 00 00 08 00 00 00 00 00 00 00 01 00 00 00 02 61 31"
                "00 00 00 08 00 00 00 00 00 00 00 02 00 00 00 02 62 32"
            ),
        ),
    ],
)
async def test_fetches_in_bytes(client: Client, broker: Broker, auto_commit: bool, reply: str) -> None:
    """Example 16."""
    reader = await client.reader(b"orders", pull=True, auto_commit=auto_commit)
    await produce(broker, "orders", [b"a1", b"b2"])
    assert await reader.ask(hexa(FETCH), size=len(hexa(reply))) == hexa(reply)


async def test_a_fetch_that_finds_nothing_in_bytes(connect: Connect, timers: Timers) -> None:
    reader = await connect(dialect="spec").reader(b"orders", pull=True)
    reader.say(hexa(FETCH))
    await reader.silence()
    timers.advance(5)
    assert await reader.hear(10) == hexa("07 00 00 00 09 00 00 00 00 00")


async def test_acknowledgements_in_bytes(client: Client, broker: Broker) -> None:
    """Examples 17 to 20."""
    reader = await client.reader(b"orders", pull=True)
    await produce(broker, "orders", [b"a1", b"b2"])
    await reader.ask(hexa("07 00 00 00 09 00 00 00 01"), size=28)
    one = "08 00 00 00 0a 00 00 00 01 00 00 00 08 00 00 00 00 00 00 00 01"
    done = "08 00 00 00 0a 00 00 00 00 01 00 00 00 08 00 00 00 00 00 00 00 01 00"
    assert await reader.ask(hexa(one), size=23) == hexa(done)

    two = "08 00 00 00 0b 00 00 00 02 00 00 00 08 00 00 00 00 00 00 00 02 00 00 00 08 00 00 00 00 00 00 00 03"
    partly = (
        "08 00 00 00 0b 00 00 00 00 02 00 00 00 08 00 00 00 00 00 00 00 02 00"
        "00 00 00 08 00 00 00 00 00 00 00 03 01 00 00 00 0a 75 6e 6b 6e 6f 77 6e 20 69 64"
    )
    await reader.ask(hexa("07 00 00 00 09 00 00 00 01"), size=28)
    assert await reader.ask(hexa(two), size=50) == hexa(partly)

    none = await reader.ask(hexa("08 00 00 00 0c 00 00 00 00"), size=10)
    assert none == hexa("08 00 00 00 0c 00 00 00 00 00")

    await produce(broker, "orders", [b"c3"])
    await reader.ask(hexa("07 00 00 00 09 00 00 00 01"), size=28)
    refuse = "09 00 00 00 0d 00 00 00 01 00 00 00 08 00 00 00 00 00 00 00 03"
    refused = "09 00 00 00 0d 00 00 00 00 01 00 00 00 08 00 00 00 00 00 00 00 03 00"
    assert await reader.ask(hexa(refuse), size=23) == hexa(refused)


async def test_the_examples_write_behind_its_connect(client: Client) -> None:
    """Example 24."""
    side = client.open()
    side.say(hexa("01 00 00 00 00 03 00 01 01 01 00 00 00 03 70 75 62 00 00 00 05 68 65 6c 6c 6f"))
    assert await side.hear(6) == hexa("02 00 01 01 01 00")


async def test_a_whole_conversation_in_one_read(client: Client) -> None:
    """Examples 21 and 25: six bytes for each write, and one more."""
    side = client.open()
    side.say(
        hexa(
            "01 00 00 00 00 03 00 00 00 01 00 00 00 03 70 75 62 00 00 00 02 70 31"
            "03 00 00 00 02 00 00 00 03 70 75 62 00 00 00 02 70 32 0a"
        )
    )
    assert await side.end() == hexa("02 00 00 00 01 00 02 00 00 00 02 00 0a")


async def test_ids_of_another_server_are_echoed_and_unknown(client: Client) -> None:
    """Examples 26 and 27 have ids that are not ours: each comes back as it was, with an error of its own."""
    reader = await client.reader(b"t", pull=True)
    request = "08 00 00 00 06 00 00 00 02 00 00 00 05 00 00 00 01 74 00 00 00 01 21"
    error = b"\1\0\0\0\x0aunknown id"
    expected = hexa("08 00 00 00 06 00 00 00 00 02 00 00 00 05 00 00 00 01 74") + error + hexa("00 00 00 01 21") + error
    assert await reader.ask(hexa(request), size=len(expected)) == expected


async def test_the_hello_of_later_versions_is_not_taken_for_anything_else(client: Client) -> None:
    """Example 28: its first byte is no command of this version, so the stream ends and nothing is said."""
    side = client.open()
    side.say(hexa("00 01 01 01 00 00 00 08 70 79 63 6c 69 65 6e 74 00 00 00 03 30 2e 31"))
    assert await side.end() == b""
    assert client.connection.closed_with is None

"""What a reader gets depends on what its connection has shown: what deployed clients survive, or all that the contract allows."""

from __future__ import annotations

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from tests.broker.producing import produce
from tests.protocols.fujin.conftest import Connect
from tests.protocols.fujin.memory import Client, Timers, settle, until
from tests.protocols.fujin.records import make
from tests.protocols.fujin.requests import (
    CONNECT_WRITER,
    DISCONNECT,
    failed,
    fetch,
    fetched,
    message,
    text,
    u32,
    write,
    write_table,
)

NUMBERED_WRITER = b"\1" + u32(7)
NAMED_WRITER = b"\1" + text(b"wid")
NOTHING = b"no messages"

DEPLOYED = {
    "nothing was written": b"",
    "a WRITE without headers": CONNECT_WRITER + write(1, b"other", b"x"),
    "a writer with a text for an id": NAMED_WRITER + write(1, b"other", b"x"),
    "a writer that only leaves": CONNECT_WRITER + DISCONNECT,
}
CONTRACT = {
    "a WRITE with an empty field of headers": CONNECT_WRITER + write_table(1, b"other", b"x"),
    "a WRITE with headers": CONNECT_WRITER + write_table(1, b"other", b"x", b"k", b"v"),
    "a WRITE with the field that is refused": CONNECT_WRITER + write_table(1, b"other", b"", b"k", b"v"),
    "a writer with a number for an id": NUMBERED_WRITER + DISCONNECT,
    "such a writer whose WRITEs have no headers": NUMBERED_WRITER + write(1, b"other", b"x"),
}
AS_DEPLOYED = pytest.mark.parametrize("shown", DEPLOYED.values(), ids=DEPLOYED)
BY_CONTRACT = pytest.mark.parametrize("shown", CONTRACT.values(), ids=CONTRACT)


async def show(client: Client, data: bytes) -> None:
    """What another stream of the connection said before."""
    if data:
        client.open().say(data)
        await settle()


async def nothing_fetched(client: Client, timers: Timers, size: int) -> bytes:
    reader = await client.reader(b"orders", pull=True)
    reader.say(fetch(1, 10))
    await settle()
    timers.advance(4.9)
    await reader.silence()
    timers.advance(0.1)
    reply = await reader.hear(size)
    assert reader.stream.held_bytes == 0
    return reply


# -- a FETCH for which nothing came ------------------------------------------------------------------------------------------


@AS_DEPLOYED
async def test_a_fetch_that_finds_nothing_is_an_error(client: Client, timers: Timers, shown: bytes) -> None:
    await show(client, shown)
    assert await nothing_fetched(client, timers, 21) == failed(7, 1, NOTHING)


@BY_CONTRACT
async def test_a_fetch_that_finds_nothing_is_an_empty_batch_by_the_contract(
    client: Client, timers: Timers, shown: bytes
) -> None:
    await show(client, shown)
    assert await nothing_fetched(client, timers, 10) == fetched(1)


@BY_CONTRACT
async def test_what_is_shown_while_a_fetch_waits_counts(client: Client, timers: Timers, shown: bytes) -> None:
    reader = await client.reader(b"orders", pull=True)
    reader.say(fetch(1, 10))
    await show(client, shown)
    timers.advance(5)
    assert await reader.hear(10) == fetched(1)


async def test_what_one_connection_shows_says_nothing_of_another(connect: Connect, timers: Timers) -> None:
    await show(connect(), CONTRACT["a WRITE with headers"])
    assert await nothing_fetched(connect(), timers, 21) == failed(7, 1, NOTHING)


# -- values of a single byte -------------------------------------------------------------------------------------------------


@AS_DEPLOYED
async def test_single_bytes_are_fetched_alone(client: Client, broker: Broker, shown: bytes) -> None:
    await make(broker, "orders", [b"aa", b"b", b"c", b"dd", b"ee"])
    await show(client, shown)
    reader = await client.reader(b"orders", pull=True, auto_commit=True)
    for number, values in enumerate([[b"aa"], [b"b"], [b"c"], [b"dd", b"ee"]]):
        expected = fetched(number, *values)
        assert await reader.ask(fetch(number, 10), size=len(expected)) == expected


@BY_CONTRACT
async def test_single_bytes_are_fetched_together_by_the_contract(client: Client, broker: Broker, shown: bytes) -> None:
    await make(broker, "orders", [b"a", b"b"])
    await show(client, shown)
    reader = await client.reader(b"orders", pull=True, auto_commit=True)
    assert await reader.ask(fetch(1, 10), size=20) == fetched(1, b"a", b"b")


# -- large values ------------------------------------------------------------------------------------------------------------


@pytest.mark.dense
@AS_DEPLOYED
async def test_no_more_than_64_kib_are_pushed(client: Client, broker: Broker, shown: bytes) -> None:
    largest = b"y" * 65_536
    await make(broker, "orders", [b"x" * 65_537, largest])
    await show(client, shown)
    reader = await client.reader(b"orders")
    expected = message(largest, 2)
    assert await reader.hear(len(expected)) == expected
    await until(lambda: broker.dead_letters.stats.sent == 1)
    (letter,) = await broker.dead_letters.letters(ANONYMOUS, "orders", 10)
    assert (
        letter.reason
        == "65537 bytes are more than the 65536 that a deployed client survives, see listeners.fujin.dialect"
    )


@BY_CONTRACT
async def test_more_is_pushed_by_the_contract(client: Client, broker: Broker, shown: bytes) -> None:
    await show(client, shown)
    reader = await client.reader(b"orders")
    value = bytes(1 << 20)
    await produce(broker, "orders", [value])
    expected = message(value, 1)
    assert await reader.hear(len(expected)) == expected


@AS_DEPLOYED
async def test_consumers_fetch_values_of_any_size(client: Client, broker: Broker, shown: bytes) -> None:
    value = bytes(1 << 20)
    await make(broker, "orders", [value])
    await show(client, shown)
    reader = await client.reader(b"orders", pull=True, auto_commit=True)
    expected = fetched(1, value)
    assert await reader.ask(fetch(1, 1), size=len(expected)) == expected


# -- what settings say -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "shown", "expected"),
    [
        ({"dialect": "spec"}, DEPLOYED["a writer with a text for an id"], fetched(1)),
        ({"dialect": "native"}, CONTRACT["a WRITE with headers"], failed(7, 1, NOTHING)),
        ({"empty_fetch": "batch"}, DEPLOYED["nothing was written"], fetched(1)),
        ({"empty_fetch": "error"}, CONTRACT["a WRITE with headers"], failed(7, 1, NOTHING)),
        ({"dialect": "native", "empty_fetch": "batch"}, b"", fetched(1)),
        ({"dialect": "spec", "empty_fetch": "error"}, b"", failed(7, 1, NOTHING)),
        ({"write_form": "table"}, b"", fetched(1)),
        ({"write_form": "code"}, b"", failed(7, 1, NOTHING)),
    ],
)
async def test_settings_decide_what_a_fetch_that_finds_nothing_gets(
    connect: Connect, timers: Timers, settings: dict[str, object], shown: bytes, expected: bytes
) -> None:
    client = connect(**settings)
    await show(client, shown)
    assert await nothing_fetched(client, timers, len(expected)) == expected


@pytest.mark.parametrize(("dialect", "pushed"), [("spec", [65_537, 1]), ("native", [1])])
async def test_the_dialect_decides_what_is_pushed(
    connect: Connect, broker: Broker, dialect: str, pushed: list[int]
) -> None:
    await make(broker, "orders", [b"x" * 65_537, b"x"])
    client = connect(dialect=dialect)
    await show(client, CONTRACT["a WRITE with headers"] if dialect == "native" else b"")
    reader = await client.reader(b"orders", auto_commit=True)
    expected = b"".join(message(b"x" * size) for size in pushed)
    assert await reader.hear(len(expected)) == expected

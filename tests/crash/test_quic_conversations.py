"""Conversations over QUIC that go wrong on purpose: cut off anywhere, in single bytes, from moving addresses, with lengths that lie.

Whatever happens to one stream or one client, what it began is undone or whole, nothing of it is left in the broker, and others continue.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from penstock.clients.quic import QuicConnection, QuicStream
from penstock.errors import ConnectionLost, PenstockError
from penstock.protocols.felix.client.client import AsyncFelixClient
from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.frames import FrameDecoder, decode_reply, encode_frame, encode_message
from penstock.protocols.felix.codec.messages import (
    CacheGet,
    CachePut,
    Event,
    EventBatch,
    Publish,
    PublishBatch,
    Subscribe,
)
from penstock.testing import BrokerProcess
from tests.crash.quic_load import OPTIONS, PipelinedWrites, beside, quic_broker, until, url, values_of
from tests.crash.quic_peers import (
    BYSTANDER_TOPICS,
    KIB,
    MIB,
    Bystander,
    Memory,
    answer_pings,
    connect,
    is_sound,
    metrics,
)
from tests.protocols.fujin import requests

WHOLE, MOVING, FRAGMENTS, EVENTS, CUT = "whole", "moving", "fragments", "events", "cut"
TOPICS = {WHOLE: 1, MOVING: 1, FRAGMENTS: 1, EVENTS: 1, CUT: 1}
SCOPE: Any = {"tenant_id": "default", "namespace": "default"}
NUMBERS = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all: it must survive everything."""
    directory = tmp_path_factory.mktemp("conversations")
    top = '[admin]\nbind = "127.0.0.1:0"\n'
    quick = "idle_s_max = 4.0"
    with quic_broker(directory, {**TOPICS, **BYSTANDER_TOPICS}, top=top, fujin=quick, felix=quick) as broker:
        yield broker


async def until_series(broker: BrokerProcess, expected: dict[str, float]) -> None:
    """Wait until monitoring says so."""
    now: dict[str, float] = {}
    for _ in range(300):
        figures = await metrics(broker)
        now = {series: figures[series] for series in expected}
        if now == expected:
            return
        await asyncio.sleep(0.05)
    assert now == expected, broker.output


def nothing_left(listener: str) -> dict[str, float]:
    """What monitoring says once everybody is gone."""
    return {
        f'penstock_streams{{listener="{listener}"}}': 0,
        f'penstock_connections{{listener="{listener}"}}': 0,
        f'penstock_session_errors_total{{listener="{listener}"}}': 0,
        f'penstock_internal_errors_total{{listener="{listener}"}}': 0,
        "penstock_transactions_open": 0,
        "penstock_transactions_open_bytes": 0,
        'penstock_push_subscribers{listener="felix"}': 0,
    }


# -- cut off -------------------------------------------------------------------------------------------------------------------


def fujin_conversation(chance: random.Random) -> bytes:
    """Something that makes sense from its beginning to its end. Values of transactions say how many belong together."""
    if chance.random() < 0.4:
        reader = requests.connect_reader(CUT.encode(), kind=chance.choice((1, 2)), auto_commit=chance.choice((0, 1)))
        settled = [requests.tag(number) for number in range(chance.randrange(5))]
        return reader + requests.fetch(1, 3) + requests.ack(2, settled) + requests.nack(3, settled) + b"\x0a"
    parts = [requests.CONNECT_WRITER]
    for _ in range(chance.randrange(1, 4)):
        number, size = next(NUMBERS), chance.randrange(1, 12)
        rows = [requests.write(row, WHOLE.encode(), b"%d/%d" % (number, size)) for row in range(size)]
        end = requests.commit(size) if chance.random() < 0.6 else requests.rollback(size)
        parts += [requests.begin(0), *rows, end]
    return b"".join(parts) + requests.DISCONNECT


def felix_conversation(chance: random.Random) -> bytes:
    number, size = next(NUMBERS), chance.randrange(1, 12)
    values = [b"%d/%d" % (number, size)] * size
    batch = binary.encode_publish("default", "default", WHOLE, values, key=None, request_id=7)
    return b"".join(
        chance.choices(
            [
                encode_frame(9, batch),
                encode_message(Subscribe(**SCOPE, stream=EVENTS, start="earliest")),
                encode_message(CachePut(key="k", value=b"v" * 300)),
                encode_message(CacheGet(key="k")),
                encode_message(Publish(**SCOPE, stream=EVENTS, payload=b"x" * 500)),
            ],
            k=chance.randrange(1, 6),
        )
    )


CONVERSATIONS = {"fujin": fujin_conversation, "felix": felix_conversation}


async def cut_off(chance: random.Random, connection: QuicConnection, data: bytes) -> None:
    """Say some of it, in pieces, and end the stream in one of the ways there are."""
    stream = await connection.open_stream_when_allowed()
    end = chance.randrange(len(data) + 1)
    try:
        while end and data:
            piece = chance.randrange(1, end + 1)
            await stream.write(data[:piece])
            data, end = data[piece:], end - piece
            if chance.random() < 0.5:
                await asyncio.sleep(chance.uniform(0, 0.004))
    except ConnectionLost:
        return  # the broker has seen enough
    match chance.randrange(6):
        case 0:
            stream.reset(chance.randrange(1 << 20))
        case 1:
            stream.stop_receiving(chance.randrange(1 << 20))
        case 2:
            stream.reset()
            stream.stop_receiving()
        case 3:
            stream.stop_receiving()
            stream.end()
        case 4:
            stream.end()
        case _:
            pass  # left lying, until the connection ends


@pytest.mark.timeout(120)
@pytest.mark.parametrize("listener", ["fujin", "felix"])
async def test_streams_that_are_cut_off_anywhere_leave_nothing_and_disturb_nobody(
    broker: BrokerProcess, listener: str
) -> None:
    chance = random.Random(62)
    async with Bystander(broker).working():
        memory = Memory(broker)
        for _ in range(12):
            connection = await connect(broker, listener)
            if listener == "fujin":
                answer_pings(connection)
            talks = [CONVERSATIONS[listener](chance) for _ in range(40)]
            await asyncio.gather(*(cut_off(chance, connection, data) for data in talks))
            if chance.random() < 0.3:
                connection.abandon("without a word")
                connection.endpoint.close()
            else:
                connection.close()
        assert memory.peak_growth_bytes < 64 * MIB
    await until_series(broker, nothing_left(listener))
    ((_, values),) = values_of(broker, [WHOLE])
    for value in set(values):
        _, _, size = value.partition(b"/")
        assert values.count(value) % int(size) == 0, f"{values.count(value)} records of {value!r} are there"
    assert is_sound(broker)


@pytest.mark.timeout(60)
async def test_clients_that_vanish_take_their_transactions_and_what_they_held_with_them(broker: BrokerProcess) -> None:
    for number in range(5):
        connection = await connect(broker, "fujin")
        writer, reader = connection.open_stream(), connection.open_stream()
        await writer.write(requests.CONNECT_WRITER + requests.begin(0))
        await writer.write(requests.write(1, WHOLE.encode(), b"%d/0" % number) * 100)
        await reader.write(requests.connect_reader(b"vanished"))
        assert (await writer.read())[:6] == requests.done(3, 0)
        connection.abandon("without a word")
        connection.endpoint.close()
    assert (await metrics(broker))["penstock_transactions_open"] > 0
    await until_series(broker, nothing_left("fujin"))
    assert is_sound(broker)


# -- single bytes ----------------------------------------------------------------------------------------------------------------


async def say_byte_by_byte(stream: QuicStream, data: bytes) -> None:
    for at in range(len(data)):
        await stream.write(data[at : at + 1])
        await asyncio.sleep(0)


async def hear(stream: QuicStream, size: int) -> bytes:
    heard = b""
    async with asyncio.timeout(30):
        while len(heard) < size:
            more = await stream.read()
            assert more, f"the stream ended after {heard!r}"
            heard += more
    return heard


@pytest.mark.timeout(60)
async def test_fujin_in_single_bytes_is_the_same_conversation(broker: BrokerProcess) -> None:
    topic = FRAGMENTS.encode()
    connection = await connect(broker, "fujin")
    answer_pings(connection)
    writer, reader = connection.open_stream(), connection.open_stream()
    body = bytes(range(256)) * 4
    await say_byte_by_byte(
        writer,
        requests.CONNECT_WRITER
        + requests.write(1, topic, body)
        + requests.begin(2)
        + requests.write(3, topic, b"two")
        + requests.commit(4),
    )
    expected = requests.written(1) + requests.done(3, 2) + requests.written(3) + requests.done(4, 4)
    assert await hear(writer, len(expected)) == expected
    await say_byte_by_byte(reader, requests.connect_reader(topic))
    message = b"\1\0" + requests.message(body, 0)
    heard = await hear(reader, len(message) + len(requests.message(b"two", 0)))
    assert body in heard
    ids = [heard[7:15], heard[-15:-7]]
    await say_byte_by_byte(reader, requests.ack(9, ids) + requests.DISCONNECT)
    settled = requests.settled(8, 9, *((each, None) for each in ids)) + b"\x0a"
    assert await hear(reader, len(settled)) == settled
    connection.close()
    assert is_sound(broker)


@pytest.mark.timeout(60)
async def test_felix_in_single_bytes_is_the_same_conversation(broker: BrokerProcess) -> None:
    connection = await connect(broker, "felix")
    stream = connection.open_stream()
    batch = binary.encode_publish("default", "default", FRAGMENTS, [b"one", b"", bytes(range(256))], request_id=7)
    await say_byte_by_byte(
        stream,
        encode_message(PublishBatch(**SCOPE, stream=FRAGMENTS, payloads=[b"json", b"\0\xff"]))
        + encode_frame(9, batch)
        + encode_message(CachePut(key="k", value=b"v"))
        + encode_message(CacheGet(key="k")),
    )
    stream.end()
    decoder, replies = FrameDecoder(), []
    async with asyncio.timeout(30):
        while data := await stream.read():
            replies += [decode_reply(frame) for frame in decoder.feed(data)]
    assert [type(reply).__name__ for reply in replies] == ["Ok", "PublishAck", "Ok", "CacheValue"]
    ((_, values),) = values_of(broker, [FRAGMENTS])
    assert values[-5:] == [b"json", b"\0\xff", b"one", b"", bytes(range(256))]
    connection.close()
    assert is_sound(broker)


# -- moving ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
async def test_writers_and_subscribers_continue_while_their_addresses_change(broker: BrokerProcess) -> None:
    writes = PipelinedWrites(MOVING)
    moves = 3
    connections: list[QuicConnection] = []
    publisher = await AsyncFelixClient(url(broker, "felix"), options=OPTIONS).__aenter__()
    subscriber = await connect(broker, "felix")
    asking = subscriber.open_stream()
    await asking.write(encode_message(Subscribe(**SCOPE, stream=EVENTS)), end=True)
    events = await subscriber.accept_stream()
    seen: list[bytes] = []

    async def read() -> None:
        decoder = FrameDecoder()
        while data := await events.read():
            for frame in decoder.feed(data):
                reply = decode_reply(frame)
                if isinstance(reply, Event):
                    seen.append(reply.payload)
                elif isinstance(reply, EventBatch):
                    seen.extend(reply.payloads)

    reading = asyncio.ensure_future(read())
    sent: list[bytes] = []
    async with beside(writes.one_connection(broker, 2, opened=connections.append)):
        await until(lambda: writes.acknowledged > 100, "nothing is acknowledged")
        for move in range(moves):
            for connection in (*connections, subscriber):
                connection.rebind()
            acknowledged = writes.acknowledged
            for number in range(20):
                sent.append(b"%d/%d" % (move, number))
                await publisher.send(EVENTS, sent[-1])
            await until(lambda least=acknowledged: writes.acknowledged > least + 2_000, "it does not go on")  # type: ignore[misc]
            await until(lambda: len(seen) == len(sent), "events are missing")
    assert seen == sent
    figures = await metrics(broker)
    assert figures['penstock_quic_rebindings_total{listener="fujin"}'] >= moves
    assert figures['penstock_quic_rebindings_total{listener="felix"}'] >= moves
    ((_, values),) = values_of(broker, [MOVING])
    writes.check(values)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    subscriber.close()
    await publisher.close()
    assert is_sound(broker)


# -- lies ------------------------------------------------------------------------------------------------------------------------


HUGE = (0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 16 * MIB + 1)


def fujin_lies() -> Iterator[bytes]:
    for number in HUGE:
        size = requests.u32(number)
        yield b"\1" + size + b"\xee"
        yield requests.CONNECT_WRITER + b"\3" + requests.u32(1) + size + b"x" * 100
        yield requests.CONNECT_WRITER + b"\3" + requests.u32(1) + requests.text(b"whole") + size + b"x" * 100
        yield requests.CONNECT_WRITER + b"\3" + requests.u32(1) + requests.text(b"whole") + b"\0\2" + size + b"x" * 99
        yield requests.CONNECT_WRITER + b"\3" + requests.u32(1) + requests.text(b"whole") + b"\xff\xff\0\0\0\1x" * 9
        yield b"\2\1\0" + size + b"x" * 100
        for command in (b"\x08", b"\x09"):
            yield requests.connect_reader(b"cut") + command + requests.u32(1) + size + b"x" * 100
            yield requests.connect_reader(b"cut") + command + requests.u32(1) + requests.u32(1) + size + b"x" * 100
        yield requests.connect_reader(b"cut", kind=2) + b"\7" + requests.u32(1) + size
    yield bytes(256)
    yield bytes(range(256))


def felix_lies() -> Iterator[bytes]:
    names = b"".join(struct.pack(">H", len(name)) + name for name in (b"default", b"default", b"events"))
    for number in HUGE:
        size = struct.pack(">I", number)
        yield b"FLX1" + struct.pack(">HH", 1, 0) + size + b"{" * 100
        yield encode_frame(1, names + size)
        yield encode_frame(1, names + size + b"\0\0\0\1x" * 20)
        yield encode_frame(1, names + b"\0\0\0\1" + size + b"x")
        yield encode_frame(9, bytes(9) + names + size)
    yield encode_frame(1, b"\xff\xff" + b"x" * 50)
    yield encode_frame(0x41, b"\xff\xff" + b"x" * 50)
    yield encode_frame(1, names + b"\xff\xff\xff\xff" + bytes(200_000))
    for opening in (b"[", b'{"type":', b'{"a":[', b'"\\u'):
        yield encode_frame(0, opening * 50_000)
    yield encode_frame(0, b'{"type":"publish","payload":"' + b"A" * 1_000_000 + b"=" * 3 + b'"}')
    yield encode_frame(0, b'{"type":"cache_put","key":"k","value":"QQ==","ttl_ms":' + b"9" * 4_000 + b"}")
    yield b"FLX1" + struct.pack(">HHI", 2, 0, 0)
    yield bytes(64)


LIES = {"fujin": fujin_lies, "felix": felix_lies}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("listener", ["fujin", "felix"])
async def test_lengths_and_counts_that_lie_cost_nothing_and_disturb_nobody(
    broker: BrokerProcess, listener: str
) -> None:
    async with Bystander(broker).working():
        memory = Memory(broker)
        for lie in LIES[listener]():
            connection = await connect(broker, listener)
            streams = [connection.open_stream() for _ in range(20)]
            for stream in streams:
                stream.send(lie)
            try:
                await streams[0].write(lie[:1], end=True)
                async with asyncio.timeout(10):
                    while await streams[0].read():
                        pass
            except PenstockError:
                pass  # the stream, or all of them
            connection.close()
        assert memory.peak_growth_bytes < 48 * MIB
    assert is_sound(broker)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("listener", ["fujin", "felix"])
async def test_frames_that_never_come_are_not_waited_for_in_memory(broker: BrokerProcess, listener: str) -> None:
    """A thousand streams, each of which announces as much as it may and sends a little of it."""
    announced = {
        "fujin": requests.CONNECT_WRITER + b"\3" + requests.u32(1) + requests.text(b"whole") + requests.u32(1 * MIB),
        "felix": b"FLX1" + struct.pack(">HHI", 1, 1, 16 * MIB),
    }
    async with Bystander(broker).working():
        memory = Memory(broker)
        connection = await connect(broker, listener)
        if listener == "fujin":
            answer_pings(connection)
        for number in range(1_000):
            connection.open_stream().send(announced[listener] + bytes(KIB))
            if number % 20 == 0:
                await asyncio.sleep(0)
        bystanders = {"fujin": 1, "felix": 2}[listener]  # over Felix it has one for its subscription
        await until_series(broker, {f'penstock_connections{{listener="{listener}"}}': 1 + bystanders})
        assert memory.peak_growth_bytes < 48 * MIB
        connection.close()
    assert is_sound(broker)

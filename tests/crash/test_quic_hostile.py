"""Floods, garbage, forgeries and the wrong protocol on both QUIC ports of a broker, while others work and must not notice."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.clients.quic import connect_quic
from penstock.errors import ConnectionLost, Unreachable
from penstock.quic.core import QuicCore
from penstock.quic.packets import long_header
from penstock.quic.settings import QuicSettings
from penstock.quic.tls import TlsSettings
from penstock.testing import BrokerProcess
from tests.crash.quic_load import Datagrams, PipelinedWrites, beside, quic_broker, until, values_of
from tests.crash.quic_peers import (
    ALPN,
    BYSTANDER_TOPICS,
    MIB,
    Bystander,
    Memory,
    connect,
    is_sound,
    metrics,
    where,
)
from tests.protocols.fujin import requests

LISTENERS = ("fujin", "felix")
TOPIC = "orders"
HANDSHAKES = 1_000
HANDSHAKE_S_MAX = 4.0
RETRY_ABOVE = 100
ANSWER_BYTES_MAX = 64
"""Datagrams to an unknown peer. More would be usable for amplification."""
HELLOS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "FlyMQ": b"\xaf\x01\x03\x00\x00\x00\x00\x00",
    "RustLog": b"\x00\x00\x00\x0b" + b'{"Ping":{}}',
    "BlipMQ": b"\x01\x00\x00\x00\x04ping",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all: it must survive everything."""
    directory = tmp_path_factory.mktemp("hostile")
    quick = f"handshake_s_max = {HANDSHAKE_S_MAX}\nretry_above = {RETRY_ABOVE}"
    top = '[admin]\nbind = "127.0.0.1:0"\n'
    with quic_broker(directory, {TOPIC: 1, **BYSTANDER_TOPICS}, top=top, fujin=quick, felix=quick) as broker:
        yield broker


@contextmanager
def stranger(peer: tuple[str, int]) -> Iterator[socket.socket]:
    """A socket that speaks no QUIC of its own."""
    with socket.socket(type=socket.SOCK_DGRAM) as own:
        own.setblocking(False)
        own.connect(peer)
        yield own


def shove(own: socket.socket, datagram: bytes) -> None:
    """Send, whether it is taken or not."""
    try:
        own.send(datagram)
    except OSError:
        pass  # the system's buffer is full, or it remembers a port that was closed


def first_flight(listener: str, peer: tuple[str, int]) -> tuple[QuicCore, bytes]:
    settings = TlsSettings(alpn=(ALPN[listener],), verify=False, server_name="localhost")
    core = QuicCore.connect(QuicSettings(), settings, peer, time.monotonic())
    return core, core.take_datagrams(time.monotonic(), 1)[0][0]


# -- handshakes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.parametrize("listener", LISTENERS)
async def test_a_thousand_half_open_handshakes_keep_nobody_out_and_are_forgotten(
    broker: BrokerProcess, listener: str
) -> None:
    peer = where(broker, listener)
    async with Bystander(broker).working():
        memory = Memory(broker)
        with stranger(peer) as flooder:
            await flood(flooder, listener, peer)
            connection = await connect(broker, listener)
            connection.close()
        figures = await metrics(broker)
        assert figures[f'penstock_quic_handshakes{{listener="{listener}"}}'] > RETRY_ABOVE
        assert figures[f'penstock_quic_retries_total{{listener="{listener}"}}'] > 0
        assert memory.peak_growth_bytes < 96 * MIB
        gone_by_s = time.monotonic() + 30
        while (await metrics(broker))[f'penstock_quic_handshakes{{listener="{listener}"}}']:
            assert time.monotonic() < gone_by_s, "handshakes that nobody finishes are kept"
            await asyncio.sleep(0.1)
    assert is_sound(broker)


async def flood(own: socket.socket, listener: str, peer: tuple[str, int]) -> None:
    """Begin a thousand handshakes, show our address where that is asked for, and finish none of them."""
    waiting: dict[bytes, QuicCore] = {}
    for _ in range(HANDSHAKES):
        core, datagram = first_flight(listener, peer)
        waiting[core.ids.local] = core
        shove(own, datagram)
        await asyncio.sleep(0)
        try:
            while answer := own.recv(65_535):
                header = long_header(answer)
                core_asked = None if header is None else waiting.pop(header.destination_cid, None)
                if core_asked is not None and header is not None and header.token:
                    core_asked.receive(answer, len(answer), peer, time.monotonic())
                    for again, _ in core_asked.take_datagrams(time.monotonic(), 1):
                        shove(own, again)
        except BlockingIOError:
            pass


# -- datagrams -----------------------------------------------------------------------------------------------------------------


def forged(chance: random.Random, genuine: bytes) -> bytes:
    """A datagram that is none, or not quite."""
    kind = chance.randrange(8)
    if kind == 0:
        return chance.randbytes(chance.choice((1, 2, 7, 20, 29, 60, 1_199, 1_200, 1_452, 9_000)))
    if kind == 1:  # a header of this version with lengths at random
        return bytes((chance.randrange(0xC0, 0x100), 0, 0, 0, 1)) + chance.randbytes(1_300)
    if kind == 2:  # of another version
        return bytes((0xC0,)) + chance.randbytes(4) + bytes((chance.randrange(256),)) + chance.randbytes(1_300)
    if kind == 3:  # for a connection that nobody has
        return bytes((chance.randrange(0x40, 0x80),)) + chance.randbytes(chance.randrange(20, 1_400))
    if kind == 4:
        return genuine[: chance.randrange(1, len(genuine))]
    if kind == 5:
        return genuine + chance.randbytes(chance.randrange(1, 300))
    changed = bytearray(genuine)
    for _ in range(chance.randrange(1, 20)):
        changed[chance.randrange(len(changed) if kind == 6 else min(len(changed), 40))] = chance.randrange(256)
    return bytes(changed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("listener", LISTENERS)
async def test_garbage_of_every_kind_is_dropped_and_counted(broker: BrokerProcess, listener: str) -> None:
    chance = random.Random(50)
    peer = where(broker, listener)
    async with Bystander(broker).working():
        memory = Memory(broker)
        genuine = [first_flight(listener, peer)[1] for _ in range(200)]
        dropped = 0.0
        with stranger(peer) as own:
            while dropped <= 100:  # the kernel keeps no more than some of them for a broker that is busy
                for number in range(4_000):
                    shove(own, forged(chance, genuine[number % len(genuine)]))
                    await asyncio.sleep(0)
                dropped = (await metrics(broker))[f'penstock_quic_datagrams_dropped_total{{listener="{listener}"}}']
        assert memory.peak_growth_bytes < 64 * MIB
        (await connect(broker, listener)).close()
    assert is_sound(broker)


@pytest.mark.timeout(120)
async def test_what_others_repeat_and_change_of_a_connections_datagrams_does_it_no_harm(broker: BrokerProcess) -> None:
    """Somebody on the way who sees every datagram and sends copies, early, late and changed, from an address of its own."""
    chance = random.Random(51)
    writes = PipelinedWrites(TOPIC)
    with stranger(where(broker, "fujin")) as own:

        def copied(datagrams: Datagrams) -> None:
            for datagram, _ in datagrams[:4]:
                shove(own, datagram if chance.random() < 0.5 else forged(chance, datagram))

        async with Bystander(broker).working(), beside(writes.one_connection(broker, 2, tap=copied)):
            await until(lambda: writes.acknowledged > 5_000, "the connection does not go on")
    ((_, values),) = values_of(broker, [TOPIC])
    writes.check(values)
    assert is_sound(broker)


# -- the wrong protocol --------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
@pytest.mark.parametrize("listener", LISTENERS)
async def test_hellos_of_other_protocols_in_datagrams_are_hardly_worth_an_answer(
    broker: BrokerProcess, listener: str
) -> None:
    async with Bystander(broker).working():
        with stranger(where(broker, listener)) as own:
            for hello in HELLOS.values():
                shove(own, hello)
                shove(own, hello.ljust(1_250, b"\0"))
            (await connect(broker, listener)).close()  # what came before was handled by then
            try:
                while answer := own.recv(65_535):  # that the version is unknown, or the connection is
                    assert len(answer) < ANSWER_BYTES_MAX
            except BlockingIOError:
                pass
    with socket.socket() as tcp, pytest.raises(ConnectionRefusedError):
        tcp.connect(where(broker, listener))
    assert is_sound(broker)


@pytest.mark.timeout(60)
async def test_a_quic_hello_on_the_tcp_port_ends_that_connection_only(broker: BrokerProcess) -> None:
    async with Bystander(broker).working():
        _, datagram = first_flight("fujin", where(broker, "flymq"))
        reader, writer = await asyncio.open_connection(*where(broker, "flymq"))
        writer.write(datagram)
        async with asyncio.timeout(20):
            while await reader.read(4096):
                pass
        writer.close()
    assert is_sound(broker)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("alpn", [None, "felix/1", "h3"])
async def test_fujin_takes_its_own_application_protocol_only(broker: BrokerProcess, alpn: str | None) -> None:
    with pytest.raises(Unreachable):
        await connect_quic(*where(broker, "fujin"), alpn=alpn, ca_file=broker.certificate, timeout_s=20)
    assert is_sound(broker)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("alpn", ["fujin", "h3"])
async def test_felix_takes_no_other_application_protocol(broker: BrokerProcess, alpn: str) -> None:
    with pytest.raises(Unreachable):
        await connect_quic(*where(broker, "felix"), alpn=alpn, ca_file=broker.certificate, timeout_s=20)
    assert is_sound(broker)


@pytest.mark.timeout(60)
async def test_each_protocols_words_on_the_others_port_are_refused(broker: BrokerProcess) -> None:
    async with Bystander(broker).working():
        for hello in (*HELLOS.values(), requests.CONNECT_WRITER + requests.write(1, b"orders", b"one")):
            connection = await connect_quic(*where(broker, "felix"), ca_file=broker.certificate)
            stream = connection.open_stream()
            stream.send(hello.ljust(12, b"\0"))
            await asyncio.wait_for(connection.wait_closed(), 20)
            assert connection.loss_code == 1
        connection = await connect(broker, "fujin")
        for hello in (*HELLOS.values(), b"FLX1\0\1\0\0\0\0\0\x02{}"):
            stream = connection.open_stream()
            stream.send(hello, end=True)
            async with asyncio.timeout(20):
                try:
                    while await stream.read():
                        pass
                except ConnectionLost:
                    pass
        assert connection.loss is None
        connection.close()
    assert is_sound(broker)

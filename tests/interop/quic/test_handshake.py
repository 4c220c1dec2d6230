"""How a connection begins, with clients that begin it in their own ways."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import Context, Group

from penstock.net.limits import QuicLimits
from tests.interop.quic.aioquic_peer import Connection, aioquic_connection, aioquic_peer, foreign_ticket
from tests.interop.quic.conversation import both_ways, echo
from tests.interop.quic.go_peer import go_peer
from tests.interop.quic.relay import UdpRelay, lose_first, packets_of, relay_to
from tests.net.line_session import until
from tests.net.quic_lines import ALPN, QuicService, serving_quic
from tests.net.test_quic_limits import first_flight

pytestmark = pytest.mark.timeout(120)

UNKNOWN_VERSION = 0x1A2A3A4A
VERSION_1, VERSION_2 = int(QuicProtocolVersion.VERSION_1), int(QuicProtocolVersion.VERSION_2)
HANDSHAKE_FAILURE = 0x100 + 40
"""The TLS alert as a QUIC error code (RFC 9001, section 4.8)."""
MLKEM_SHARE_BYTES = 1_216
"""A key share for X25519MLKEM768, to which a ClientHello adds some 200 bytes."""
INITIAL_RTT_S = 0.02
"""aioquic waits three times this for an answer to its first flight, and twice as long each time."""


@asynccontextmanager
async def behind_relay(
    directory: Path, limits: QuicLimits | None = None
) -> AsyncIterator[tuple[QuicService, UdpRelay]]:
    async with serving_quic(directory, limits) as service, relay_to(service.where) as relay:
        yield service, relay


# -- version negotiation ----------------------------------------------------------------------------------------------------------


async def test_aioquic_that_offers_an_unknown_version_first_is_led_to_version_1(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        supported = [UNKNOWN_VERSION, VERSION_1]
        async with aioquic_peer(service.listener.address, alpn=ALPN, supported_versions=supported) as peer:
            assert (peer.quic._version, peer.quic._version_negotiated_incompatible) == (VERSION_1, True)
            await echo(peer)


async def test_aioquic_that_knows_version_2_stays_with_version_1(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        supported = [VERSION_1, VERSION_2]
        async with aioquic_peer(service.listener.address, alpn=ALPN, supported_versions=supported) as peer:
            assert (peer.quic._version, peer.quic._version_negotiated_incompatible) == (VERSION_1, False)
            await echo(peer)


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_quic_go_that_offers_version_2_first_is_led_to_version_1(
    tmp_path: Path, quic_go: Path, cid_bytes: int
) -> None:
    async with serving_quic(tmp_path) as service:
        options: dict[str, Any] = {"alpn": ALPN, "versions": "2,1", "connection_id_bytes": cid_bytes}
        async with go_peer(quic_go, service.listener.address, **options) as peer:
            assert [event["offered"] for event in peer.seen("version_negotiation")] == [[VERSION_1]]
            assert (await peer.event("connected"))["version"] == VERSION_1
            await echo(peer)


# -- Retry ------------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def under_load(directory: Path) -> AsyncIterator[QuicService]:
    """A service with a handshake under way, above which it asks everybody else to validate their address first."""
    async with serving_quic(directory, QuicLimits(retry_above=1)) as service:
        with socket.socket(type=socket.SOCK_DGRAM) as stranger:
            _, datagrams = first_flight(service.where)
            stranger.sendto(datagrams[0], service.where)
            await until(lambda: service.stats.handshakes_open == 1)
            yield service


@pytest.mark.parametrize("cid_bytes", [0, 8, 20])
async def test_aioquic_answers_a_retry(tmp_path: Path, cid_bytes: int) -> None:
    async with under_load(tmp_path) as service:
        async with aioquic_peer(service.listener.address, alpn=ALPN, connection_id_length=cid_bytes) as peer:
            assert peer.quic._retry_count == 1
            assert service.stats.retries_sent == 1
            await echo(peer)


@pytest.mark.parametrize("cid_bytes", [0, 8, 20])
async def test_quic_go_answers_a_retry(tmp_path: Path, quic_go: Path, cid_bytes: int) -> None:
    async with under_load(tmp_path) as service:
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_bytes": cid_bytes}
        async with go_peer(quic_go, service.listener.address, **options) as peer:
            assert len(peer.seen("retry")) == 1
            assert service.stats.retries_sent >= 1  # each of its Initial packets is answered
            await echo(peer)


# -- connection ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cid_bytes", [0, 4, 8, 20])
async def test_aioquic_may_have_connection_ids_of_any_length(tmp_path: Path, cid_bytes: int) -> None:
    async with behind_relay(tmp_path) as (_, relay):
        async with aioquic_peer(relay.address, alpn=ALPN, connection_id_length=cid_bytes) as peer:
            await echo(peer)
            await both_ways(peer, 100_000)
        first = relay.to_server.datagrams[0]
        assert first[6 + first[5]] == cid_bytes


@pytest.mark.parametrize("cid_bytes", [0, 4, 8, 20])
async def test_quic_go_may_have_connection_ids_of_any_length(tmp_path: Path, quic_go: Path, cid_bytes: int) -> None:
    async with serving_quic(tmp_path) as service:
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_bytes": cid_bytes}
        async with go_peer(quic_go, service.listener.address, **options) as peer:
            assert peer.seen("started")[0]["source_cid_bytes"] == cid_bytes
            await echo(peer)
            await both_ways(peer, 2_000_000)


# -- key exchange -----------------------------------------------------------------------------------------------------------------


async def test_aioquic_that_would_need_a_hello_retry_request_is_refused_with_an_alert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It supports a group that is served, and sends a key share for another one only."""
    created = Context.__init__

    def with_one_share(context: Context, *given: object, **named: object) -> None:
        created(context, *given, **named)  # type: ignore[arg-type]
        context._supported_groups = [Group.X448]

    monkeypatch.setattr(Context, "__init__", with_one_share)
    async with serving_quic(tmp_path) as service:
        async with aioquic_peer(
            service.listener.address, connection=aioquic_connection(alpn=ALPN), wait_connected=False
        ) as peer:
            peer.transmit()
            assert (await peer.ended()).error_code == HANDSHAKE_FAILURE
        assert service.stats.handshake_failures == 1
        assert service.stats.connections_total == 0


@pytest.mark.parametrize("curve", ["x25519", "mlkem768", "p256", "p384", "p521"])
async def test_quic_go_may_choose_the_key_exchange(tmp_path: Path, quic_go: Path, curve: str) -> None:
    async with serving_quic(tmp_path) as service:
        async with go_peer(quic_go, service.listener.address, alpn=ALPN, curves=curve) as peer:
            group = (await peer.event("connected"))["group"]
            assert group.lower().removeprefix("curve").endswith(curve)
            await echo(peer)


# -- 0-RTT ------------------------------------------------------------------------------------------------------------------------


def attempting_0_rtt(cid_bytes: int) -> Connection:
    """Return a connection with a ticket of another server, as after a certificate moved to this one."""
    return aioquic_connection(
        alpn=ALPN, session_ticket=foreign_ticket(), connection_id_length=cid_bytes, initial_rtt=INITIAL_RTT_S
    )


async def test_early_data_of_aioquic_is_refused_and_sent_again(tmp_path: Path) -> None:
    async with behind_relay(tmp_path) as (_, relay):
        connection = attempting_0_rtt(8)
        async with aioquic_peer(relay.address, connection=connection, wait_connected=False) as peer:
            await echo(peer, b"early")
            assert not connection.tls.early_data_accepted
            assert not connection.tls.session_resumed
        assert any("0-rtt" in packets_of(datagram) for datagram in relay.to_server.datagrams)


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_early_data_before_a_retry_does_no_harm(tmp_path: Path, cid_bytes: int) -> None:
    """aioquic does not send it again after a Retry, which is a fault of its own; the connection works all the same."""
    async with under_load(tmp_path) as service, relay_to(service.where) as relay:
        connection = attempting_0_rtt(cid_bytes)
        async with aioquic_peer(relay.address, connection=connection, wait_connected=False) as peer:
            _, writer = await peer.open_stream()
            writer.write(b"echo early\n")
            async with asyncio.timeout(20):
                await peer.wait_connected()
            await echo(peer, b"later")
            assert connection._retry_count == 1
        assert packets_of(relay.to_server.datagrams[0]) == ["initial", "0-rtt"]


async def test_quic_go_is_given_no_ticket_for_0_rtt(tmp_path: Path, quic_go: Path) -> None:
    async with serving_quic(tmp_path) as service:
        async with go_peer(quic_go, service.listener.address, alpn=ALPN, early="true") as peer:
            connected = await peer.event("connected")
            assert (connected["used_0rtt"], connected["resumed"]) == (False, False)
            await echo(peer)


# -- flights of several datagrams --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_a_client_hello_of_quic_go_spans_several_initial_packets(
    tmp_path: Path, quic_go: Path, cid_bytes: int
) -> None:
    async with behind_relay(tmp_path) as (_, relay):
        async with go_peer(quic_go, relay.address, alpn=ALPN, connection_id_bytes=cid_bytes) as peer:
            assert (await peer.event("connected"))["group"] == "X25519MLKEM768"
            await echo(peer)
        answered = next(at for at, (_, datagram) in enumerate(relay.log) if "handshake" in packets_of(datagram))
        hello = [datagram for leg, datagram in relay.log[:answered] if leg is relay.to_server]
        assert [packets_of(datagram) for datagram in hello] == [["initial"]] * len(hello)
        assert len(hello) >= 2
        assert max(map(len, hello)) <= MLKEM_SHARE_BYTES + 100, "the whole ClientHello might fit into one of these"


@pytest.mark.parametrize("cid_bytes", [0, 8])
@pytest.mark.parametrize("lost", [0, 1])
async def test_a_client_hello_of_aioquic_may_lose_one_of_its_initial_packets(
    tmp_path: Path, lost: int, cid_bytes: int
) -> None:
    """A transport parameter of 1200 bytes makes it span several."""
    async with behind_relay(tmp_path) as (_, relay):
        relay.to_server.drops = lambda number: number == lost
        options: dict[str, Any] = {"connection_id_length": cid_bytes, "initial_rtt": INITIAL_RTT_S}
        async with aioquic_peer(relay.address, alpn=ALPN, quantum_readiness_test=True, **options) as peer:
            await echo(peer)
        assert relay.to_server.dropped == 1
        assert [packets_of(datagram) for datagram in relay.to_server.datagrams[:2]] == [["initial"], ["initial"]]


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_packets_that_aioquic_coalesces_are_read(tmp_path: Path, cid_bytes: int) -> None:
    async with behind_relay(tmp_path) as (_, relay):
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_length": cid_bytes}
        async with aioquic_peer(relay.address, wait_connected=False, **options) as peer:
            await echo(peer)  # its first bytes leave with the end of the handshake
        assert any(packets_of(datagram) == ["handshake", "1-rtt"] for datagram in relay.to_server.datagrams)


@pytest.mark.parametrize("cid_bytes", [0, 8])
@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_aioquic_gets_through_when_the_first_flights_are_lost(tmp_path: Path, lost: int, cid_bytes: int) -> None:
    async with behind_relay(tmp_path) as (_, relay):
        relay.to_server.drops = relay.to_client.drops = lose_first(lost)
        options: dict[str, Any] = {"connection_id_length": cid_bytes, "initial_rtt": INITIAL_RTT_S}
        async with aioquic_peer(relay.address, alpn=ALPN, **options) as peer:
            await echo(peer)
        assert (relay.to_server.dropped, relay.to_client.dropped) == (lost, lost)


@pytest.mark.parametrize("cid_bytes", [0, 8])
@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_quic_go_gets_through_when_the_first_flights_are_lost(
    tmp_path: Path, quic_go: Path, lost: int, cid_bytes: int
) -> None:
    async with behind_relay(tmp_path) as (_, relay):
        relay.to_server.drops = relay.to_client.drops = lose_first(lost)
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_bytes": cid_bytes}
        async with go_peer(quic_go, relay.address, **options) as peer:
            await echo(peer)
        assert (relay.to_server.dropped, relay.to_client.dropped) == (lost, lost)


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_transport_parameters_that_nobody_knows_are_ignored(tmp_path: Path, cid_bytes: int) -> None:
    """Reserved ones (31 * N + 27), that of ACK_FREQUENCY and that of a greased QUIC bit, which are not offered."""
    async with serving_quic(tmp_path) as service:
        unknown = {31 * 7 + 27: b"grease", 31 * 1_000_003 + 27: b"", 0xFF04DE1B: b"\x40\xc8", 0x2AB2: b""}
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_length": cid_bytes, "raw_parameters": unknown}
        async with aioquic_peer(service.listener.address, **options) as peer:
            await echo(peer)

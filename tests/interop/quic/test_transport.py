"""An established connection: windows, acknowledgements, datagram sizes, loss, keys, addresses, and how it ends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import felix
import pytest

from penstock.clock import SystemClock
from penstock.net.limits import QuicLimits
from penstock.net.quic import QuicListener
from penstock.quic import core
from penstock.testing import RunningBroker
from tests.interop.quic.aioquic_peer import aioquic_connection, aioquic_peer
from tests.interop.quic.conversation import ask, both_ways, download, echo
from tests.interop.quic.go_peer import go_peer
from tests.interop.quic.relay import ECT_0, UdpRelay, lose, relay_to
from tests.net.line_session import until
from tests.net.quic_lines import ALPN, LineStream, QuicService, serving_quic

pytestmark = pytest.mark.timeout(120)

KIB, MIB = 1 << 10, 1 << 20
APPLICATION_CODE, REASON = 77, "enough for today"
EVENT_S_MAX = 20.0


@asynccontextmanager
async def behind_relay(
    directory: Path, limits: QuicLimits | None = None, *, late: float = 0.0
) -> AsyncIterator[tuple[QuicService, UdpRelay]]:
    async with serving_quic(directory, limits) as service, relay_to(service.where, late=late) as relay:
        yield service, relay


@pytest.fixture(params=[0, 8, 20], ids="ids of {} bytes".format)
def cid_bytes(request: pytest.FixtureRequest) -> int:
    length: int = request.param
    return length


# -- flow control -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window_bytes", "size_bytes"), [(1 * KIB, 100 * KIB), (16 * MIB, 4 * MIB)])
async def test_aioquic_may_grant_small_and_large_windows(
    tmp_path: Path, window_bytes: int, size_bytes: int, cid_bytes: int
) -> None:
    async with serving_quic(tmp_path) as service:
        windows: dict[str, Any] = {"max_data": window_bytes, "max_stream_data": window_bytes}
        async with aioquic_peer(service.listener.address, alpn=ALPN, connection_id_length=cid_bytes, **windows) as peer:
            await download(peer, size_bytes)


@pytest.mark.parametrize(("window_bytes", "size_bytes"), [(1 * KIB, 300 * KIB), (16 * MIB, 16 * MIB)])
@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_quic_go_may_grant_small_and_large_windows(
    tmp_path: Path, quic_go: Path, window_bytes: int, size_bytes: int, cid_bytes: int
) -> None:
    async with serving_quic(tmp_path) as service:
        windows: dict[str, Any] = {"stream_window": window_bytes, "connection_window": window_bytes}
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_bytes": cid_bytes, **windows}
        async with go_peer(quic_go, service.listener.address, **options) as peer:
            await download(peer, size_bytes)


@pytest.mark.parametrize("window_bytes", [1 * KIB, 16 * MIB])
@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_quic_go_keeps_to_small_and_large_windows_of_the_broker(
    tmp_path: Path, quic_go: Path, window_bytes: int, cid_bytes: int
) -> None:
    async with serving_quic(tmp_path) as service:
        listener = service.listener
        listener._settings = dataclasses.replace(
            listener._settings, connection_window_bytes=window_bytes, stream_window_bytes=window_bytes
        )
        async with go_peer(quic_go, listener.address, alpn=ALPN, connection_id_bytes=cid_bytes) as peer:
            await both_ways(peer, 300 * KIB)


# -- acknowledgements -------------------------------------------------------------------------------------------------------------


async def test_aioquic_may_delay_its_acknowledgements(tmp_path: Path, cid_bytes: int) -> None:
    """It announces the longest delay and the largest exponent that there are, and holds each acknowledgement back."""
    size_bytes = 200 * KIB
    async with behind_relay(tmp_path) as (_, relay):
        connection = aioquic_connection(
            alpn=ALPN,
            connection_id_length=cid_bytes,
            parameters={"max_ack_delay": (1 << 14) - 1, "ack_delay_exponent": 20},
        )
        connection._local_ack_delay_exponent = 20
        async with aioquic_peer(relay.address, connection=connection) as peer:
            await echo(peer)
            connection._ack_delay = 0.1
            before = relay.to_client.arrived
            await download(peer, size_bytes)
            sent = relay.to_client.arrived - before
        needed = -(-size_bytes // QuicLimits().datagram_bytes)
        assert sent < 1.5 * needed, "what was not acknowledged yet is taken for lost"


# -- ECN --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_datagrams_that_quic_go_marks_for_ecn_are_served(tmp_path: Path, quic_go: Path, cid_bytes: int) -> None:
    """The broker reports no ECN counts, so quic-go concludes that the path does not carry the marks, and continues without."""
    async with behind_relay(tmp_path) as (_, relay):
        async with go_peer(quic_go, relay.address, alpn=ALPN, connection_id_bytes=cid_bytes) as peer:
            await both_ways(peer, 500 * KIB)
            states = [event["state"] for event in peer.seen("ecn")]
            assert (states[0], states[-1]) == ("testing", "failed")
            await echo(peer)
        assert ECT_0 in relay.to_server.ecn


# -- quinn, in the official Felix client ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def felix_broker() -> Iterator[RunningBroker]:
    with RunningBroker(clock=SystemClock(), topics=[{"name": "t1/demo"}]) as broker:
        yield broker


async def through_quinn(address: str, broker: RunningBroker, values: list[bytes]) -> None:
    """Publish each value and read it back."""
    client = await felix.AsyncClient.connect(address, tenant_id="t1", token="any", ca_file=str(broker.certificate))
    subscription = await client.subscribe("t1", "default", "demo")
    for value in values:
        await client.publish("t1", "default", "demo", value)
    for value in values:
        event = await subscription.next_event(timeout=EVENT_S_MAX)
        assert event is not None
        assert event.payload == value
    await subscription.close()


async def test_datagrams_that_quinn_marks_for_ecn_are_served(felix_broker: RunningBroker) -> None:
    async with relay_to(felix_broker.addresses["felix"]) as relay:
        await through_quinn(relay.address, felix_broker, [b"%d" % number * 100 for number in range(50)])
        assert ECT_0 in relay.to_server.ecn


async def test_quinn_discovers_larger_datagrams(felix_broker: RunningBroker) -> None:
    async with relay_to(felix_broker.addresses["felix"]) as relay:
        await through_quinn(relay.address, felix_broker, [bytes(100_000)] * 10)
        assert relay.to_server.largest_bytes > 1_400


@pytest.mark.parametrize("seed", [1, 2])
async def test_quinn_gets_everything_in_spite_of_loss_and_reordering(felix_broker: RunningBroker, seed: int) -> None:
    async with relay_to(felix_broker.addresses["felix"], late=0.2, seed=seed) as relay:
        relay.to_server.drops, relay.to_client.drops = lose(0.1, seed), lose(0.1, seed + 10)
        await through_quinn(relay.address, felix_broker, [b"%d " % number + bytes(2_000) for number in range(40)])
        assert relay.to_server.dropped
        assert relay.to_client.dropped


# -- datagram sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datagram_bytes", [1_200, 1_452, 8_900])
async def test_aioquic_may_send_datagrams_of_any_size(tmp_path: Path, datagram_bytes: int, cid_bytes: int) -> None:
    async with behind_relay(tmp_path) as (_, relay):
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_length": cid_bytes, "max_datagram_size": datagram_bytes}
        async with aioquic_peer(relay.address, **options) as peer:
            await both_ways(peer, 200 * KIB)
        assert relay.to_server.largest_bytes == datagram_bytes


@pytest.mark.parametrize(("accepted_bytes", "sent_bytes"), [(1_200, 1_200), (1_300, 1_300), (65_527, 1_452)])
async def test_the_largest_datagram_that_aioquic_accepts_is_kept_to(
    tmp_path: Path, accepted_bytes: int, sent_bytes: int, cid_bytes: int
) -> None:
    async with behind_relay(tmp_path, QuicLimits(datagram_bytes=1_452)) as (_, relay):
        parameters = {"max_udp_payload_size": accepted_bytes}
        async with aioquic_peer(
            relay.address, alpn=ALPN, connection_id_length=cid_bytes, parameters=parameters
        ) as peer:
            relay.to_client.largest_bytes = 0  # those of the handshake came before the limit was known
            await download(peer, 200 * KIB)
        assert sent_bytes - 60 < relay.to_client.largest_bytes <= sent_bytes


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_quic_go_discovers_larger_datagrams(tmp_path: Path, quic_go: Path, cid_bytes: int) -> None:
    async with behind_relay(tmp_path) as (_, relay):
        async with go_peer(quic_go, relay.address, alpn=ALPN, connection_id_bytes=cid_bytes) as peer:
            await both_ways(peer, 2 * MIB)
            assert (await peer.event("mtu"))["bytes"] > 1_280
        assert relay.to_server.largest_bytes > 1_280


async def test_quic_go_without_path_mtu_discovery_stays_at_1200_bytes(tmp_path: Path, quic_go: Path) -> None:
    async with behind_relay(tmp_path) as (_, relay):
        options: dict[str, Any] = {"alpn": ALPN, "packet_bytes": 1_200, "discover_mtu": "false"}
        async with go_peer(quic_go, relay.address, **options) as peer:
            await both_ways(peer, 500 * KIB)
        assert relay.to_server.largest_bytes == 1_200


# -- loss and reordering ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_aioquic_gets_everything_in_spite_of_loss_and_reordering(
    tmp_path: Path, seed: int, cid_bytes: int
) -> None:
    async with behind_relay(tmp_path, late=0.3) as (_, relay):
        relay.to_server.drops, relay.to_client.drops = lose(0.1, seed), lose(0.1, seed + 10)
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_length": cid_bytes, "initial_rtt": 0.02}
        async with aioquic_peer(relay.address, **options) as peer:
            await both_ways(peer, 150 * KIB)
        assert relay.to_server.dropped > 5
        assert relay.to_client.dropped > 5


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_quic_go_gets_everything_in_spite_of_loss_and_reordering(
    tmp_path: Path, quic_go: Path, seed: int, cid_bytes: int
) -> None:
    async with behind_relay(tmp_path, late=0.3) as (_, relay):
        relay.to_server.drops, relay.to_client.drops = lose(0.1, seed), lose(0.1, seed + 10)
        async with go_peer(quic_go, relay.address, alpn=ALPN, connection_id_bytes=cid_bytes) as peer:
            await both_ways(peer, 500 * KIB)
        assert relay.to_server.dropped > 5
        assert relay.to_client.dropped > 5


# -- key update -------------------------------------------------------------------------------------------------------------------


async def test_aioquic_may_update_keys_over_and_over(tmp_path: Path, cid_bytes: int) -> None:
    async with serving_quic(tmp_path) as service:
        async with aioquic_peer(service.listener.address, alpn=ALPN, connection_id_length=cid_bytes) as peer:
            reader, writer = await peer.open_stream()
            for number in range(6):
                assert await ask(reader, writer, b"echo %d" % number) == b"%d" % number
                peer.request_key_update()
                await both_ways(peer, 20 * KIB)


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_quic_go_updates_keys_by_itself(tmp_path: Path, quic_go: Path, cid_bytes: int) -> None:
    async with serving_quic(tmp_path) as service:
        options: dict[str, Any] = {
            "alpn": ALPN,
            "connection_id_bytes": cid_bytes,
            "packet_bytes": 1_200,
            "discover_mtu": "false",
        }
        async with go_peer(quic_go, service.listener.address, **options) as peer:
            await both_ways(peer, 1 * MIB)
            assert {"event": "key_updated", "phase": 1, "remote": False} in peer.events
            await both_ways(peer, 1 * MIB)


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_aioquic_and_quic_go_follow_key_updates_of_the_broker(
    tmp_path: Path, quic_go: Path, monkeypatch: pytest.MonkeyPatch, cid_bytes: int
) -> None:
    monkeypatch.setattr(core, "DATAGRAMS_PER_KEY_MAX", 20)
    async with serving_quic(tmp_path) as service:
        async with go_peer(quic_go, service.listener.address, alpn=ALPN, connection_id_bytes=cid_bytes) as peer:
            await download(peer, 1 * MIB)
            assert any(event["remote"] for event in peer.seen("key_updated"))
            await echo(peer)
        async with aioquic_peer(service.listener.address, alpn=ALPN, connection_id_length=cid_bytes) as other:
            await download(other, 500 * KIB)
            await echo(other)


# -- how a connection ends --------------------------------------------------------------------------------------------------------


async def test_an_idle_connection_of_aioquic_is_forgotten_by_both(tmp_path: Path, cid_bytes: int) -> None:
    async with behind_relay(tmp_path) as (service, relay):
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_length": cid_bytes, "idle_timeout": 0.6}
        async with aioquic_peer(relay.address, **options) as peer:
            await echo(peer)
            assert "idle" in (await peer.ended()).reason_phrase.lower()
            await until(lambda: service.stats.connections_open == 0)
            assert service.sessions[0].is_closed


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_an_idle_connection_of_quic_go_is_forgotten_by_both(
    tmp_path: Path, quic_go: Path, cid_bytes: int
) -> None:
    async with serving_quic(tmp_path) as service:
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_bytes": cid_bytes, "idle_timeout": "600ms"}
        async with go_peer(quic_go, service.listener.address, **options) as peer:
            await echo(peer)
            assert (await peer.event("closed"))["kind"] == "idle_timeout"
            await until(lambda: service.stats.connections_open == 0)
            assert service.sessions[0].is_closed


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_keep_alives_of_quic_go_keep_a_connection(tmp_path: Path, quic_go: Path, cid_bytes: int) -> None:
    async with serving_quic(tmp_path) as service:
        times: dict[str, Any] = {"idle_timeout": "600ms", "keep_alive": "100ms"}
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_bytes": cid_bytes, **times}
        async with go_peer(quic_go, service.listener.address, **options) as peer:
            loop = asyncio.get_running_loop()
            longer_s = loop.time() + 1.0
            await until(lambda: loop.time() > longer_s)
            await echo(peer)


async def test_a_close_by_aioquic_and_one_by_the_broker_carry_code_and_reason(tmp_path: Path, cid_bytes: int) -> None:
    async with serving_quic(tmp_path) as service:
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_length": cid_bytes}
        async with aioquic_peer(service.listener.address, **options) as peer:
            await echo(peer)
            peer.close(APPLICATION_CODE, REASON)
            await until(lambda: service.sessions[0].is_closed)
            assert_lost(service, APPLICATION_CODE, REASON)
        async with aioquic_peer(service.listener.address, **options) as peer:
            await echo(peer)
            service.sessions[1].connection.close(APPLICATION_CODE, REASON)
            ended = await peer.ended()
            assert (ended.error_code, ended.reason_phrase) == (APPLICATION_CODE, REASON)


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_a_close_by_quic_go_and_one_by_the_broker_carry_code_and_reason(
    tmp_path: Path, quic_go: Path, cid_bytes: int
) -> None:
    async with serving_quic(tmp_path) as service:
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_bytes": cid_bytes}
        async with go_peer(quic_go, service.listener.address, **options) as peer:
            await echo(peer)
            peer.command(f"close {APPLICATION_CODE} {REASON}")
            await until(lambda: service.sessions[0].is_closed)
            assert_lost(service, APPLICATION_CODE, REASON)
        async with go_peer(quic_go, service.listener.address, **options) as peer:
            await echo(peer)
            service.sessions[1].connection.close(APPLICATION_CODE, REASON)
            closed = await peer.event("closed")
            assert (closed["kind"], closed["remote"]) == ("application", True)
            assert (closed["code"], closed["reason"]) == (APPLICATION_CODE, REASON)


def assert_lost(service: QuicService, code: int, reason: str) -> None:
    connection: Any = service.sessions[0].connection
    assert (connection.core.close_code, connection.core.close_reason) == (code, reason)


@asynccontextmanager
async def behind_forgetful(service: QuicService) -> AsyncIterator[tuple[UdpRelay, Callable[[], Awaitable[None]]]]:
    """A relay to a service, and what puts a listener in its place that knows none of its connections, as after a crash.

    The relay keeps the kernel from telling the client that nobody listens.
    """
    first = service.listener
    again = QuicListener("again", first.address, service._open, first._tls)

    async def forget() -> None:
        service.endpoint.close()
        await again.start()

    async with relay_to(service.where) as relay:
        yield relay, forget
    await again.stop()


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_quic_go_that_is_forgotten_finds_out_by_its_idle_time_out(
    tmp_path: Path, quic_go: Path, cid_bytes: int
) -> None:
    """It is sent stateless resets, but uses one of the further ids that it was issued, whose token did not survive."""
    async with serving_quic(tmp_path) as service, behind_forgetful(service) as (relay, forget):
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_bytes": cid_bytes, "idle_timeout": "1s"}
        async with go_peer(quic_go, relay.address, **options) as peer:
            reader, writer = await peer.open_stream()
            assert await ask(reader, writer, b"echo before") == b"before"
            await forget()
            before = relay.to_client.arrived
            writer.write(b"echo after, with enough bytes to be answered\n")
            assert (await peer.event("closed"))["kind"] == "idle_timeout"
            assert relay.to_client.arrived > before
        async with go_peer(quic_go, relay.address, **options) as peer:
            await echo(peer)


# -- address change ---------------------------------------------------------------------------------------------------------------


async def test_aioquic_may_change_its_port(tmp_path: Path, cid_bytes: int) -> None:
    async with serving_quic(tmp_path) as service:
        async with aioquic_peer(service.listener.address, alpn=ALPN, connection_id_length=cid_bytes) as peer:
            reader, writer = await peer.open_stream()
            for number in range(4):
                assert await ask(reader, writer, b"echo %d" % number) == b"%d" % number
                before = service.stats.rebindings
                await peer.rebind()
                await both_ways(peer, 50 * KIB)
                assert service.stats.rebindings == before + 1


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_a_nat_may_give_quic_go_another_port(tmp_path: Path, quic_go: Path, cid_bytes: int) -> None:
    async with behind_relay(tmp_path) as (service, relay):
        async with go_peer(quic_go, relay.address, alpn=ALPN, connection_id_bytes=cid_bytes) as peer:
            reader, writer = await peer.open_stream()
            for number in range(3):
                assert await ask(reader, writer, b"echo %d" % number) == b"%d" % number
                before = service.stats.rebindings
                relay.rebind()
                await both_ways(peer, 50 * KIB)
                assert service.stats.rebindings == before + 1


@pytest.mark.parametrize("cid_bytes", [0, 8])
async def test_a_client_that_only_listens_is_followed_by_a_nat(tmp_path: Path, quic_go: Path, cid_bytes: int) -> None:
    async with behind_relay(tmp_path) as (service, relay):
        options: dict[str, Any] = {"alpn": ALPN, "connection_id_bytes": cid_bytes, "keep_alive": "100ms"}
        async with go_peer(quic_go, relay.address, **options) as peer:
            await echo(peer)
            news = service.sessions[0].connection.open_stream(LineStream, one_way=True)
            news.send(b"0\n")
            reader = await peer.accept_stream()
            assert await reader.readline() == b"0\n"
            relay.rebind()
            for number in range(1, 4):
                news.send(b"%d\n" % number)
                assert await asyncio.wait_for(reader.readline(), EVENT_S_MAX) == b"%d\n" % number


async def test_quic_go_is_told_that_active_migration_is_not_offered(tmp_path: Path, quic_go: Path) -> None:
    async with serving_quic(tmp_path) as service:
        async with go_peer(quic_go, service.listener.address, alpn=ALPN, connection_id_bytes=8) as peer:
            peer.command("migrate")
            failed = await peer.event("migrated", "migration_failed")
            assert failed["event"] == "migration_failed"
            assert "disabled connection migration" in failed["reason"]
            await echo(peer)

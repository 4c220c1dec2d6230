"""An address with several hosts: a client takes the first of its order, and after a loss the next. The brokers are real, and one dies."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trustme

import penstock
from penstock.clients import quic
from penstock.clients.nodes import Nodes
from penstock.clients.options import ClientOptions
from penstock.clients.quic import connect_quic
from penstock.clients.retry import NO_RETRY, RetryPolicy
from penstock.clients.url import parse_url
from penstock.clock import SystemClock
from penstock.errors import AuthenticationFailed, ConnectionLost, Unreachable
from penstock.testing import BrokerProcess, RunningBroker
from penstock.testing.broker import TEST_API_KEY
from tests.net.quic_lines import serving_quic

IMPATIENT = ClientOptions(connect_timeout_s=2.0)
ONCE = ClientOptions(connect_timeout_s=2.0, retry=NO_RETRY)
TOPICS = [{"name": "orders"}]
DYING = f"""
[[topics]]
name = "orders"
[listeners.blipmq]
bind = "127.0.0.1:0"
api_keys = ["{TEST_API_KEY}"]
[listeners.rustlog]
bind = "127.0.0.1:0"
[listeners.fujin]
bind = "127.0.0.1:0"
[listeners.felix]
bind = "127.0.0.1:0"
"""
QUIC = ("fujin", "felix")
PROTOCOLS = ("flymq", "blipmq", "rustlog", "fujin", "felix")
USERS = {"blipmq": f"{TEST_API_KEY}@"}


def nodes_of(url: str, random: Random | None = None) -> Nodes:
    return Nodes(parse_url(url, port=1), random or Random(1))


def in_turn(nodes: Nodes) -> list[str]:
    return [node.netloc for node in nodes.in_turn()]


def test_nodes_are_tried_in_order_beginning_with_the_first() -> None:
    nodes = nodes_of("flymq://a,b,c?hosts=in-order")
    assert in_turn(nodes) == ["a:1", "b:1", "c:1"]
    assert in_turn(nodes) == ["a:1", "b:1", "c:1"], "and after all of them failed, again"


def test_the_one_that_was_lost_is_tried_last() -> None:
    nodes = nodes_of("flymq://a,b,c?hosts=in-order")
    connected = next(iter(nodes.in_turn()))
    assert in_turn(nodes) == ["a:1", "b:1", "c:1"], "a client that has one stays there"
    nodes.leave(connected)
    assert in_turn(nodes) == ["b:1", "c:1", "a:1"]


def test_connections_of_one_client_that_fail_together_leave_out_none() -> None:
    nodes = nodes_of("flymq://a,b,c?hosts=in-order")
    one, two = nodes.in_turn(), nodes.in_turn()
    assert [next(each).netloc for each in (one, two, one, two)] == ["a:1", "a:1", "b:1", "b:1"]
    assert in_turn(nodes) == ["b:1", "c:1", "a:1"]


def test_clients_with_equal_addresses_spread_over_the_nodes() -> None:
    random = Random(1)
    orders = Counter(tuple(in_turn(nodes_of("flymq://a,b,c", random))) for _ in range(600))
    assert len(orders) == 6, "also where they go after a loss"
    assert min(orders.values()) > 60


class Ports:
    """Addresses where no broker is, and that nobody else gets meanwhile."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def _bound(self, protocol: str) -> socket.socket:
        own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if protocol in QUIC else socket.SOCK_STREAM)
        self._sockets.append(own)
        own.bind(("127.0.0.1", 0))
        return own

    def silent(self, protocol: str) -> str:
        """Connections are accepted, or datagrams taken, and nothing is answered."""
        own = self._bound(protocol)
        if own.type == socket.SOCK_STREAM:
            own.listen()
        return f"127.0.0.1:{own.getsockname()[1]}"

    def closed(self, protocol: str) -> str:
        """The system refuses what comes: a TCP socket does not listen, and a UDP socket takes datagrams of another peer only."""
        own = self._bound(protocol)
        if own.type == socket.SOCK_DGRAM:
            own.connect(("127.0.0.1", 9))
        return f"127.0.0.1:{own.getsockname()[1]}"

    def close(self) -> None:
        for each in self._sockets:
            each.close()


@pytest.fixture
def ports() -> Iterator[Ports]:
    with closing(Ports()) as ports:
        yield ports


@pytest.fixture(scope="module")
def survivor() -> Iterator[RunningBroker]:
    with RunningBroker(clock=SystemClock(), topics=TOPICS, durability="none") as broker:
        yield broker


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("mortal") / "data", config=DYING) as broker:
        yield broker


@pytest.fixture
def dying(mortal: BrokerProcess) -> BrokerProcess:
    return mortal if mortal.running else mortal.start()


@pytest.fixture
def trusted(survivor: RunningBroker, dying: BrokerProcess, tmp_path: Path) -> Path:
    """A file with the certificates of both."""
    file = tmp_path / "both.pem"
    file.write_bytes(survivor.certificate.read_bytes() + dying.certificate.read_bytes())
    return file


def url_of(protocol: str, hosts: list[str], trusted: Path) -> str:
    query = f"&ca={trusted}" if protocol in QUIC else ""
    return f"{protocol}://{USERS.get(protocol, '')}{','.join(hosts)}?hosts=in-order{query}"


def values_in(broker: RunningBroker | BrokerProcess) -> list[bytes | None]:
    with closing(broker.connect()) as client:
        return [record.value for name in client.topics() for record in client.records(name)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_of_every_protocol_goes_on_with_the_next_node_when_its_own_is_killed(
    survivor: RunningBroker, dying: BrokerProcess, trusted: Path, protocol: str
) -> None:
    before, after = f"{protocol} before".encode(), f"{protocol} after".encode()
    hosts = [dying.addresses[protocol], survivor.addresses[protocol]]
    with penstock.connect(url_of(protocol, hosts, trusted)) as client:
        client.send("orders", before)
        assert before in values_in(dying)
        assert before not in values_in(survivor)
        dying.kill9()
        try:
            client.send("orders", after)
        except ConnectionLost:  # it was not noticed before: whether it was stored is unknown, and told
            client.send("orders", after)
        assert after in values_in(survivor)


async def test_a_reader_goes_on_with_the_next_node(
    survivor: RunningBroker, dying: BrokerProcess, trusted: Path
) -> None:
    hosts = [dying.addresses["fujin"], survivor.addresses["fujin"]]
    url = url_of("fujin", hosts, trusted)
    async with await penstock.connect_async(url) as client, client.reader("orders") as reader:
        await client.send("orders", b"for the reader")
        while (message := await reader.next()).value != b"for the reader":
            await reader.ack(message)
        dying.kill9()
        survivor.connect().send("orders", b"for the reader at the other node")
        while (message := await reader.next()).value != b"for the reader at the other node":
            await reader.ack(message)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_async_clients_connect_to_the_first_node_that_is_there(
    survivor: RunningBroker, ports: Ports, protocol: str
) -> None:
    value = f"{protocol} at the second".encode()
    hosts = [ports.closed(protocol), survivor.addresses[protocol]]
    async with await penstock.connect_async(url_of(protocol, hosts, survivor.certificate), options=ONCE) as client:
        await client.send("orders", value)
    assert value in values_in(survivor)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_node_that_does_not_answer_is_left_after_the_timeout(
    survivor: RunningBroker, ports: Ports, protocol: str
) -> None:
    hosts = [ports.silent(protocol), survivor.addresses[protocol]]
    with penstock.connect(url_of(protocol, hosts, survivor.certificate), options=IMPATIENT) as client:
        client.send("orders", f"{protocol} after silence".encode())
    assert f"{protocol} after silence".encode() in values_in(survivor)


@pytest.mark.parametrize("protocol", ["blipmq", "felix"])
def test_no_other_node_is_tried_once_the_time_of_the_retry_policy_is_over(
    survivor: RunningBroker, ports: Ports, protocol: str
) -> None:
    options = ClientOptions(connect_timeout_s=0.1, retry=RetryPolicy(elapsed_s_max=0.05))
    first = ports.silent(protocol)
    url = url_of(protocol, [first, survivor.addresses[protocol]], survivor.certificate)
    with pytest.raises(Unreachable, match=r"no answer within 0\.1 s$"):
        penstock.connect(url, options=options)


@pytest.mark.parametrize("protocol", ["flymq", "fujin"])
def test_the_error_has_the_reason_of_each_node(survivor: RunningBroker, ports: Ports, protocol: str) -> None:
    silent, closed = ports.silent(protocol), ports.closed(protocol)
    url = url_of(protocol, [silent, closed], survivor.certificate).replace("://", "://ann:pw@")
    with pytest.raises(Unreachable) as caught:
        penstock.connect(url, options=ONCE)
    assert str(caught.value).startswith(f"cannot connect to {protocol}://{silent},{closed}: {silent} (")
    assert "(no answer within 2 s)" in str(caught.value)
    assert "(nothing listens there; is the broker running?)" in str(caught.value)
    assert "pw" not in str(caught.value)


def test_a_refused_login_is_not_tried_at_the_next_node(survivor: RunningBroker) -> None:
    with RunningBroker(listeners={"flymq": {"auth": "required"}}) as strict:
        for hosts in (strict.address, f"{strict.address},{survivor.address}"):
            with pytest.raises(AuthenticationFailed, match=f"^flymq://{strict.address} refuses user 'ann'"):
                penstock.connect(f"flymq://ann:wrong@{hosts}?hosts=in-order", options=ONCE)


class Authority:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def tls(self, name: str) -> dict[str, Any]:
        issued = self._ca.issue_cert(name)
        cert, key = (self._directory / f"{name}.{each}" for each in ("pem", "key"))
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return {"tls": {"cert": str(cert), "key": str(key)}}


@pytest.mark.parametrize("protocol", ["flymqs", "fujin"])
def test_the_certificate_of_each_node_is_checked_against_its_own_name(tmp_path: Path, protocol: str) -> None:
    authority = Authority(tmp_path)
    name = protocol.removesuffix("s")
    wrong, right = ({name: authority.tls(each)} for each in ("elsewhere.example", "localhost"))
    with (
        RunningBroker(listeners=wrong, topics=TOPICS) as first,
        RunningBroker(listeners=right, topics=TOPICS) as second,
    ):
        port = second.addresses[name].rpartition(":")[2]
        query = f"?hosts=in-order&ca={authority.file}"
        with penstock.connect(f"{protocol}://{first.addresses[name]},localhost:{port}{query}") as client:
            client.send("orders", b"one")
        with pytest.raises(Unreachable, match=r"certificate|hostname"):
            penstock.connect(f"{protocol}://{first.addresses[name]},127.0.0.1:{port}{query}", options=ONCE)


async def test_quic_takes_the_next_address_of_a_name(
    tmp_path: Path, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens at the first, and nothing answers at the second."""
    async with serving_quic(tmp_path) as service:
        at = [ports.closed("fujin"), ports.silent("fujin"), f"127.0.0.1:{service.port}"]
        found = [(int(socket.AF_INET), ("127.0.0.1", int(each.rpartition(":")[2]))) for each in at]

        async def resolve(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
            return found

        monkeypatch.setattr(quic, "resolve", resolve)
        async with await connect_quic(
            "localhost", service.port, alpn="lines", ca_file=service.trusted, timeout_s=4.0
        ) as connection:
            assert connection.core.peer_address[1] == service.port


async def test_a_host_that_is_something_else_is_passed_over(survivor: RunningBroker) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as web:
        hosts = f"127.0.0.1:{web.sockets[0].getsockname()[1]},{survivor.address}"
        async with await penstock.connect_async(f"flymq://ann:secret@{hosts}?hosts=in-order", options=ONCE) as client:
            assert await client.topics() == ["orders"]

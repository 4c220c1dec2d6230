"""Who is let in over QUIC, and what happens to datagrams that are no handshake at all."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from structlog.testing import capture_logs

from penstock.clients.quic import connect_quic
from penstock.errors import ConfigError, InvalidRequest, Unreachable
from penstock.net.certificates import own_certificate
from penstock.net.limits import QuicLimits
from penstock.net.quic import FAILURE_LINES_PER_SWEEP_MAX
from penstock.net.quic_tls import client_check, quic_server_tls, subject_of_der
from penstock.quic.core import QuicCore
from penstock.quic.handshake import Handshake, make_packet_core
from penstock.quic.packets import VERSION, long_header
from penstock.quic.settings import QuicSettings
from penstock.quic.tls import TlsSettings
from penstock.testing.clock import ManualClock
from tests.net.line_session import until
from tests.net.quic_lines import ALPN, QuicService, read_line, serving_quic, talking


def connecting(
    service: QuicService, tls: TlsSettings | None = None, *, say: Callable[[bytes], bytes] | None = None
) -> QuicCore:
    """A client's connection that is about to send its first flight, in which what `say` makes of its ClientHello takes its place."""
    settings, tls, now_s = QuicSettings(), tls or TlsSettings(verify=False, server_name="localhost"), time.monotonic()
    core = QuicCore.connect(settings, tls, service.where, now_s)
    if say is not None:
        core._core = make_packet_core(settings, core.ids, is_client=True, address=service.where, now_s=now_s)
        bridge = Handshake(core._core, settings, tls, core.ids, is_client=True)._bridge
        bridge.start()
        hello = bridge.next_crypto_data()
        assert hello is not None
        core._core.send_crypto(0, 0, say(hello.data))
    return core


class Files:
    """An authority, a server's certificate, and clients', as PEM files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        self.ca = self._write("ca.pem", self.authority.cert_pem.bytes())
        self.cert, self.key = self.issue("server", self.authority, "127.0.0.1", "localhost")
        self.alice = self.issue(
            "alice",
            self.authority,
            "alice@example.org",
            common_name="alice",
            organization_name="Example",
            unit="Payments",
        )
        self.mallory = self.issue("mallory", trustme.CA(), "alice@example.org", common_name="alice")
        below = self.authority.create_child_ca()
        self.bob = self.issue("bob", below, "bob@example.org", common_name="bob", organization_name="Example")
        now = time.time()
        self.late = self.issue("late", self.authority, "late@example.org", common_name="late", ends_s=now - 60)

    def issue(
        self,
        name: str,
        authority: trustme.CA,
        *names: str,
        ends_s: float | None = None,
        common_name: str | None = None,
        organization_name: str | None = None,
        unit: str = "Testing",
    ) -> tuple[Path, Path]:
        issued = authority.issue_cert(
            *names,
            common_name=common_name,
            organization_name=organization_name,
            organization_unit_name=unit,
            not_after=None if ends_s is None else dt.datetime.fromtimestamp(ends_s, dt.UTC),
        )
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        return self._write(f"{name}.pem", chain), self._write(f"{name}.key", issued.private_key_pem.bytes())

    def _write(self, name: str, content: bytes) -> Path:
        (self.directory / name).write_bytes(content)
        return self.directory / name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("quic"))


def now_clock() -> ManualClock:
    return ManualClock(now_ms=time.time_ns() // 1_000_000)


def tls_for(directory: Path, *, alpn_required: bool = True) -> TlsSettings:
    own = own_certificate(directory, now_clock())
    return quic_server_tls(own.cert, own.key, alpn=(ALPN,), alpn_required=alpn_required)


# -- the application protocol -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offered", [None, "h3", "lines/1"])
async def test_without_the_protocol_that_is_required_the_handshake_fails(tmp_path: Path, offered: str | None) -> None:
    async with serving_quic(tmp_path) as service:
        with capture_logs() as logs, pytest.raises(Unreachable, match="this server supports lines"):
            await service.client(alpn=offered)
        await until(lambda: service.stats.connections_open == 0)
        assert service.stats.handshake_failures == 1
        assert service.stats.handshakes_open == 0
        assert service.stats.connections_total == 0
        assert [line["event"] for line in logs] == ["quic_handshake_failed"]


async def test_a_flood_of_handshakes_that_fail_does_not_fill_the_log(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, QuicLimits(sweep_s=1_000.0, retry_above=500)) as service:
        with capture_logs() as logs, socket.socket(type=socket.SOCK_DGRAM) as flooder:
            flooder.connect(service.where)
            for count in range(1, 101):
                core = connecting(service, TlsSettings(alpn=("h3",), verify=False))
                for datagram, _ in core.take_datagrams(time.monotonic(), 100):
                    flooder.send(datagram)
                await until(lambda count=count: service.stats.handshake_failures == count)  # type: ignore[misc]
        assert [line["event"] for line in logs] == ["quic_handshake_failed"] * FAILURE_LINES_PER_SWEEP_MAX
        service.listener.sweep()
        with capture_logs() as logs, pytest.raises(Unreachable):
            await service.client(alpn="h3")
        assert [line["event"] for line in logs] == ["quic_handshake_failed"]


async def test_a_protocol_that_is_not_required_is_agreed_on_where_it_is_offered(tmp_path: Path) -> None:
    async with serving_quic(tmp_path, tls=tls_for(tmp_path, alpn_required=False)) as service:
        offering, silent = await service.client(), await service.client(alpn=None)
        assert (offering.alpn, silent.alpn) == ("lines", None)
        assert [session.connection.alpn for session in service.sessions] == ["lines", None]
        with pytest.raises(Unreachable, match="this server supports lines"):
            await service.client(alpn="h3")


async def test_a_client_that_offers_several_is_given_the_one_that_is_spoken(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        core = connecting(service, TlsSettings(alpn=("x", ALPN), ca_file=service.trusted, server_name="localhost"))
        await _exchange(core, service, core.receive, done=lambda: core.is_established or core.is_closed)
        assert core.alpn == ALPN


Receive = Callable[[bytes, int, tuple[str, int], float], object]


async def _exchange(core: QuicCore, service: QuicService, receive: Receive, done: Callable[[], bool]) -> None:
    """Carry datagrams both ways."""
    with socket.socket(type=socket.SOCK_DGRAM) as own:
        own.setblocking(False)
        own.connect(service.where)

        def step() -> bool:
            for datagram, _ in core.take_datagrams(time.monotonic(), 10):
                own.send(datagram)
            try:
                while True:
                    datagram = own.recv(65_535)
                    receive(datagram, len(datagram), service.where, time.monotonic())
            except BlockingIOError:
                pass
            return done()

        await until(step)


# -- certificates -------------------------------------------------------------------------------------------------------------


async def test_a_server_is_known_by_its_certificate(tmp_path: Path, files: Files) -> None:
    tls = quic_server_tls(files.cert, files.key, alpn=(ALPN,))
    async with serving_quic(tmp_path, tls=tls, trusted=files.ca) as service:
        await service.client()
        await service.client(server_name="localhost")
        await service.client(verify=False, ca_file=None)
        for refused in ({"server_name": "example.org"}, {"ca_file": None}, {"ca_file": files.mallory[0]}):
            with pytest.raises(Unreachable):
                await service.client(**refused)


async def test_the_brokers_own_certificate_names_this_machine(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        for name in ("localhost", "127.0.0.1", "::1"):
            await service.client(server_name=name)


@pytest.mark.parametrize("marks", ["plain", "authority", "purpose"])
async def test_a_certificate_that_is_trusted_itself_may_be_marked_as_it_likes(tmp_path: Path, marks: str) -> None:
    cert, key = _self_signed(tmp_path, marks)
    tls = quic_server_tls(cert, key, alpn=(ALPN,))
    async with serving_quic(tmp_path, tls=tls, trusted=cert) as service:
        await service.client()
        await service.client(server_name="broker.example.org")
        await service.client(server_name="any.example.net")
        for name in ("other.example.org", "127.0.0.2", "a.b.example.net"):
            with pytest.raises(Unreachable, match=f"and not {name}"):
                await service.client(server_name=name)
        with pytest.raises(Unreachable):
            await service.client(ca_file=own_certificate(tmp_path, now_clock()).cert)


async def test_a_certificate_that_is_trusted_itself_must_be_valid(tmp_path: Path) -> None:
    cert, key = _self_signed(tmp_path, "plain", ends_days=-1)
    async with serving_quic(tmp_path, tls=quic_server_tls(cert, key, alpn=(ALPN,)), trusted=cert) as service:
        with pytest.raises(Unreachable, match="not valid now"):
            await service.client()


def _self_signed(directory: Path, marks: str, *, ends_days: int = 1) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = dt.datetime.now(dt.UTC)
    names = [
        x509.DNSName("broker.example.org"),
        x509.DNSName("*.example.net"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=3))
        .not_valid_after(now + dt.timedelta(days=ends_days))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    if marks == "authority":
        certificate = certificate.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    elif marks == "purpose":
        certificate = certificate.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
    cert_file, key_file = directory / "self.pem", directory / "self.key"
    cert_file.write_bytes(certificate.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert_file, key_file


async def test_with_client_certificates_a_client_is_its_subject(tmp_path: Path, files: Files) -> None:
    tls = quic_server_tls(files.cert, files.key, files.ca, alpn=(ALPN,))
    async with serving_quic(tmp_path, tls=tls, trusted=files.ca) as service:
        client = await service.client(cert=files.alice[0], key=files.alice[1])
        assert service.sessions[0].connection.principal_hint == "CN=alice,OU=Payments,O=Example"
        stream = client.open_stream()
        await stream.write(b"echo hello\n")
        assert await read_line(stream) == b"hello\n"
        assert service.sessions[0].streams[0].stream.principal_hint == "CN=alice,OU=Payments,O=Example"
        await service.client(cert=files.bob[0], key=files.bob[1])
        assert service.sessions[1].connection.principal_hint == "CN=bob,OU=Testing,O=Example"


async def test_without_a_certificate_that_is_accepted_nobody_gets_in(tmp_path: Path, files: Files) -> None:
    tls = quic_server_tls(files.cert, files.key, files.ca, alpn=(ALPN,))
    async with serving_quic(tmp_path, tls=tls, trusted=files.ca) as service:
        for cert, key in (files.mallory, files.late):
            client = await _knock(service, cert=cert, key=key)
            assert "not accepted" in client
        assert "show a certificate" in await _knock(service)
        # The certificate of somebody else, without its key.
        assert await _knock(service, cert=files.alice[0], key=files.mallory[1])
        await until(lambda: service.stats.handshake_failures == 4)
        assert service.sessions == []


async def _knock(service: QuicService, **options: object) -> str:
    """Why a client was turned away, which it may hear after it believed to be in: its part of the handshake ends first."""
    try:
        client = await connect_quic(*service.where, alpn=ALPN, ca_file=service.trusted, timeout_s=20, **options)  # type: ignore[arg-type]
    except Unreachable as error:
        return str(error)
    await asyncio.wait_for(client.wait_closed(), 20)
    return str(client.loss)


@pytest.mark.parametrize(
    ("purposes", "accepted"),
    [
        ((), True),
        ((ExtendedKeyUsageOID.CLIENT_AUTH,), True),
        ((ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH), True),
        ((ExtendedKeyUsageOID.SERVER_AUTH,), False),
        ((ExtendedKeyUsageOID.CODE_SIGNING,), False),
    ],
)
def test_a_certificate_is_accepted_for_its_purpose_only(
    tmp_path: Path, purposes: tuple[x509.ObjectIdentifier, ...], accepted: bool
) -> None:
    """None named is every purpose, and names that a server would need are not asked for: that is how OpenSSL judges."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    now = dt.datetime.now(dt.UTC)

    def certificate(subject: x509.Name) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )

    authority = certificate(name).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    path = tmp_path / "ca.pem"
    path.write_bytes(authority.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    client = certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client")]))
    if purposes:
        client = client.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    shown = client.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
    check = client_check(path)
    if accepted:
        check(shown, [])
    else:
        with pytest.raises(ValueError, match="not accepted"):
            check(shown, [])


def test_a_subject_is_written_the_same_way_as_over_tls(files: Files) -> None:
    certificate = x509.load_pem_x509_certificate(files.alice[0].read_bytes())
    assert subject_of_der(certificate.public_bytes(Encoding.DER)) == "CN=alice,OU=Payments,O=Example"


def test_files_that_cannot_be_used_are_named(tmp_path: Path, files: Files) -> None:
    with pytest.raises(ConfigError, match=r"tls\.cert: .* does not exist"):
        quic_server_tls(tmp_path / "none.pem", files.key)
    with pytest.raises(ConfigError, match=r"tls\.key: .* does not belong to the certificate"):
        quic_server_tls(files.cert, files.alice[1])


async def test_a_client_is_told_which_of_its_files_are_of_no_use(tmp_path: Path, files: Files) -> None:
    async with serving_quic(tmp_path) as service:
        with pytest.raises(InvalidRequest, match="belong together"):
            await service.client(cert=files.alice[0])
        with pytest.raises(InvalidRequest, match="cannot be used"):
            await service.client(cert=files.ca, key=files.ca)
        with pytest.raises(InvalidRequest, match="is not a file"):
            await service.client(ca_file=tmp_path / "none.pem")


# -- what is no handshake -------------------------------------------------------------------------------------------------------


async def test_an_unknown_version_is_answered_with_the_one_that_is_spoken(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        with socket.socket(type=socket.SOCK_DGRAM) as own:
            own.setblocking(False)
            own.connect(service.where)
            own.send(bytes.fromhex("c0 1a2a3a4a 08 0102030405060708 04 aabbccdd") + bytes(1_200))
            answer: list[bytes] = []

            def receive() -> bool:
                try:
                    answer.append(own.recv(65_535))
                except BlockingIOError:
                    return False
                return True

            await until(receive)
            (datagram,) = answer
            assert datagram[0] & 0x80
            assert datagram[1:] == bytes.fromhex("00000000 04 aabbccdd 08 0102030405060708") + VERSION.to_bytes(
                4, "big"
            )
        assert service.stats.connections_open == 0


async def test_garbage_is_counted_and_dropped_while_others_continue(tmp_path: Path) -> None:
    chance = random.Random(5)
    async with talking(tmp_path) as (service, _, stream):
        with socket.socket(type=socket.SOCK_DGRAM) as own:
            for round_number in range(20):
                for _ in range(50):
                    size = chance.choice((1, 2, 7, 20, 60, 1_199, 1_200, 1_452, 8_000))
                    own.sendto(chance.randbytes(size), service.where)
                await stream.write(b"echo %d\n" % round_number)
                assert await read_line(stream) == b"%d\n" % round_number
        await until(lambda: service.stats.datagrams_dropped > 500)
        await until(lambda: service.stats.handshakes_open == 0)
        assert service.stats.connections_open == 1
        assert service.stats.session_errors == 0


async def test_a_first_datagram_that_nobody_encrypted_costs_nothing_for_long(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        core = connecting(service)
        (datagram, _), *_ = core.take_datagrams(time.monotonic(), 10)
        header = long_header(datagram)
        assert header is not None
        assert header.is_initial
        with socket.socket(type=socket.SOCK_DGRAM) as own:
            own.sendto(datagram[:100] + bytes(len(datagram) - 100), service.where)
            await until(lambda: service.stats.handshake_failures == 1)
        assert service.stats.connections_open == service.stats.handshakes_open == 0


async def test_handshake_messages_that_make_no_sense_end_the_handshake(tmp_path: Path) -> None:
    """Well encrypted, as anyone can for a first datagram, and nonsense inside."""
    async with serving_quic(tmp_path) as service:
        for nonsense in (b"\x01\x00\x00\x02\xff\xff", b"\x02" + bytes(40), b"\x01\x00\x00\x10" + bytes(16)):
            before = service.stats.handshake_failures
            core = connecting(service, say=lambda _, nonsense=nonsense: nonsense)  # type: ignore[misc]
            with socket.socket(type=socket.SOCK_DGRAM) as own:
                for datagram, _ in core.take_datagrams(time.monotonic(), 10):
                    own.sendto(datagram, service.where)
                await until(lambda before=before: service.stats.handshake_failures == before + 1)  # type: ignore[misc]
        assert service.stats.session_errors == 0
        await service.client()


@pytest.mark.parametrize("seed", range(3))
async def test_client_hellos_that_were_changed_harm_nobody(tmp_path: Path, files: Files, seed: int) -> None:
    chance = random.Random(seed)

    def changed(message: bytes) -> bytes:
        hello = bytearray(message)
        for _ in range(chance.randrange(1, 6)):
            place = chance.randrange(len(hello))
            match chance.randrange(4):
                case 0:
                    hello[place] = chance.randrange(256)
                case 1:
                    del hello[place : place + chance.randrange(20)]
                case 2:
                    hello[place:place] = chance.randbytes(chance.randrange(20))
                case _:
                    hello[place] ^= 1 << chance.randrange(8)
        return b"\x01" + (len(hello) - 4).to_bytes(3, "big") + hello[4:]

    tls = quic_server_tls(files.cert, files.key, files.ca if seed == 1 else None, alpn=(ALPN,))
    async with serving_quic(tmp_path, QuicLimits(retry_above=1_000), tls=tls, trusted=files.ca) as service:
        with socket.socket(type=socket.SOCK_DGRAM) as own:
            for _ in range(100):
                core = connecting(service, TlsSettings(alpn=(ALPN,), verify=False), say=changed)
                for datagram, _ in core.take_datagrams(time.monotonic(), 10):
                    own.sendto(datagram, service.where)
                await asyncio.sleep(0)
            shown = {"cert": files.alice[0], "key": files.alice[1]} if seed == 1 else {}
            client = await service.client(**shown)
            stream = client.open_stream()
            await stream.write(b"echo fine\n")
            assert await read_line(stream) == b"fine\n"
        service.pass_time(service.listener.limits.handshake_s_max + 2)
        assert service.stats.connections_open == 1
        assert service.stats.session_errors == 0
        assert service.stats.handshakes_open == 0


async def test_a_handshake_message_without_end_is_given_up(tmp_path: Path) -> None:
    async with serving_quic(tmp_path) as service:
        core = connecting(service, say=lambda _: b"\x01\xff\xff\xff" + bytes(200_000))

        def receive(datagram: bytes, size: int, where: tuple[str, int], now_s: float) -> None:
            core._core.receive_datagram(datagram, where, now_s)  # past the client's own checks

        await _exchange(core, service, receive, done=lambda: service.stats.handshake_failures == 1)
        assert service.stats.connections_open == 0


async def test_a_listener_that_is_not_there_is_noticed_at_once() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", 0))
        port = own.getsockname()[1]
        with pytest.raises(Unreachable, match=r"no answer within 0\.1 s"):
            await connect_quic("127.0.0.1", port, timeout_s=0.1)
    with pytest.raises(Unreachable, match="nothing listens"):
        await connect_quic("127.0.0.1", port)

"""TLS: what is spoken, who is let in, and errors that name the file."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtensionOID, NameOID
from structlog.testing import capture_logs

from penstock.errors import ConfigError
from penstock.net.limits import TcpLimits
from penstock.net.tls import server_context, subject_of
from tests.descriptors import open_sockets
from tests.net.line_session import hang_up, read_to_end, serving, until


class Files:
    """An authority, a server's certificate and a client's, as PEM files."""

    def __init__(self, directory: Path) -> None:
        self.ca = directory / "ca.pem"
        self.cert, self.key = directory / "server.pem", directory / "server.key"
        self.client_cert, self.client_key = directory / "client.pem", directory / "client.key"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca)
        for issued, cert, key in (
            (authority.issue_cert("127.0.0.1", common_name="broker"), self.cert, self.key),
            (
                authority.issue_cert(
                    "alice@example.org",
                    common_name="alice",
                    organization_name="Example",
                    organization_unit_name="Payments",
                ),
                self.client_cert,
                self.client_key,
            ),
        ):
            cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
            issued.private_key_pem.write_to_path(key)

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


class WireClient:
    """A client that decides which bytes of its TLS travel together."""

    def __init__(self, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received, self.sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.received, self.sent, server_hostname="127.0.0.1")
        self.reader, self.writer = reader, writer

    async def send(self, piece_bytes: int | None = None) -> None:
        """Send what TLS has made, at once or in pieces that arrive one after another."""
        data = self.sent.read()
        for start in range(0, len(data), piece_bytes or len(data)):
            self.writer.write(data[start : start + (piece_bytes or len(data))])
            await self.writer.drain()
            await asyncio.sleep(0)

    async def shake_hands(self, piece_bytes: int | None = None) -> None:
        """Up to the last message, which is for the test to send."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.send(piece_bytes)
                self.received.write(await self.reader.read(1 << 16))
            else:
                return

    async def read(self) -> bytes:
        """Return what comes next; nothing if the broker has ended its side."""
        while True:
            try:
                return self.tls.read(1 << 16)
            except ssl.SSLWantReadError:
                data = await self.reader.read(1 << 16)
                if not data:
                    raise ConnectionError("the broker ended the connection without saying so") from None
                self.received.write(data)


async def wire_client(port: int, context: ssl.SSLContext) -> WireClient:
    return WireClient(context, *await asyncio.open_connection("127.0.0.1", port))


async def test_a_request_is_answered_over_tls(files: Files) -> None:
    async with serving(tls=server_context(files.cert, files.key)) as service:
        reader, writer, session = await service.connect(ssl=files.client_context())
        writer.write(b"echo hello\n")
        assert await reader.readline() == b"hello\n"
        assert session.connection.principal_hint is None
        writer.write(b"later one\n")
        await until(lambda: len(session.later) == 1)
        session.answer()
        assert await reader.readline() == b"one\n"
        await hang_up(writer)
        await until(lambda: session.is_closed)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_current_versions_are_spoken(files: Files, version: ssl.TLSVersion) -> None:
    context = files.client_context()
    context.minimum_version = context.maximum_version = version
    async with serving(tls=server_context(files.cert, files.key)) as service:
        reader, writer, _ = await service.connect(ssl=context)
        writer.write(b"echo x\n")
        assert await reader.readline() == b"x\n"
        await hang_up(writer)


def test_older_versions_are_not_spoken(files: Files) -> None:
    assert server_context(files.cert, files.key).minimum_version is ssl.TLSVersion.TLSv1_2


async def test_a_client_certificate_says_who_is_asking(files: Files) -> None:
    async with serving(tls=server_context(files.cert, files.key, files.ca)) as service:
        context = files.client_context()
        context.load_cert_chain(files.client_cert, files.client_key)
        _, writer, session = await service.connect(ssl=context)
        assert session.connection.principal_hint == "CN=alice,OU=Payments,O=Example"
        await hang_up(writer)


def issue_unreadable(directory: Path) -> tuple[Path, Path]:
    """Return an authority, and a certificate of a client with its key, in which a name is Latin-1 where ASCII is due."""
    authority_key, client_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer, subject = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("authority", "client"))
    mail = "m\xfcller@example.org".encode("latin-1")
    names = bytes([0x81, len(mail)]) + mail
    start, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)
    built = x509.CertificateBuilder().issuer_name(issuer).not_valid_before(start).not_valid_after(end)
    authority = (
        built.subject_name(issuer)
        .public_key(authority_key.public_key())
        .serial_number(1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    client = (
        built.subject_name(subject)
        .public_key(client_key.public_key())
        .serial_number(2)
        .add_extension(
            x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes([0x30, len(names)]) + names),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    trusted, chain = directory / "trusted.pem", directory / "unreadable.pem"
    trusted.write_bytes(authority.public_bytes(Encoding.PEM))
    key = client_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain.write_bytes(client.public_bytes(Encoding.PEM) + key)
    return trusted, chain


async def test_a_client_certificate_that_cannot_be_read_keeps_no_place(files: Files, tmp_path: Path) -> None:
    trusted, chain = issue_unreadable(tmp_path)
    limits = TcpLimits.model_construct(max_connections=1)
    context = files.client_context()
    context.load_cert_chain(chain)
    async with serving(limits, tls=server_context(files.cert, files.key, trusted)) as service:
        for attempt in range(1, 4):
            with capture_logs() as lines:
                reader, writer = await asyncio.open_connection("127.0.0.1", service.port, ssl=context)
                assert await read_to_end(reader) == b""
                await hang_up(writer)
                await until(lambda: service.stats.connections_open == 0)
            assert service.stats.handshake_failures == attempt
            assert "the certificate of the client cannot be read" in lines[0]["reason"]


async def test_a_client_without_a_certificate_is_turned_away_where_one_is_required(files: Files) -> None:
    sockets = open_sockets()
    async with serving(tls=server_context(files.cert, files.key, files.ca)) as service:
        with capture_logs() as lines:
            # TLS 1.3 tells a client at its first read, when its own side of the handshake is long done.
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port, ssl=files.client_context())
            assert await read_to_end(reader) == b""
            await hang_up(writer)
            await until(lambda: service.stats.handshake_failures == 1)
        assert service.sessions == []
        assert [line["event"] for line in lines] == ["tls_handshake_failed"]
        assert service.stats.connections_open == 0
    await until(lambda: open_sockets() <= sockets)


async def test_plain_text_on_a_tls_port_is_one_line_and_no_session(files: Files) -> None:
    sockets = open_sockets()
    async with serving(tls=server_context(files.cert, files.key)) as service:
        with capture_logs() as lines:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await read_to_end(reader)
            await until(lambda: service.stats.handshake_failures == 1)
            await hang_up(writer)
        assert [line["event"] for line in lines] == ["tls_handshake_failed"]
        assert "exc_info" not in lines[0]
        assert service.stats.connections_open == 0
    await until(lambda: open_sockets() <= sockets)


async def test_a_handshake_that_never_ends_is_cut_off(files: Files) -> None:
    limits = TcpLimits.model_construct(handshake_s_max=0.05)
    async with serving(limits, tls=server_context(files.cert, files.key)) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        assert await read_to_end(reader) == b""
        await until(lambda: service.stats.handshake_failures == 1)
        await hang_up(writer)


async def test_a_handshake_under_way_does_not_hold_up_a_stop(files: Files) -> None:
    sockets = open_sockets()
    async with serving(tls=server_context(files.cert, files.key)) as service:
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        await until(lambda: service.stats.connections_open == 1)
        await service.listener.stop()
        assert service.stats.connections_open == 0
        await hang_up(writer)
    await until(lambda: open_sockets() <= sockets)


async def test_a_client_that_is_turned_away_is_told_why(files: Files) -> None:
    async with serving(tls=server_context(files.cert, files.key, files.ca)) as service:
        client = await wire_client(service.port, files.client_context())
        await client.shake_hands()
        await client.send()
        with pytest.raises(ssl.SSLError) as refused:
            await client.read()
        assert refused.value.reason == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
        await hang_up(client.writer)


async def test_a_client_that_leaves_during_the_handshake_is_one_line(files: Files) -> None:
    async with serving(tls=server_context(files.cert, files.key)) as service:
        with capture_logs() as lines:
            _, writer = await asyncio.open_connection("127.0.0.1", service.port)
            await until(lambda: service.stats.connections_open == 1)
            await hang_up(writer)
            await until(lambda: service.stats.connections_open == 0)
        assert [line["reason"] for line in lines] == ["the client ended the connection"]
        assert service.stats.handshake_failures == 1


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_records_may_come_in_any_pieces(files: Files, version: ssl.TLSVersion) -> None:
    context = files.client_context()
    context.maximum_version = version
    async with serving(tls=server_context(files.cert, files.key)) as service:
        client = await wire_client(service.port, context)
        await client.shake_hands(100)
        await client.send(100)
        client.tls.write(b"echo one\n")
        await client.send(1)
        assert await client.read() == b"one\n"
        client.tls.write(b"echo two\n")
        client.tls.write(b"echo three\n")
        await client.send()
        assert await client.read() == b"two\n"
        assert await client.read() == b"three\n"
        await hang_up(client.writer)


async def test_a_request_may_come_with_the_end_of_the_handshake_and_with_that_of_the_connection(files: Files) -> None:
    async with serving(tls=server_context(files.cert, files.key)) as service:
        client = await wire_client(service.port, files.client_context())
        await client.shake_hands()
        client.tls.write(b"echo one\n")
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()
        await client.send()
        assert await client.read() == b"one\n"
        with pytest.raises(ssl.SSLZeroReturnError):
            await client.read()
        assert await client.reader.read() == b""
        await hang_up(client.writer)


async def test_more_than_one_read_and_write_hold_passes_unchanged(files: Files) -> None:
    line = b"echo " + bytes(range(33, 127)) * 10_000 + b"\n"
    async with serving(tls=server_context(files.cert, files.key)) as service:
        reader, writer, _ = await service.connect(ssl=files.client_context(), limit=1 << 22)
        for _ in range(3):
            writer.write(line)
            assert await reader.readexactly(len(line) - len(b"echo ")) == line[len(b"echo ") :]
        await hang_up(writer)


async def test_what_is_no_tls_record_ends_the_connection(files: Files) -> None:
    async with serving(tls=server_context(files.cert, files.key)) as service:
        client = await wire_client(service.port, files.client_context())
        await client.shake_hands()
        client.tls.write(b"echo one\n")
        await client.send()
        assert await client.read() == b"one\n"
        client.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await read_to_end(client.reader)
        await until(lambda: service.stats.connections_open == 0)
        assert service.stats.session_errors == 0
        await hang_up(client.writer)


async def test_a_client_that_does_not_end_its_side_is_disconnected(files: Files) -> None:
    limits = TcpLimits.model_construct(linger_s_max=0.05)
    async with serving(limits, tls=server_context(files.cert, files.key)) as service:
        client = await wire_client(service.port, files.client_context())
        await client.shake_hands()
        await client.send()
        await until(lambda: len(service.sessions) == 1)
        service.sessions[0].connection.close()
        assert await client.read() == b""  # the broker has said that nothing more comes
        await until(lambda: service.stats.connections_open == 0)
        await hang_up(client.writer)


async def test_a_client_that_has_ended_its_side_and_takes_nothing_is_disconnected(files: Files) -> None:
    limits = TcpLimits.model_construct(linger_s_max=0.05, send_buffer_bytes_max=64 << 20)
    async with serving(limits, tls=server_context(files.cert, files.key)) as service:
        client = await wire_client(service.port, files.client_context())
        await client.shake_hands()
        client.tls.write(b"big 16000000\n")
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()
        await client.send()
        await until(lambda: service.stats.connections_total == 1 and service.stats.connections_open == 0)
        assert service.stats.bytes_out >= 16_000_000  # that it was given to send; far less arrived
        await hang_up(client.writer)


async def test_a_reply_that_a_tls_peer_does_not_take_is_counted_as_unsent(files: Files) -> None:
    async with serving(tls=server_context(files.cert, files.key)) as service:
        reader, writer, session = await service.connect(ssl=files.client_context(), limit=1 << 16)
        writer.write(b"big 30000000\n")
        await until(lambda: not session.connection.writable)
        service.listener.sweep()
        assert service.listener.budget.unsent_bytes > 10_000_000
        assert len(await reader.readexactly(30_000_000)) == 30_000_000
        service.listener.sweep()
        assert service.listener.budget.unsent_bytes == 0
        await hang_up(writer)


async def test_a_stop_answers_what_is_in_flight_over_tls_too(files: Files) -> None:
    async with serving(tls=server_context(files.cert, files.key)) as service:
        reader, writer, session = await service.connect(ssl=files.client_context())
        writer.write(b"later one\n")
        await until(lambda: len(session.later) == 1)
        stopping = asyncio.create_task(service.listener.stop(grace_s=20))
        await asyncio.sleep(0)
        session.answer()
        assert await reader.read() == b"one\n"
        await hang_up(writer)
        await stopping
        assert service.stats.closed_unanswered == 0


@pytest.mark.parametrize("missing", ["cert", "key", "client_ca"])
def test_a_missing_file_is_named(files: Files, missing: str, tmp_path: Path) -> None:
    given = {"cert": files.cert, "key": files.key, "client_ca": files.ca, missing: tmp_path / "nowhere.pem"}
    with pytest.raises(ConfigError, match=rf"tls\.{missing}: .*nowhere\.pem does not exist"):
        server_context(**given)


def test_a_file_that_cannot_be_read_is_named(files: Files, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.cert: .* cannot be read \(Is a directory\)"):
        server_context(tmp_path, files.key)


@pytest.mark.parametrize("wrong", ["cert", "key", "client_ca"])
def test_a_file_of_something_else_is_named(files: Files, wrong: str, tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("not a certificate")
    given = {"cert": files.cert, "key": files.key, "client_ca": files.ca, wrong: note}
    with pytest.raises(ConfigError, match=rf"tls\.{wrong}: .*note\.txt holds no (certificate|private key) in PEM form"):
        server_context(**given)


def test_a_damaged_certificate_is_an_error_that_names_both_files(files: Files, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigError, match=r"damaged\.pem and .*server\.key cannot be used"):
        server_context(damaged, files.key)
    with pytest.raises(ConfigError, match=r"damaged\.pem holds no usable certificate"):
        server_context(files.cert, files.key, damaged)


def test_a_key_of_another_certificate_is_named(files: Files) -> None:
    with pytest.raises(
        ConfigError, match=r"tls\.key: .*client\.key does not belong to the certificate in .*server\.pem"
    ):
        server_context(files.cert, files.client_key)


def test_a_key_with_a_passphrase_is_refused_instead_of_asked_for(files: Files, tmp_path: Path) -> None:
    protected = tmp_path / "protected.key"
    key = load_pem_private_key(files.key.read_bytes(), None)
    protected.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    with pytest.raises(ConfigError, match="protected by a passphrase"):
        server_context(files.cert, protected)


def test_a_subject_is_written_most_specific_name_first() -> None:
    certificate = {
        "subject": ((("countryName", "CH"),), (("organizationName", "Example"),), (("commonName", "alice"),))
    }
    assert subject_of(certificate) == "CN=alice,O=Example,C=CH"


def test_a_name_cannot_pretend_to_be_two() -> None:
    certificate = {"subject": ((("commonName", "alice,O=Admins\n"),),)}
    assert subject_of(certificate) == "CN=alice\\,O\\=Admins\\0a"


@pytest.mark.parametrize("certificate", [None, {}, {"subject": ()}])
def test_without_a_certificate_there_is_no_subject(certificate: dict[str, object] | None) -> None:
    assert subject_of(certificate) is None

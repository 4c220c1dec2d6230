"""TLS that does more than carry data: handshakes that are long or hostile, and peers that begin one anew on an open connection."""

from __future__ import annotations

import asyncio
import ctypes
import ctypes.util
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from structlog.testing import capture_logs

from penstock.net.limits import TcpLimits
from penstock.net.tls import server_context
from penstock.net.tls_transport import HANDSHAKE_BYTES, HANDSHAKE_READ_BYTES, TlsTransport
from tests.net.line_session import Service, hang_up, read_to_end, serving, until
from tests.net.test_tls import Files, WireClient, wire_client

APPLICATION_DATA = 23
ALERT = 21
TLS_1_2 = 0x0303
KEY_UPDATE = b"\x18\0\0\1\1"
"""The message: its type, its length, and that the broker shall update its own keys too."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


# --- a renegotiation of TLS 1.2 ---


class OpenSslPeer:
    """A client of TLS 1.2 that can ask for a renegotiation, which Python's cannot. Its messages may span records of 512 bytes."""

    def __init__(self) -> None:
        self.tls, self.crypto = (ctypes.CDLL(ctypes.util.find_library(name)) for name in ("ssl", "crypto"))
        for function in (self.tls.TLS_client_method, self.tls.SSL_CTX_new, self.tls.SSL_new):
            function.restype = ctypes.c_void_p
        self.crypto.BIO_s_mem.restype = self.crypto.BIO_new.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.tls.SSL_CTX_new(ctypes.c_void_p(self.tls.TLS_client_method())))
        self.control(self.tls.SSL_CTX_ctrl, self.context, "SSL_CTRL_SET_MAX_PROTO_VERSION", TLS_1_2)
        self.ssl = ctypes.c_void_p(self.tls.SSL_new(self.context))
        self.control(self.tls.SSL_ctrl, self.ssl, "SSL_CTRL_SET_MAX_SEND_FRAGMENT", 512)
        # So that what it says in a handshake is longer than one record.
        assert self.tls.SSL_set_cipher_list(self.ssl, b"ALL:COMPLEMENTOFALL:@SECLEVEL=0") == 1
        name = b".".join([b"a" * 60] * 4)
        self.control(self.tls.SSL_ctrl, self.ssl, "SSL_CTRL_SET_TLSEXT_HOSTNAME", 0, name)
        self.received, self.sent = (
            ctypes.c_void_p(self.crypto.BIO_new(ctypes.c_void_p(self.crypto.BIO_s_mem()))) for _ in range(2)
        )
        self.tls.SSL_set_bio(self.ssl, self.received, self.sent)
        self.tls.SSL_set_connect_state(self.ssl)

    def control(
        self, function: Callable[..., int], of: ctypes.c_void_p, command: str, value: int, text: bytes | None = None
    ) -> None:
        commands = {
            "SSL_CTRL_SET_MAX_SEND_FRAGMENT": 52,
            "SSL_CTRL_SET_TLSEXT_HOSTNAME": 55,
            "SSL_CTRL_SET_MAX_PROTO_VERSION": 124,
        }
        assert function(of, commands[command], ctypes.c_long(value), text) == 1

    def free(self) -> None:
        self.tls.SSL_free(self.ssl)
        self.tls.SSL_CTX_free(self.context)

    def take(self) -> bytes:
        """Return what it wants to send."""
        buffer = ctypes.create_string_buffer(1 << 16)
        count: int = self.crypto.BIO_read(self.sent, buffer, len(buffer))
        return buffer.raw[: max(count, 0)]

    async def shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self.tls.SSL_do_handshake(self.ssl) != 1:
            writer.write(self.take())
            data = await reader.read(1 << 16)
            self.crypto.BIO_write(self.received, data, len(data))
        writer.write(self.take())

    def write(self, data: bytes) -> bytes:
        """Return the record."""
        assert self.tls.SSL_write(self.ssl, data, len(data)) == len(data)
        return self.take()

    def renegotiate(self) -> bytes:
        """Return the records that ask for it."""
        assert self.tls.SSL_renegotiate(self.ssl) == 1
        assert self.tls.SSL_do_handshake(self.ssl) != 1
        return self.take()


def first_record_bytes(data: bytes) -> int:
    return 5 + int.from_bytes(data[3:5])


async def next_record(reader: asyncio.StreamReader) -> int:
    """Return the type of the record that comes next."""
    header = await reader.readexactly(5)
    await reader.readexactly(int.from_bytes(header[3:]))
    return header[0]


async def renegotiating(service: Service) -> tuple[OpenSslPeer, asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """Return a client with a request in flight that has sent a part of a renegotiation, and the rest of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    peer = OpenSslPeer()
    await peer.shake_hands(reader, writer)
    writer.write(peer.write(b"later one\n"))
    await until(lambda: len(service.sessions) == 1 and len(service.sessions[0].later) == 1)
    asked = peer.renegotiate()
    cut = first_record_bytes(asked)
    assert cut < len(asked), "it fits into one record"
    received = service.sessions[0].received
    writer.write(asked[: cut + 7])
    await encrypts_nothing(service)
    assert service.sessions[0].received == received
    return peer, reader, writer, asked[cut + 7 :]


async def encrypts_nothing(service: Service) -> None:
    """Wait until the broker has the part of the message: from then on it cannot encrypt."""
    transport = service.sessions[0].connection._transport  # type: ignore[attr-defined]
    tls = transport._ssl

    def is_refused() -> bool:
        try:
            tls.write(b"")
        except ssl.SSLWantReadError:
            return True
        return False

    await until(is_refused)


async def test_a_reply_during_half_a_renegotiation_is_sent_after_it(files: Files) -> None:
    async with serving(tls=server_context(files.cert, files.key)) as service:
        peer, reader, writer, rest = await renegotiating(service)
        session = service.sessions[0]
        session.answer()
        assert not session.connection.writable
        writer.write(rest)
        # That there is no renegotiation, and the reply.
        assert [await next_record(reader), await next_record(reader)] == [ALERT, APPLICATION_DATA]
        await until(lambda: session.connection.writable)
        await hang_up(writer)
        peer.free()


# --- an update of the keys of TLS 1.3 ---


class KeyUpdatingClient:
    """Makes the records of a TLS 1.3 client whose handshake is complete and that has sent no data, for messages cut anywhere."""

    def __init__(self, secrets: Path) -> None:
        lines = [line.split() for line in secrets.read_text().splitlines() if not line.startswith("#")]
        secret = next(bytes.fromhex(value) for label, _, value in lines if label == "CLIENT_TRAFFIC_SECRET_0")
        self.key, self.iv = self._derive(secret, b"key", 32), self._derive(secret, b"iv", 12)
        self.records = 0

    def _derive(self, secret: bytes, label: bytes, length: int) -> bytes:
        """HKDF-Expand-Label of RFC 8446, section 7.1."""
        info = length.to_bytes(2) + bytes([6 + len(label)]) + b"tls13 " + label + b"\0"
        return HKDFExpand(hashes.SHA384(), length, info).derive(secret)

    def record(self, content: bytes, content_type: int) -> bytes:
        inner = content + bytes([content_type])
        header = b"\x17\3\3" + (len(inner) + 16).to_bytes(2)
        nonce = (int.from_bytes(self.iv) ^ self.records).to_bytes(12)
        self.records += 1
        return header + AESGCM(self.key).encrypt(nonce, inner, header)


async def updating(
    service: Service, files: Files, directory: Path, request: bytes = b"later one\n"
) -> tuple[WireClient, bytes]:
    """Return a client with a request in flight that has sent a part of a KeyUpdate, and the record with the rest of it."""
    context = files.client_context()
    context.keylog_filename = str(directory / "secrets")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    client = await wire_client(service.port, context)
    await client.shake_hands()
    await client.send()
    name, *_ = client.tls.cipher() or ("",)
    assert name == "TLS_AES_256_GCM_SHA384"
    by_hand = KeyUpdatingClient(directory / "secrets")
    client.writer.write(by_hand.record(request, APPLICATION_DATA))
    await until(lambda: len(service.sessions) == 1 and service.sessions[0].received == len(request))
    client.writer.write(by_hand.record(KEY_UPDATE[:4], 22))
    await encrypts_nothing(service)
    return client, by_hand.record(KEY_UPDATE[4:], 22)


async def test_replies_during_half_a_key_update_are_sent_after_it(files: Files, tmp_path: Path) -> None:
    async with serving(tls=server_context(files.cert, files.key)) as service:
        client, rest = await updating(service, files, tmp_path, b"later one\nlater two\n")
        session = service.sessions[0]
        session.answer()
        session.answer()
        assert not session.connection.writable
        client.writer.write(rest[:9])
        client.writer.write(rest[9:])
        data = await client.read()
        assert data + (await client.read() if data == b"one\n" else b"") == b"one\ntwo\n"
        await until(lambda: session.connection.writable)
        assert service.listener.budget.unsent_bytes == 0
        await hang_up(client.writer)


async def test_a_reply_that_waits_for_a_key_update_is_unsent_until_the_client_has_taken_it(
    files: Files, tmp_path: Path
) -> None:
    async with serving(tls=server_context(files.cert, files.key)) as service:
        client, rest = await updating(service, files, tmp_path)
        session = service.sessions[0]
        session.later[0] = b"later " + bytes(20_000_000)
        session.connection.hold(20_000_000 - len(b"one"))
        session.answer()
        assert service.listener.budget.unsent_bytes >= 20_000_000
        client.writer.write(rest)
        await until(lambda: session.connection._transport._delayed is None)  # type: ignore[attr-defined]
        assert not session.connection.writable  # the TCP transport holds it now
        received = 0
        while received < 20_000_001:
            received += len(await client.read())
        await until(lambda: session.connection.writable)
        await hang_up(client.writer)


async def test_a_connection_that_must_not_be_read_is_read_only_for_the_rest_of_a_key_update(
    files: Files, tmp_path: Path
) -> None:
    async with serving(tls=server_context(files.cert, files.key)) as service:
        client, rest = await updating(service, files, tmp_path)
        session = service.sessions[0]
        transport = session.connection._transport  # type: ignore[attr-defined]
        session.connection.hold(service.listener.limits.in_flight_bytes_max)
        assert not transport._tcp.is_reading()
        session.answer()
        assert transport._tcp.is_reading()
        assert len(transport.get_buffer(-1)) == HANDSHAKE_BYTES
        client.writer.write(rest)
        assert await client.read() == b"one\n"
        assert session.connection.writable
        assert not transport._tcp.is_reading()
        session.connection.release(service.listener.limits.in_flight_bytes_max)
        await until(transport._tcp.is_reading)
        await hang_up(client.writer)


async def test_a_connection_that_is_closed_during_half_a_key_update_is_closed_after_its_reply(
    files: Files, tmp_path: Path
) -> None:
    limits = TcpLimits.model_construct(linger_s_max=20.0)
    async with serving(limits, tls=server_context(files.cert, files.key)) as service:
        client, rest = await updating(service, files, tmp_path)
        session = service.sessions[0]
        session.answer()
        session.connection.close()
        transport = session.connection._transport  # type: ignore[attr-defined]
        await until(transport.is_closing)
        client.writer.write(rest)
        assert await client.read() == b"one\n"
        assert await client.read() == b""  # it has said that nothing more comes
        client.writer.close()
        await until(lambda: service.stats.connections_open == 0)
        await hang_up(client.writer)


async def test_a_client_is_told_of_the_end_also_if_nothing_waits_during_half_a_key_update(
    files: Files, tmp_path: Path
) -> None:
    limits = TcpLimits.model_construct(linger_s_max=20.0)
    async with serving(limits, tls=server_context(files.cert, files.key)) as service:
        client, rest = await updating(service, files, tmp_path, b"x")
        session = service.sessions[0]
        session.connection.close()
        await until(session.connection._transport.is_closing)  # type: ignore[attr-defined]
        client.writer.write(rest)
        assert await client.read() == b""
        client.writer.close()
        await until(lambda: service.stats.connections_open == 0)
        await hang_up(client.writer)


async def test_a_client_that_never_sends_the_rest_of_a_key_update_is_disconnected(files: Files, tmp_path: Path) -> None:
    limits = TcpLimits.model_construct(idle_s_max=30.0)
    async with serving(limits, tls=server_context(files.cert, files.key)) as service:
        client, _ = await updating(service, files, tmp_path)
        service.sessions[0].answer()
        service.pass_time(35)
        await until(lambda: service.stats.connections_open == 0)
        assert service.stats.closed_unread == 1
        assert service.listener.budget.unsent_bytes == 0
        await hang_up(client.writer)


# --- handshakes without end ---


def endless_hello() -> bytes:
    """A ClientHello of 131,396 bytes, the most that OpenSSL takes, in records. Its extension has no meaning."""
    extension = b"\xfa\xfa" + (0xFFF0).to_bytes(2) + bytes(0xFFF0)
    body = (
        b"\3\3"
        + bytes(32)
        + b"\0"
        + b"\xff\xfe"
        + b"\x13\x01" * 0x7FFF
        + b"\1\0"
        + len(extension).to_bytes(2)
        + extension
    )
    hello = b"\1" + len(body).to_bytes(3) + body
    pieces = (hello[start : start + (1 << 14)] for start in range(0, len(hello), 1 << 14))
    return b"".join(b"\x16\3\1" + len(piece).to_bytes(2) + piece for piece in pieces)


async def test_a_handshake_is_refused_when_it_is_longer_than_its_bound(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    """In each turn of the event loop."""
    is_turn_over = True
    shake_hands = TlsTransport._shake_hands

    def end_turn() -> None:
        nonlocal is_turn_over
        is_turn_over = True

    def count(self: TlsTransport, *arguments: object) -> None:
        nonlocal is_turn_over
        if is_turn_over:
            is_turn_over = False
            steps.append(0)
            asyncio.get_running_loop().call_soon(end_turn)
        steps[-1] += 1
        shake_hands(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TlsTransport, "_shake_hands", count)
    limits = TcpLimits.model_construct(handshake_bytes_max=16 << 10)
    async with serving(limits, tls=server_context(files.cert, files.key)) as service:
        with capture_logs() as lines:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(endless_hello())
            assert await read_to_end(reader) == b""
            await until(lambda: service.stats.connections_open == 0)
        assert "more than handshake_bytes_max = 16384 bytes" in lines[0]["reason"]
        assert service.stats.handshake_failures == 1
        assert sum(steps) == (16 << 10) // HANDSHAKE_BYTES
        assert max(steps) <= HANDSHAKE_READ_BYTES // HANDSHAKE_BYTES
        await hang_up(writer)


async def test_a_handshake_within_its_bound_may_come_byte_by_byte(files: Files) -> None:
    limits = TcpLimits.model_construct(handshake_bytes_max=4 << 10)
    async with serving(limits, tls=server_context(files.cert, files.key)) as service:
        client = await wire_client(service.port, files.client_context())
        await client.shake_hands(1)
        client.tls.write(b"echo " + bytes(10_000) + b"\n")  # more than one read of a handshake, behind its last message
        await client.send()
        received = b""
        while len(received) < 10_001:
            received += await client.read()
        await hang_up(client.writer)

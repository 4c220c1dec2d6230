"""The TLS side of a QUIC connection: certificates, the application protocol, and client certificates.

The library's server never asks a client for a certificate and takes a fixed list of application protocols or none. Two steps of its
handshake are extended here: before the ClientHello is answered the protocol is chosen from what the client offers; and where client
certificates are required, a CertificateRequest goes out before our own certificate, and the client's Certificate and CertificateVerify
are checked before its Finished is. A client also trusts the very certificate that it was given.

Messages that make no sense make the library raise whatever comes up, or panic. Here each is an alert, so that the peer hears of it.

`ServerContext` can go once the library's server can request client certificates and is given its protocols for each connection. The checks
of key shares can go once the library refuses bad ones without a panic: a test of panics in `tests/quic/test_library.py` fails then.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from qh3 import tls
from qh3._hazmat import Buffer, CryptoError, SignatureError, verify_with_public_key
from qh3._hazmat import Certificate as LibraryCertificate
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.packet import QuicTransportParameters, QuicVersionInformation, push_quic_transport_parameters
from qh3.quic.tls_bridge import QuicTlsBridge, QuicTlsBridgeError

CertificateCheck = Callable[[bytes, list[bytes]], None]
"""Given a certificate and those between it and its authority (DER), raises ValueError that says why it is not accepted."""

MESSAGE_HEADER_BYTES: Final = 4
CERTIFICATES_MAX: Final = 10
"""Longer chains are refused."""
HANDSHAKE_BYTES_MAX: Final = 32 * 1024
"""What a handshake may make us keep: large chains take a few KiB."""
TRANSPORT_PARAMETERS_BYTES_MAX: Final = 512
KEY_SHARE_BYTES: Final = {
    tls.Group.X25519: 32,
    tls.Group.X25519ML768: 1_216,
    tls.Group.SECP256R1: 65,
    tls.Group.SECP384R1: 97,
    tls.Group.SECP521R1: 133,
}
"""Of the key exchanges that the library takes. It does not look at the length before it cuts a share up."""
ML_KEM_NUMBERS_BYTES: Final = 1_152
ML_KEM_MODULUS: Final = 3_329
RESET_TOKEN_BYTES: Final = 16
MAX_ACK_DELAY_S: Final = 0.025
ACK_DELAY_EXPONENT: Final = 3
CONNECTION_IDS_MAX: Final = 8


class NoApplicationProtocol(tls.Alert):
    description = tls.AlertDescription.no_application_protocol


class CertificateRequired(tls.Alert):
    description = tls.AlertDescription.certificate_required


class MissingExtension(tls.Alert):
    description = tls.AlertDescription.missing_extension


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate chain with its private key, in the library's form. Made by `load_identity`."""

    chain: tuple[LibraryCertificate, ...]
    key: Any


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What one side brings to a handshake."""

    alpn: tuple[str, ...] = ()
    """Application protocols that a client offers, or a server speaks. Empty: none is offered, or what is offered is ignored."""

    alpn_required: bool = True
    """Server: whether a client must offer one of them. If not, one that offers none is served without."""

    identity: Identity | None = None
    """Required for a server."""

    client_check: CertificateCheck | None = None
    """Server: every client must show a certificate that this accepts."""

    reset_key: bytes = b""
    """Server: the key of stateless reset tokens. Empty: no stateless resets are sent."""

    server_name: str | None = None
    """Client: the name that the server's certificate must have."""

    ca_file: Path | None = None
    """Client: the trusted CA certificates; None: those of the system."""

    verify: bool = True
    """Client: whether the server's certificate is examined."""

    def fill(self, configuration: QuicConfiguration) -> None:
        """Copy the settings into the library's configuration."""
        configuration.alpn_protocols = list(self.alpn) or None
        if self.identity is not None:
            configuration.certificate = self.identity.chain[0]
            configuration.certificate_chain = list(self.identity.chain[1:])
            configuration.private_key = self.identity.key
        configuration.server_name = self.server_name
        configuration.cafile = None if self.ca_file is None else str(self.ca_file)
        configuration.verify_mode = None if self.verify else ssl.CERT_NONE


def reset_token(reset_key: bytes, cid: bytes) -> bytes | None:
    """What only the server that gave a client this connection id, and its later runs, can know."""
    return hmac.digest(reset_key, cid, hashlib.sha256)[:RESET_TOKEN_BYTES] if reset_key else None


def load_identity(cert: Path, key: Path) -> Identity:
    """Read both from PEM files. Raises OSError or ValueError if they cannot be used."""
    configuration = QuicConfiguration(is_client=False)
    try:
        configuration.load_cert_chain(cert, key)
    except (CryptoError, AssertionError, IndexError, TypeError, RuntimeError) as error:
        raise ValueError(str(error)) from None
    if configuration.certificate is None or configuration.private_key is None:
        raise ValueError("a certificate and its private key are needed")
    return Identity((configuration.certificate, *configuration.certificate_chain), configuration.private_key)


class ServerContext(tls.Context):
    """The library's handshake with the two steps that the module's docstring names."""

    def __init__(self, settings: TlsSettings) -> None:
        self._own_certificate: LibraryCertificate | None = None
        self._request_into: Buffer | None = None
        super().__init__(is_client=False)
        self._settings = settings
        self._client_chain: list[bytes] = []
        self._client_verified = False

    @property
    def certificate(self) -> LibraryCertificate | None:
        """Ours. The handshake asks for it when it is about to write it, which is when the request for the client's is due."""
        buffer, self._request_into = self._request_into, None
        if buffer is not None:
            _push_certificate_request(buffer, self._signature_algorithms)
        return self._own_certificate

    @certificate.setter
    def certificate(self, certificate: LibraryCertificate | None) -> None:
        self._own_certificate = certificate

    def handle_message(self, input_data: bytes, output_buf: dict[tls.Epoch, Buffer], epoch: int = -1) -> None:
        try:
            self._take_messages(input_data, output_buf, epoch)
        except (tls.Alert, QuicTlsBridgeError):
            raise
        except CryptoError as error:
            raise tls.AlertIllegalParameter(str(error)) from None
        except Exception as error:
            raise tls.AlertDecodeError(f"invalid handshake message: {error}") from error

    def _take_messages(self, input_data: bytes, output_buf: dict[tls.Epoch, Buffer], epoch: int) -> None:
        if len(self._receive_buffer) + len(input_data) > HANDSHAKE_BYTES_MAX:
            raise tls.AlertDecodeError(f"a handshake message is longer than {HANDSHAKE_BYTES_MAX} bytes")
        if self._settings.client_check is None or self.state != tls.State.SERVER_EXPECT_FINISHED:
            super().handle_message(input_data, output_buf, epoch)
            return
        if epoch != tls.Epoch.HANDSHAKE:
            raise tls.AlertUnexpectedMessage
        self._receive_buffer += input_data
        while not self._client_verified:
            message = self._next_message()
            if message is None:
                return
            if message[0] == tls.HandshakeType.CERTIFICATE and not self._client_chain:
                self._take_certificate(message)
            elif message[0] == tls.HandshakeType.CERTIFICATE_VERIFY and self._client_chain:
                self._take_certificate_verify(message)
            else:
                raise tls.AlertUnexpectedMessage
        if self._receive_buffer and self._receive_buffer[0] != tls.HandshakeType.FINISHED:
            raise tls.AlertUnexpectedMessage
        super().handle_message(b"", output_buf, epoch)

    def _server_handle_hello(
        self, input_buf: Buffer, initial_buf: Buffer, handshake_buf: Buffer, onertt_buf: Buffer
    ) -> None:
        hello = tls.pull_client_hello(input_buf)
        input_buf.seek(0)
        _check_key_shares(hello.key_share)
        self._choose_protocol(hello.alpn_protocols)
        if self._settings.client_check is not None:
            self._request_into = handshake_buf
            # The library works out the client's Finished in advance, unless messages may come before it. Then it waits for them.
            self._alps_negotiated = True
        super()._server_handle_hello(input_buf, initial_buf, handshake_buf, onertt_buf)

    def _choose_protocol(self, offered: list[str] | None) -> None:
        spoken = self._settings.alpn
        if not spoken or (offered is None and not self._settings.alpn_required):
            self._alpn_protocols = None
            return
        if not set(spoken) & set(offered or ()):
            raise NoApplicationProtocol(f"no common ALPN protocol: this server supports {', '.join(spoken)}")
        self._alpn_protocols = list(spoken)

    def _next_message(self) -> bytes | None:
        buffer = self._receive_buffer
        size = MESSAGE_HEADER_BYTES + int.from_bytes(buffer[1:MESSAGE_HEADER_BYTES], "big")
        if len(buffer) < MESSAGE_HEADER_BYTES or len(buffer) < size:
            return None
        self._receive_buffer = buffer[size:]
        return buffer[:size]

    def _take_certificate(self, message: bytes) -> None:
        entries = tls.pull_certificate(Buffer(data=message)).certificates
        if not entries:
            raise CertificateRequired("this server serves only clients that show a certificate")
        if len(entries) > CERTIFICATES_MAX:
            raise tls.AlertBadCertificate(f"a chain of more than {CERTIFICATES_MAX} certificates")
        self._client_chain = [der for der, _ in entries]
        assert self.key_schedule is not None
        self.key_schedule.update_hash(message)

    def _take_certificate_verify(self, message: bytes) -> None:
        """The client has the key of its certificate, and the certificate is a good one."""
        verify = tls.pull_certificate_verify(Buffer(data=message))
        if verify.algorithm not in self._signature_algorithms:
            raise tls.AlertDecryptError("a signature of a kind that was not asked for")
        assert self.key_schedule is not None
        certificate = LibraryCertificate(self._client_chain[0])
        signed = self.key_schedule.certificate_verify_data(b"TLS 1.3, client CertificateVerify")
        try:
            verify_with_public_key(certificate.public_key(), verify.algorithm, signed, verify.signature)
        except SignatureError as error:
            raise tls.AlertDecryptError(str(error)) from None
        assert self._settings.client_check is not None
        try:
            self._settings.client_check(self._client_chain[0], self._client_chain[1:])
        except ValueError as error:
            raise tls.AlertBadCertificate(str(error)) from None
        self.key_schedule.update_hash(message)
        self._peer_certificate = certificate
        self._client_verified = True


class ClientContext(tls.Context):
    """The library's handshake, which also takes a server's certificate that is trusted itself for good.

    The library asks for a chain to an authority, and takes no certificate that is marked as one for a server's. People trust the very
    certificate that they made for their server, however it is marked; then only its names and its dates are left to look at.
    """

    def __init__(self, configuration: QuicConfiguration) -> None:
        super().__init__(
            is_client=True,
            alpn_protocols=configuration.alpn_protocols,
            cafile=configuration.cafile,
            server_name=configuration.server_name,
            verify_mode=configuration.verify_mode,
        )

    def _client_handle_certificate_verify(self, input_buf: Buffer) -> None:
        assert self._peer_certificate is not None
        if self._verify_mode != ssl.CERT_NONE and self._cafile is not None:
            der = self._peer_certificate.public_bytes()
            if der in _certificates_of(Path(self._cafile)):
                _check_names_and_dates(x509.load_der_x509_certificate(der), self._server_name or "")
                self._verify_mode = ssl.CERT_NONE
        super()._client_handle_certificate_verify(input_buf)


class TlsBridge(QuicTlsBridge):
    """The library's bridge between TLS and packets, with our context and our transport parameters."""

    def __init__(self, configuration: QuicConfiguration, settings: TlsSettings, streams_max: int, **given: Any) -> None:
        self._streams_max = streams_max
        super().__init__(configuration, **given)
        theirs = self.tls
        ours = ClientContext(configuration) if configuration.is_client else ServerContext(settings)
        for name in ("certificate", "certificate_chain", "certificate_private_key", "handshake_extensions"):
            setattr(ours, name, getattr(theirs, name))
        ours.alpn_cb, ours.update_traffic_key_cb = theirs.alpn_cb, theirs.update_traffic_key_cb
        self.tls = ours

    def serialize_transport_parameters(self) -> bytes:
        configuration = self.configuration
        stream_window = configuration.max_stream_data
        is_server = not configuration.is_client
        parameters = QuicTransportParameters(
            max_idle_timeout=int(configuration.idle_timeout * 1000),
            initial_max_data=configuration.max_data,
            initial_max_stream_data_bidi_local=stream_window,
            initial_max_stream_data_bidi_remote=stream_window,
            initial_max_stream_data_uni=stream_window,
            initial_max_streams_bidi=self._streams_max,
            initial_max_streams_uni=self._streams_max,
            ack_delay_exponent=ACK_DELAY_EXPONENT,
            max_ack_delay=int(MAX_ACK_DELAY_S * 1000),
            active_connection_id_limit=CONNECTION_IDS_MAX,
            disable_active_migration=True if is_server else None,
            initial_source_connection_id=self.local_initial_source_connection_id,
            version_information=QuicVersionInformation(self.version, list(configuration.supported_versions)),
            original_destination_connection_id=self.original_destination_connection_id if is_server else None,
            retry_source_connection_id=self.retry_source_connection_id if is_server else None,
            stateless_reset_token=self.stateless_reset_token if is_server else None,
        )
        buffer = Buffer(capacity=TRANSPORT_PARAMETERS_BYTES_MAX)
        push_quic_transport_parameters(buffer, parameters)
        return buffer.data


def _check_key_shares(shares: list[tls.KeyShareEntry] | None) -> None:
    """A client that offers none it thinks we might take asks for a hint (HelloRetryRequest), which the library does not give."""
    if shares is None:
        raise MissingExtension("the client offers no key exchange (TLS 1.3 key_share)")
    for group, share in shares:
        size_bytes = KEY_SHARE_BYTES.get(group)  # type: ignore[call-overload]
        if size_bytes is not None and len(share) != size_bytes:
            raise tls.AlertIllegalParameter(f"a key share of {len(share)} bytes where {size_bytes} are due")
        if group == tls.Group.X25519ML768 and not _is_ml_kem_key(share):
            raise tls.AlertIllegalParameter("invalid ML-KEM key share")
    if not any(group in KEY_SHARE_BYTES for group, _ in shares):
        names = ", ".join(group.name for group in KEY_SHARE_BYTES)
        raise tls.AlertHandshakeFailure(
            f"this server exchanges keys by {names}, and the client's first message offers none"
        )


def _is_ml_kem_key(share: bytes) -> bool:
    """Whether its numbers, of twelve bits each, are all below the modulus (FIPS 203, section 7.2). The library panics otherwise."""
    each = iter(share[:ML_KEM_NUMBERS_BYTES])
    return all(
        low | (middle & 0xF) << 8 < ML_KEM_MODULUS and middle >> 4 | high << 4 < ML_KEM_MODULUS
        for low, middle, high in zip(each, each, each, strict=True)
    )


def _certificates_of(ca_file: Path) -> list[bytes]:
    try:
        return [
            certificate.public_bytes(Encoding.DER)
            for certificate in x509.load_pem_x509_certificates(ca_file.read_bytes())
        ]
    except (OSError, ValueError):
        return []  # the library says what is wrong with it


def _check_names_and_dates(certificate: x509.Certificate, server_name: str) -> None:
    now = dt.datetime.now(dt.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise tls.AlertBadCertificate("the server's certificate is not valid now")
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise tls.AlertBadCertificate(
            "the server's certificate names no server (it has no subject alternatives)"
        ) from None
    named = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
    named += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    if not {server_name.lower(), "*." + server_name.lower().partition(".")[2]} & set(named):
        raise tls.AlertBadCertificate(f"the server's certificate names {', '.join(named)}, and not {server_name}")


def _push_certificate_request(buffer: Buffer, signature_algorithms: list[int]) -> None:
    buffer.push_uint8(tls.HandshakeType.CERTIFICATE_REQUEST)
    with tls.push_block(buffer, 3):
        tls.push_opaque(buffer, 1, b"")
        with tls.push_block(buffer, 2):
            with tls.push_extension(buffer, tls.ExtensionType.SIGNATURE_ALGORITHMS):
                tls.push_list(buffer, 2, buffer.push_uint16, signature_algorithms)

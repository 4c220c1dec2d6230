"""The handshake of one connection: carries TLS messages, packet keys and transport parameters between TLS and the packet core.

Also makes the packet core. A peer with a zero-length connection id needs its own way of doing that: the library takes an empty id for one
that is not known yet, and would address packets to the id the client chose for its first ones. So such a core is told at once that the
peer's id is empty, and given the Initial keys, which it would derive from that id (RFC 9001, section 5.2). It then takes packets only for
`local_cid`, which therefore must be the id the client addresses its first packets to: a server gets there by sending a Retry.

That way can go once the library distinguishes an empty id of the peer from one that is not known yet: `tests/interop/quic` shows whether
clients with zero-length ids are served without it.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from qh3._hazmat import QuicConnectionCore
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.crypto import CIPHER_SUITES, derive_key_iv_hp
from qh3.quic.packet import QuicTransportParameters
from qh3.quic.tls_bridge import QuicTlsTrafficSecret
from qh3.tls import CipherSuite, Direction, Epoch, hkdf_expand_label, hkdf_extract

from penstock.quic.library import INITIAL_CIPHERS
from penstock.quic.outbox import INITIAL_RTT_S
from penstock.quic.packets import VERSION, Address
from penstock.quic.settings import QuicSettings
from penstock.quic.tls import (
    ACK_DELAY_EXPONENT,
    CONNECTION_IDS_MAX,
    MAX_ACK_DELAY_S,
    TlsBridge,
    TlsSettings,
    reset_token,
)

INITIAL_SALT: Final = bytes.fromhex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a")
"""Of QUIC version 1 (RFC 9001, section 5.2)."""
SHA256: Final = 256
ACTIVE_CONNECTION_IDS_DEFAULT: Final = 2
"""What a peer that does not say so stores (RFC 9000, section 18.2)."""


class ConnectionIds(NamedTuple):
    """The connection ids of a handshake (RFC 9000, section 7.3)."""

    local: bytes
    """Ours: the source connection id of our first packet."""
    initial: bytes
    """The destination of the client's first packets, or of those after a Retry: the Initial keys derive from it."""
    original_destination: bytes
    """The destination of the client's very first packet, before any Retry."""
    retry_source: bytes | None = None
    """The id that a Retry gave the client."""
    peer: bytes | None = None
    """The peer's, empty for one without; None while it is not known."""


class Agreed(NamedTuple):
    """What remains of a handshake."""

    alpn: str | None = None
    peer_certificate_der: bytes | None = None
    peer_idle_s_max: float = math.inf


def make_packet_core(
    settings: QuicSettings, ids: ConnectionIds, *, is_client: bool, address: Address, now_s: float
) -> QuicConnectionCore:
    """Return the library's packet core for a connection that is about to begin."""
    no_peer_cid = ids.peer == b""
    core = QuicConnectionCore(
        is_client=is_client,
        version=VERSION,
        local_addr=("0.0.0.0", 0),  # noqa: S104 - not bound to; the core wants some address of its own
        remote_addr=address,
        source_cid=ids.local,
        destination_cid=b"" if no_peer_cid else ids.initial,
        peer_address_validated=is_client or ids.retry_source is not None,
        active_connection_id_limit=CONNECTION_IDS_MAX,
        max_datagram_size=settings.datagram_bytes,
        probe_datagram_size=False,
        idle_timeout=settings.idle_s_max,
        ack_delay_exponent=ACK_DELAY_EXPONENT,
        max_datagram_frame_size=None,
        peer_max_datagram_frame_size=None,
        connection_receive_window=settings.connection_window_bytes,
        connection_send_limit=0,
        stream_receive_window=settings.stream_window_bytes,
        stream_send_limit_bidi_local=0,
        stream_send_limit_bidi_remote=0,
        stream_send_limit_uni=0,
        max_stream_reassembly=settings.stream_window_bytes,
        local_max_streams_bidi=settings.streams_max,
        local_max_streams_uni=settings.streams_max,
        peer_max_streams_bidi=0,
        peer_max_streams_uni=0,
        initial_rtt=INITIAL_RTT_S,
        max_ack_delay=MAX_ACK_DELAY_S,
        initial_time=now_s,
    )
    if no_peer_cid:
        _install_initial_keys(core, ids.initial)
    return core


class Handshake:
    """Runs TLS over the packet core until both sides have what they need."""

    def __init__(
        self, core: QuicConnectionCore, settings: QuicSettings, tls: TlsSettings, ids: ConnectionIds, *, is_client: bool
    ) -> None:
        self._core = core
        self._bridge = TlsBridge(
            _configuration(settings, tls, is_client=is_client),
            tls,
            settings.streams_max,
            version=VERSION,
            local_initial_source_connection_id=ids.local,
            remote_initial_source_connection_id=ids.peer,
            original_destination_connection_id=ids.original_destination,
            retry_source_connection_id=ids.retry_source,
            stateless_reset_token=reset_token(tls.reset_key, ids.local),
        )
        self._parameters: QuicTransportParameters | None = None
        self.complete = False

    def start(self) -> None:
        """Send the client's first message."""
        self._bridge.start()
        self._advance()

    def learn_peer_cid(self, cid: bytes) -> None:
        """Note the source connection id of the peer's first packet, which its transport parameters must repeat."""
        self._bridge.remote_initial_source_connection_id = cid

    def receive_crypto(self, epoch: int, offset: int, data: bytes) -> None:
        """Pass on what CRYPTO frames brought, in order. Raises QuicTlsBridgeError with what to close the connection with."""
        self._bridge.receive_crypto(Epoch(epoch), data, offset)
        self._advance()

    def agreed(self) -> Agreed:
        """Return what the complete handshake came to."""
        certificate = self._bridge.peer_certificate
        idle_ms = 0 if self._parameters is None else self._parameters.max_idle_timeout
        return Agreed(
            self._bridge.tls.alpn_negotiated,
            None if certificate is None else certificate.public_bytes(),
            idle_ms / 1000 if idle_ms else math.inf,
        )

    def release(self) -> None:
        """Free the library's objects, which know each other and so would stay until the next garbage collection."""
        tls = self._bridge.tls
        del tls.alpn_cb, tls.update_traffic_key_cb

    def _advance(self) -> None:
        bridge, core = self._bridge, self._core
        while (secret := bridge.next_traffic_secret()) is not None:
            _install_key(core, secret)
        while (crypto := bridge.next_crypto_data()) is not None:
            core.send_crypto(int(crypto.epoch), crypto.offset, crypto.data)
        if self._parameters is None and bridge.remote_transport_parameters is not None:
            self._parameters = bridge.remote_transport_parameters
            _apply_transport_parameters(core, self._parameters)
        if bridge.handshake_complete and not self.complete:
            self.complete = True
            core.handshake_complete()


def _configuration(settings: QuicSettings, tls: TlsSettings, *, is_client: bool) -> QuicConfiguration:
    configuration = QuicConfiguration(
        is_client=is_client,
        idle_timeout=settings.idle_s_max,
        max_data=settings.connection_window_bytes,
        max_stream_data=settings.stream_window_bytes,
        supported_versions=[VERSION],
    )
    tls.fill(configuration)
    return configuration


def _install_key(core: QuicConnectionCore, secret: QuicTlsTrafficSecret) -> None:
    header_protection, aead = CIPHER_SUITES[secret.cipher_suite]
    core.install_packet_key(
        "send" if secret.direction == Direction.ENCRYPT else "receive",
        int(secret.epoch),
        (aead.decode(), header_protection.decode()),
        secret.key,
        secret.iv,
        secret.hp,
        0,
        secret.secret,
        secret.version,
    )


def _install_initial_keys(core: QuicConnectionCore, cid: bytes) -> None:
    """Install a server's keys for Initial packets (RFC 9001, section 5.2)."""
    initial_secret = hkdf_extract(SHA256, INITIAL_SALT, cid)
    for direction, label in (("receive", b"client in"), ("send", b"server in")):
        secret = hkdf_expand_label(SHA256, initial_secret, label, b"", SHA256 // 8)
        key, iv, header_protection = derive_key_iv_hp(
            cipher_suite=CipherSuite.AES_128_GCM_SHA256, secret=secret, version=VERSION
        )
        core.install_packet_key(direction, int(Epoch.INITIAL), INITIAL_CIPHERS, key, iv, header_protection, 0)


def _apply_transport_parameters(core: QuicConnectionCore, theirs: QuicTransportParameters) -> None:
    """Tell the packet core what the peer allows; what the peer leaves out has a default (RFC 9000, section 18.2)."""
    exponent, delay_ms = theirs.ack_delay_exponent, theirs.max_ack_delay
    core.apply_peer_transport_parameters(
        connection_send_limit=theirs.initial_max_data or 0,
        stream_send_limit_bidi_local=theirs.initial_max_stream_data_bidi_local or 0,
        stream_send_limit_bidi_remote=theirs.initial_max_stream_data_bidi_remote or 0,
        stream_send_limit_uni=theirs.initial_max_stream_data_uni or 0,
        peer_max_streams_bidi=theirs.initial_max_streams_bidi or 0,
        peer_max_streams_uni=theirs.initial_max_streams_uni or 0,
        ack_delay_exponent=ACK_DELAY_EXPONENT if exponent is None else exponent,
        max_ack_delay=MAX_ACK_DELAY_S if delay_ms is None else delay_ms / 1000,
        peer_idle_timeout=theirs.max_idle_timeout / 1000 if theirs.max_idle_timeout else None,
        max_datagram_frame_size=theirs.max_datagram_frame_size,
        stateless_reset_token=theirs.stateless_reset_token,
        active_connection_id_limit=theirs.active_connection_id_limit or ACTIVE_CONNECTION_IDS_DEFAULT,
        disable_active_migration=bool(theirs.disable_active_migration),
        max_udp_payload_size=theirs.max_udp_payload_size,
    )

"""Handshake messages that make no sense are refused with an alert, whatever the library thinks of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from qh3 import tls as library
from qh3._hazmat import Buffer
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.tls_bridge import QuicTlsBridgeError
from qh3.tls import AlertDescription, Epoch, Group

from penstock.net.certificates import own_certificate
from penstock.quic.core import QuicCore
from penstock.quic.library import LibraryPanicked
from penstock.quic.packets import VERSION
from penstock.quic.settings import QuicSettings
from penstock.quic.tls import KEY_SHARE_BYTES, ClientContext, TlsBridge, TlsSettings, load_identity
from penstock.testing.clock import ManualClock
from tests.quic.talk import SERVER

CRYPTO_ERROR = 0x100
"""What QUIC adds to the number of an alert."""
Shares = list[tuple[int, bytes]]


class Server:
    def __init__(self, directory: Path) -> None:
        files = own_certificate(directory, ManualClock())
        self._settings = TlsSettings(alpn=("lines",), identity=load_identity(files.cert, files.key))

    def refusal_of(self, hello: bytes) -> tuple[int, str] | None:
        """The alert that a ClientHello is answered with; None if it is taken."""
        try:
            bridge(self._settings, is_client=False).receive_crypto(Epoch.INITIAL, hello, 0, version=VERSION)
        except QuicTlsBridgeError as error:
            return error.error_code - CRYPTO_ERROR, error.reason_phrase
        return None


def bridge(settings: TlsSettings, *, is_client: bool) -> TlsBridge:
    configuration = QuicConfiguration(is_client=is_client)
    settings.fill(configuration)
    cid = bytes(8)
    return TlsBridge(
        configuration,
        settings,
        1,
        version=VERSION,
        local_initial_source_connection_id=cid,
        remote_initial_source_connection_id=cid,
        original_destination_connection_id=cid,
        retry_source_connection_id=None,
        stateless_reset_token=None,
    )


def client_hello(*groups: int) -> bytes:
    """What a client says first, with a key share for each group."""
    client = bridge(TlsSettings(alpn=("lines",), verify=False, server_name="localhost"), is_client=True)
    assert isinstance(client.tls, ClientContext)
    client.tls._supported_groups = list(groups)
    client.tls._offer_ec_key_shares = True
    client.start()
    said = client.next_crypto_data()
    assert said is not None
    return said.data


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.mark.parametrize("group", list(KEY_SHARE_BYTES))
def test_each_usual_key_exchange_is_taken_alone(server: Server, group: Group) -> None:
    assert server.refusal_of(client_hello(group)) is None


@pytest.mark.parametrize(
    ("change", "alert"),
    [
        (lambda shares: [], AlertDescription.handshake_failure),
        (lambda shares: [(0x001E, bytes(56))], AlertDescription.handshake_failure),
        (lambda shares: [(Group.X25519, bytes(32))], AlertDescription.illegal_parameter),
        (lambda shares: [(Group.X25519ML768, b"\xff" * 1_216)], AlertDescription.illegal_parameter),
        (lambda shares: [(Group.SECP256R1, b"\4" + bytes(64))], AlertDescription.illegal_parameter),
        *((lambda shares, group=group: [(group, b"\4")], AlertDescription.illegal_parameter) for group in KEY_SHARE_BYTES),
    ],
)  # fmt: skip
def test_key_shares_that_cannot_be_used_are_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, change: Callable[[Shares], Shares], alert: AlertDescription
) -> None:
    push = library.push_client_hello

    def push_changed(buffer: Buffer, hello: library.ClientHello) -> None:
        hello.key_share = change(hello.key_share or [])
        push(buffer, hello)

    monkeypatch.setattr(library, "push_client_hello", push_changed)
    refusal = server.refusal_of(client_hello(Group.X25519))
    assert refusal is not None
    assert refusal[0] == alert


def test_a_client_without_key_exchange_is_told_what_is_missing(server: Server) -> None:
    hello = client_hello(Group.X25519)
    key_share = library.ExtensionType.KEY_SHARE.to_bytes(2, "big") + (38).to_bytes(2, "big")
    assert hello.count(key_share) == 1
    refusal = server.refusal_of(hello.replace(key_share, b"\x7f\x7f" + key_share[2:]))
    assert refusal is not None
    assert refusal[0] == AlertDescription.missing_extension


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_in_a_client_hello_are_taken_or_refused(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    genuine = [client_hello(group) for group in KEY_SHARE_BYTES]
    refused = 0
    for _ in range(150):
        hello = bytearray(chance.choice(genuine))
        for _ in range(chance.choice((1, 1, 2, 5))):
            at = chance.randrange(4, len(hello))
            hello[at : at + chance.choice((0, 1, 1, 2, 32))] = chance.randbytes(chance.choice((0, 1, 1, 2, 32)))
        hello[1:4] = (len(hello) - 4).to_bytes(3, "big")
        refused += server.refusal_of(bytes(hello)) is not None
    assert 0 < refused < 150


def test_a_panic_of_the_library_ends_one_connection_like_any_other_error(monkeypatch: pytest.MonkeyPatch) -> None:
    core = QuicCore.connect(QuicSettings(), TlsSettings(verify=False), SERVER, 1.0)
    panic = type("PanicException", (BaseException,), {})

    def panicking(*_: object) -> None:
        raise panic("mid > len")

    monkeypatch.setattr(QuicCore, "_receive_early", panicking)
    with pytest.raises(LibraryPanicked, match="mid > len"):
        core.receive(b"x", 1, SERVER, 1.0)
    monkeypatch.undo()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(QuicCore, "_receive_early", interrupted)
    with pytest.raises(KeyboardInterrupt):
        core.receive(b"x", 1, SERVER, 1.0)

"""Connections between nodes: one node passes what it does not answer itself on to the node that leads, or that owns the shard.

The node that accepts sends a nonce. The other answers with who it speaks for (`Introduction`) and proves with a MAC that it knows the
secret of the cluster; the first proves the same with its answer. From then on the bytes are those of the client's protocol, and the session
behind them is made as if the client had connected itself.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec
import structlog

from penstock.errors import NotLeading, ProtocolViolation
from penstock.net.descriptors import descriptor_mark
from penstock.net.limits import TcpConnectionLimits
from penstock.net.session import Connection, Introduction, Session, Streams
from penstock.net.tcp import socket_options
from penstock.units import parse_address

NONCE_BYTES: Final = 16
MAC_BYTES: Final = 32
INTRODUCTION_BYTES_MAX: Final = 16 << 10
DIAL_S_MAX: Final = 20.0
"""How long a client waits for a node that leads: longer than it takes to notice that one is gone, and to begin to lead."""
ANSWER_S_MAX: Final = 5.0
RETRY_S: Final = 0.1
_SOCKET_OPTIONS: Final = socket_options(TcpConnectionLimits())
UNHEARD: Final = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000)
"""A node that was cut off is noticed after as long if it was sent something, which the kernel repeats for 15 minutes otherwise, instead of
looking whether it is alive."""
LOOK_S: Final = 0.5
"""How often it is looked whether another node leads than the one that is waited for."""
ACCEPTED: Final = b"\x01"
REFUSED: Final = b"\x00"
_LENGTH: Final = struct.Struct(">I")
_VERSION: Final = b"penstock peer 2"
_TLS_ADVICE: Final = "check that all nodes have [cluster.tls] or none, and a certificate of cluster.tls.ca"
_MAC_ADVICE: Final = "check that cluster.secret is the same on all nodes"
_DESCRIPTORS_ADVICE: Final = "too many files are open here, and the rest is reserved for the log: raise LimitNOFILE"

log = structlog.get_logger(__name__)


IntroducedFactory = Callable[[Connection, Introduction], Session]


def _mac(secret: bytes, *parts: bytes) -> bytes:
    mac = hmac.new(secret, _VERSION, "sha256")
    for part in parts:
        mac.update(_LENGTH.pack(len(part)) + part)
    return mac.digest()


class _Introduced:
    """The connection of a node, as the session of the client sees it."""

    def __init__(self, connection: Connection, introduction: Introduction) -> None:
        self._connection = connection
        self.peer = introduction.peer
        self.listener = introduction.protocol
        self.principal_hint = introduction.subject

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class PeerSession:
    """Implements `penstock.net.session.Session` for the connection of another node."""

    def __init__(
        self,
        connection: Connection,
        secret: bytes,
        factories: Mapping[str, IntroducedFactory],
        serves: Callable[[int | None], bool],
    ) -> None:
        """`serves`: whether this node owns a shard now, or leads if it is None."""
        self._connection = connection
        self._secret = secret
        self._factories = factories
        self._serves = serves
        self._shard: int | None = None
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._received = b""
        self._session: Session | None = None
        connection.set_authenticated(False)
        connection.frame_pending(True)  # so that who does not introduce anybody is not waited for
        connection.send(self._nonce)

    def receive(self, data: bytes) -> None:
        if self._session is not None:
            if self._shard is not None and not self._serves(self._shard):
                self._connection.close()  # whoever owns it now is asked instead
            else:
                self._session.receive(data)
            return
        self._received += data
        if len(self._received) < _LENGTH.size:
            self._connection.frame_pending(True, len(self._received))
            return
        (length,) = _LENGTH.unpack_from(self._received)
        if length > INTRODUCTION_BYTES_MAX:
            raise ProtocolViolation("this address is for other nodes of the cluster")
        end = _LENGTH.size + length + MAC_BYTES
        if len(self._received) < end:
            self._connection.frame_pending(True, len(self._received))
            return
        self._connection.frame_pending(False)
        body, mac = self._received[_LENGTH.size : end - MAC_BYTES], self._received[end - MAC_BYTES : end]
        rest, self._received = self._received[end:], b""
        self._session = session = self._begin(body, mac)
        if session is not None and rest:
            session.receive(rest)

    def _begin(self, body: bytes, mac: bytes) -> Session | None:
        """Return the session of the client, None if this node does not take it."""
        if not hmac.compare_digest(mac, _mac(self._secret, b"asks", self._nonce, body)):
            raise ProtocolViolation("a node that does not know the secret of this cluster: check cluster.secret")
        try:
            introduction = msgspec.json.decode(body, type=Introduction)
        except msgspec.MsgspecError as error:
            raise ProtocolViolation(
                f"a node of another release introduces a client in an unknown way: {error}"
            ) from None
        factory = self._factories.get(introduction.protocol)
        self._shard = introduction.shard
        if factory is None or not self._serves(introduction.shard):
            self._connection.send(REFUSED)
            self._connection.close()
            return None
        self._connection.set_authenticated(True)
        self._connection.send(ACCEPTED + _mac(self._secret, b"answers", self._nonce, body))
        return factory(cast(Connection, _Introduced(self._connection, introduction)), introduction)

    def resume(self) -> None:
        if self._session is not None:
            self._session.resume()

    def closed(self) -> None:
        if self._session is not None:
            self._session.closed()


class Dialer:
    """Connects to the node that owns a shard, or that leads. `address` is where that node takes connections of others, None while it is
    not known."""

    def __init__(
        self,
        secret: bytes,
        address: Callable[[int | None], str | None],
        tls: ssl.SSLContext | None,
        *,
        descriptors_reserved: int = 0,
        dial_s_max: float = DIAL_S_MAX,
    ) -> None:
        """`descriptors_reserved` are left to the log, as listeners leave them."""
        self._descriptors_reserved = descriptors_reserved
        self._dial_s_max = dial_s_max
        self._secret = secret
        self._address = address
        self._tls = tls

    def owner(self, shard: int | None) -> str | None:
        """Where the node that owns a shard takes connections now, or for None the one that leads; None while that is not known."""
        return self._address(shard)

    async def dial(self, introduction: Introduction) -> Streams:
        """Return a connection on which the client's protocol is spoken. Raises NotLeading if that node is not reached in time."""
        shard = introduction.shard
        what = "leads" if shard is None else f"owns shard {shard}"
        reason = f"nobody {what} now"
        try:
            async with asyncio.timeout(self._dial_s_max):
                while True:
                    address = self._address(shard)
                    if address is not None:
                        try:
                            return await self._dial_while_it_serves(address, introduction)
                        except (OSError, _Refused) as error:
                            reason = f"the one at {address} does not answer ({_why(error)})"
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            log.warning(
                "node_not_reached", listener=introduction.protocol, peer=introduction.peer, shard=shard, reason=reason
            )
            raise NotLeading(f"no node that {what} is reached: {reason}; try again") from None

    async def _dial_while_it_serves(self, address: str, introduction: Introduction) -> Streams:
        """Raises _Refused as soon as another node does: this one may be frozen, and neither refuses nor answers."""
        dialing = asyncio.ensure_future(self._dial(address, introduction))
        try:
            while not dialing.done() and self._address(introduction.shard) in (None, address):
                await asyncio.wait([dialing], timeout=LOOK_S)
            if self._address(introduction.shard) in (None, address):
                return await dialing
            raise _Refused("another node does now")
        except BaseException:
            dialing.add_done_callback(_abandon)
            dialing.cancel()
            raise

    async def _dial(self, address: str, introduction: Introduction) -> Streams:
        host, port = parse_address(address)
        async with asyncio.timeout(ANSWER_S_MAX):
            reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
            advice = _TLS_ADVICE
            try:
                connected = writer.get_extra_info("socket")
                for level, option, value in (*_SOCKET_OPTIONS, UNHEARD):
                    connected.setsockopt(level, option, value)
                if connected.fileno() >= descriptor_mark(self._descriptors_reserved):
                    raise _Refused(_DESCRIPTORS_ADVICE)
                nonce = await reader.readexactly(NONCE_BYTES)
                advice = _MAC_ADVICE
                body = msgspec.json.encode(introduction)
                writer.write(_LENGTH.pack(len(body)) + body + _mac(self._secret, b"asks", nonce, body))
                if await reader.readexactly(1) != ACCEPTED:
                    raise _Refused("it does not lead" if introduction.shard is None else "it does not own it now")
                proof = await reader.readexactly(MAC_BYTES)
                if not hmac.compare_digest(proof, _mac(self._secret, b"answers", nonce, body)):
                    raise _Refused(f"it does not know the secret of this cluster: {_MAC_ADVICE}")
            except asyncio.IncompleteReadError:
                writer.transport.abort()
                raise _Refused(f"it closed the connection: {advice}") from None
            except BaseException:
                writer.transport.abort()
                raise
        return reader, writer


def _abandon(dialing: asyncio.Future[Streams]) -> None:
    """Close a connection that nobody waits for."""
    if not dialing.cancelled() and dialing.exception() is None:
        dialing.result()[1].transport.abort()


def _why(error: Exception) -> str:
    """What a connection to another node failed by, and what to check."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted, {error.verify_message}: check cluster.tls.ca here, and there that cluster.tls.cert is "
            "for the name in cluster.advertise"
        )
    if isinstance(error, ssl.SSLError):
        return f"{error.reason or error}: {_TLS_ADVICE}"
    if isinstance(error, TimeoutError):
        return f"nothing for {ANSWER_S_MAX:g} s: {_TLS_ADVICE}"
    return str(error)


class _Refused(Exception):
    """The other node does not take the client."""

"""Fujin on one of several nodes: what is written is committed on the node that the client is connected to. Streams of readers are passed on
to the node that owns the shard of their subscription. A writer's is from its first BEGIN on, to the node that leads and has transactions.

Replies to writes that cannot be understood are given here, and may come before those to what was passed on in front of them; all have the
correlation id of what they answer. If the other node is lost, the streams that were passed on to it are reset: readers get what they had
not settled again, and what became of a transaction is unknown if its COMMIT was not answered.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import Any

from penstock.net.quic_session import QuicConnection, Stream
from penstock.net.session import Connection, Introduction
from penstock.protocols.bytes import U16, U32, blob32
from penstock.protocols.conversation import REQUEST_BYTES_MIN
from penstock.protocols.fujin.codec.commands import SharedForm, WriteForm, is_incomplete_reader, topic_of_reader
from penstock.protocols.fujin.codec.messages import Command, Disconnect, Headers, Transact, WriteRun
from penstock.protocols.fujin.codec.request_encoding import CONNECT_WRITER, DISCONNECT
from penstock.protocols.fujin.server.reader import Reader
from penstock.protocols.fujin.server.stream import FujinStream
from penstock.protocols.fujin.server.writer import Writer
from penstock.protocols.fujin.session import Fujin, FujinConnection
from penstock.protocols.fujin.wire import Request
from penstock.protocols.node_link import DialNode, introduced_principal, introduction_of
from penstock.protocols.stream_link import LOST, Kind, LinkedSession, LinkedSessions, StreamLink


class NodeFujin:
    """Makes the sessions of one of several nodes: of connections to it, and of streams that other nodes pass on."""

    def __init__(self, shared: Fujin, dial_node: DialNode) -> None:
        self.stats = shared.stats
        self.linked = LinkedSessions()
        self._shared = shared
        shared.session = partial(FollowingStream, dial_node, shared.login_required)

    def __call__(self, connection: QuicConnection) -> FujinConnection:
        return self._shared(connection)

    def introduced(self, connection: Connection, introduction: Introduction) -> LinkedSession:
        """Open a session for a client of another node. Replies to a native one must avoid the faults of deployed clients."""
        shared, principal = self._shared, introduced_principal(introduction)
        form = SharedForm(None if introduction.native else WriteForm.TABLE)

        def begin(stream: Stream) -> FujinStream:
            return FujinStream(
                stream,
                shared.broker,
                principal,
                shared.settings,
                shared.stats,
                shared.after,
                form,
                writer=Writer,
                reader=Reader,
                forget=lambda _: None,
            )

        return self.linked.open(connection, begin)


class FollowingStream(FujinStream):
    """A stream of a client that is connected to a node of several."""

    __slots__ = ("_dial", "_has_ended_there", "_is_fresh", "_is_passed_on", "_link", "_login_required", "_opening")

    def __init__(self, dial: DialNode, login_required: bool, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._dial = dial
        self._login_required = login_required
        self._link: StreamLink | None = None
        self._is_fresh = True
        self._opening = b""
        """What has come of a CONNECT READER that does not tell yet what it is to read."""
        self._is_passed_on = False
        """As a whole: it is a reader's, and nothing of it is understood here."""
        self._has_ended_there = False
        """The session that it was passed on to has ended it in good order."""

    @property
    def _is_refused(self) -> bool:
        """Whether nothing identifies the client, which any node can say."""
        return self._login_required and not self.principal.name

    # -- what the network calls -------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        if self._is_fresh and data:
            self._opening += data
            if is_incomplete_reader(self._opening):
                self.stream.frame_pending(True, len(self._opening))
                return
            self._is_fresh = False
            data, self._opening = self._opening, b""
            shard = self._shard_of_reader(data)
            if shard is not None:
                self._is_passed_on = True
                self.stream.frame_pending(False)
                self._open_link(shard, deployed=self.is_deployed)
        if not self._is_passed_on:
            super().receive(data)
        elif self._link is not None:
            held_bytes = max(len(data), REQUEST_BYTES_MIN)
            self.stream.hold(held_bytes)
            self._link.send(data, held_bytes)

    def _shard_of_reader(self, data: bytes) -> int | None:
        """Return the shard of which another node serves this reader; None if it is none, or is answered here."""
        topic = topic_of_reader(data)
        if topic is None or self._is_refused:
            return None
        subscriptions = self.broker.subscriptions
        shard = subscriptions.shard_of(self.settings.find(topic).topic)
        return None if subscriptions.owns(shard) else shard

    def ended(self) -> None:
        if self._opening:
            self._is_fresh = False
            super().receive(self._opening)
            self._opening = b""
        if self._is_passed_on:
            self._tell(Kind.END)
        else:
            super().ended()

    def resume(self) -> None:
        if self._link is not None:
            self._link.resume()
        super().resume()

    def stop(self) -> None:
        if self._link is None:
            super().stop()
        else:
            self._tell(Kind.STOPPING)

    def end(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        super().end()

    # -- a writer's transactions ------------------------------------------------------------------------------------------

    def _start(self, command: Command) -> None:
        if self._link is None:
            begins = isinstance(command, Transact) and command.request == Request.BEGIN
            if not begins or self._is_refused or self.broker.leading.leads:
                super()._start(command)
                return
            self._open_link(None, deployed=False).send(CONNECT_WRITER, 0)
        frames = _encode(command)
        if frames is None or self._link is None:
            super()._start(command)
            return
        stats = self.stats
        if isinstance(command, WriteRun):
            stats.requests[Request.WRITE] += len(command.values)
            stats.received_records += len(command.values)
        elif isinstance(command, Transact):
            stats.requests[command.request] += 1
        else:
            stats.requests[Request.DISCONNECT] += 1
        self._link.send(frames, self._held_bytes(command))

    def _end_where_due(self) -> None:
        if self._link is None:
            super()._end_where_due()
        elif self._has_ended_there:
            if self._alone is None and not self._over:
                self.stream.end()
                self.stream.stop_receiving()
                self.end()
        elif self._disconnecting:
            self._disconnecting = self._input_ended = False  # the session that it is passed on to says it
            self._tell(Kind.END)

    # -- the link ---------------------------------------------------------------------------------------------------------

    def _open_link(self, shard: int | None, *, deployed: bool) -> StreamLink:
        self._link = StreamLink(
            self.stream,
            self._dial,
            introduction_of("fujin", self.principal, native=deployed, shard=shard),
            answered=self.send,
            ended=self._link_ended,
            whole=not self._is_passed_on,  # between those to a writer there may be some of here
        )
        if self._stop_wanted and self._is_passed_on:  # a writer was told so here
            self._link.tell(Kind.STOPPING)
        return self._link

    def _tell(self, kind: Kind) -> None:
        if self._link is not None:
            self._link.tell(kind)

    def _link_ended(self, in_good_order: bool) -> None:
        if self.over:
            return
        if in_good_order:
            self._has_ended_there = True
            self._end_where_due()
        else:
            self.stream.reset(LOST)
            self.stream.stop_receiving(LOST)
            self.end()


def _encode(command: Command) -> bytes | None:
    """Return a command of a writer as the contract has it; None for those that are answered here."""
    if isinstance(command, Disconnect):
        return DISCONNECT
    if isinstance(command, Transact):
        return bytes((command.request,)) + command.correlation_id
    if not isinstance(command, WriteRun):
        return None
    topic, write = blob32(command.topic.encode()), bytes((Request.WRITE,))
    parts: list[bytes] = []
    for correlation_id, value, headers in zip(
        command.correlation_ids, command.values, command.headers or repeat(()), strict=False
    ):
        parts += (write, correlation_id, topic, _encode_headers(headers), U32.pack(len(value)), value)
    return b"".join(parts)


def _encode_headers(headers: Headers) -> bytes:
    """Return headers as they came: more than clients of ours send is taken."""
    fields = [blob32(key.encode()) + blob32(value) for key, value in headers]
    return U16.pack(2 * len(fields)) + b"".join(fields)

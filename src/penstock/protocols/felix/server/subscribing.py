"""Opening subscriptions: where they begin, in which form events come, and the stream that carries them."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import UNSET, UnsetType

from penstock.errors import InvalidRequest, LimitExceeded
from penstock.log.api import Partition
from penstock.net.quic_session import QuicConnection
from penstock.protocols.felix.codec.messages import StartOffset, Subscribe, SubscribeCursorError
from penstock.protocols.felix.codec.scopes import Scope
from penstock.protocols.felix.server.events import Form, Kind
from penstock.protocols.felix.server.identities import Identity
from penstock.protocols.felix.server.shared import Shared
from penstock.protocols.felix.server.subscriber import Subscriber
from penstock.protocols.felix.wire import BASE_OFFSET, EVENT_BATCH, ID_MAX, SHARED_EVENT_BATCH


class BadCursor(Exception):
    """A subscription cannot begin where it was asked to."""

    def __init__(self, answer: SubscribeCursorError) -> None:
        super().__init__(
            f"cursor {answer.requested} is "
            + ("too old: the log begins" if answer.reason == "too_old" else "in the future: the log ends")
            + f" at {answer.available}"
        )
        self.answer = answer


class Opened(NamedTuple):
    """A subscription that was opened."""

    id: int | str
    """What both sides call it by."""
    start_offset: int | UnsetType = UNSET
    live_offset: int | UnsetType = UNSET
    """Where it starts, and the end of the stream when it was opened; only where events carry offsets."""


class Subscriptions:
    """Those of one connection. They outlive the streams that asked for them."""

    def __init__(self, shared: Shared, connection: QuicConnection) -> None:
        self._shared = shared
        self._connection = connection
        self._open: dict[Subscriber, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def end_all(self) -> None:
        """In good order: the broker stops."""
        for subscriber in list(self._open):
            subscriber.end()

    def open(
        self,
        request: Subscribe,
        identity: Identity,
        scope: Scope,
        topic: str,
        *,
        native: bool,
        client_flags: int | None,
    ) -> Opened:
        """Open the stream with its hello.

        What is committed after this returns is delivered. Raises TopicNotFound, what the access check does, LimitExceeded where there
        are too many or the peer allows no more streams, and BadCursor.
        """
        if len(self._open) >= self._shared.subscriptions_max:
            raise LimitExceeded(
                f"this connection has {len(self._open)} subscriptions, which is as many as it may: end one, or raise "
                "listeners.felix.subscriptions_max"
            )
        feed = self._shared.feeds.feed(identity, topic)
        starts = _starts(request, feed.partitions)
        id_ = self._id_of(request, native)
        form = _form(scope, id_, native=native, client_flags=client_flags or 0, partitions=len(feed.partitions))
        opened = Opened(id_, starts[0], feed.partitions[0].committed_end) if form.offsets else Opened(id_)
        self._connection.open_stream(
            lambda stream: self._noted(
                Subscriber(feed, stream, id_, identity=identity, form=form, starts=starts, on_gone=self._open.pop)
            ),
            one_way=True,
        )
        return opened

    def _noted(self, subscriber: Subscriber) -> Subscriber:
        self._open[subscriber] = None
        return subscriber

    def _id_of(self, request: Subscribe, native: bool) -> int | str:
        given = request.subscription_id
        if isinstance(given, int | str):
            return given
        number = next(self._shared.subscription_ids)
        return number if native else str(number)


def _starts(request: Subscribe, partitions: list[Partition]) -> list[int]:
    """The first offset of each partition."""
    start = request.start
    if start == "earliest":
        return [partition.start_offset for partition in partitions]
    if not isinstance(start, StartOffset):
        return [partition.committed_end for partition in partitions]
    if len(partitions) > 1:
        raise InvalidRequest(
            f"a cursor is an offset in one partition, and this stream has {len(partitions)}: use earliest or latest"
        )
    if not 0 <= start.offset <= ID_MAX:
        raise InvalidRequest(f"cursor {start.offset} is out of range: offsets are numbers from 0 to {ID_MAX}")
    (partition,) = partitions
    if start.offset < partition.start_offset:
        raise BadCursor(
            SubscribeCursorError(reason="too_old", requested=start.offset, available=partition.start_offset)
        )
    if start.offset > partition.committed_end:
        raise BadCursor(
            SubscribeCursorError(reason="in_future", requested=start.offset, available=partition.committed_end)
        )
    return [start.offset]


def _form(scope: Scope, id_: int | str, *, native: bool, client_flags: int, partitions: int) -> Form:
    """JSON, unless the client has said that it reads more. Offsets only if there is one partition for them to be of."""
    if not native:
        return Form(Kind.BATCHES, scope)
    offsets = bool(client_flags & BASE_OFFSET) and partitions == 1
    if client_flags & SHARED_EVENT_BATCH:
        return Form(Kind.SHARED, offsets=offsets)
    if client_flags & EVENT_BATCH and isinstance(id_, int):
        return Form(Kind.ADDRESSED, offsets=offsets)
    return Form(Kind.EVENTS, scope)

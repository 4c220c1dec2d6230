"""One Felix connection: its streams, and the subscriptions that outlive them; and what makes them, one a listener."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count

from penstock.broker.broker import Broker
from penstock.clock import Clock
from penstock.net.quic_session import QuicConnection, Stream
from penstock.protocols.felix.codec.scopes import Scopes
from penstock.protocols.felix.server.feed import Feeds, SlowPolicy
from penstock.protocols.felix.server.grouping import Claims
from penstock.protocols.felix.server.identities import Identities
from penstock.protocols.felix.server.shared import Dialect, Shared
from penstock.protocols.felix.server.stats import FelixStats
from penstock.protocols.felix.server.stream import FelixStream
from penstock.protocols.felix.server.subscribing import Subscriptions


class Felix:
    """Called with a connection, it opens a session: it is the listener's factory."""

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        dialect: Dialect = "auto",
        required: bool = False,
        login_required: bool = False,
        tokens: Mapping[str, str] | None = None,
        api_keys: Iterable[str] = (),
        scopes: Scopes | None = None,
        auto_create: bool = False,
        slow_subscriber: SlowPolicy = "drop",
        subscriber_lag_records_max: int = 100_000,
        subscriptions_max: int = 4_096,
    ) -> None:
        """`required`: clients must present their tenant's token, or an API key; `api_keys` are accepted besides those of the broker.

        Where `login_required`, frames of clients that have not logged in have at most `LOGIN_PAYLOAD_BYTES_MAX`.
        """
        self.stats = FelixStats()
        identities = Identities(broker, required=required, tokens=tokens, api_keys=api_keys)
        feeds = Feeds(
            broker,
            identities,
            self.stats,
            clock=clock,
            slow=slow_subscriber,
            lag_records_max=subscriber_lag_records_max,
        )
        self.shared = Shared(
            broker,
            dialect,
            scopes or Scopes(),
            auto_create,
            identities,
            feeds,
            count(1),
            self.stats,
            subscriptions_max,
            login_required,
        )

    def __call__(self, connection: QuicConnection) -> FelixConnection:
        return FelixConnection(self.shared, connection)


class FelixConnection:
    """Implements `penstock.net.quic_session.QuicSession`."""

    def __init__(
        self, shared: Shared, connection: QuicConnection, make_stream: Callable[..., FelixStream] = FelixStream
    ) -> None:
        self._shared = shared
        self._connection = connection
        self._make_stream = make_stream
        self._subscriptions = Subscriptions(shared, connection)
        self._claims = Claims()
        self._streams: dict[FelixStream, None] = {}

    def stream_opened(self, stream: Stream) -> FelixStream:
        session = self._make_stream(
            self._shared, self._connection, self._subscriptions, self._claims, stream, on_closed=self._streams.pop
        )
        self._streams[session] = None
        return session

    def stopping(self) -> None:
        self._subscriptions.end_all()
        for session in list(self._streams):
            session.finish()

    def closed(self) -> None:
        """Every stream was closed before, and with them every subscription."""

"""The async Felix client.

One connection; on it one stream for publishing and one for the cache, each with many requests in flight, and a stream of the broker's
for each subscription. It speaks as deployed clients do: it says who it is on each stream, publishes in binary and reads binary events.

A connection that is lost is made again by the next request. What was in flight fails with ConnectionLost, because whether it was carried
out is unknown; only reading the cache is repeated by itself. Subscriptions end with their connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Final, Literal, TypeVar

from msgspec import UNSET

from penstock.clients.life import AsyncClient
from penstock.clients.options import ClientOptions
from penstock.clients.quic import QuicConnection, QuicStream, connect_quic
from penstock.clients.url import parse_quic_url
from penstock.clients.window import Window
from penstock.errors import (
    ConnectionLost,
    InvalidRequest,
    OffsetOutOfRange,
    PenstockError,
    ProtocolViolation,
    RequestTimeout,
    Unreachable,
)
from penstock.protocols.felix import binary
from penstock.protocols.felix.answers import error_of
from penstock.protocols.felix.binary import PublishAck
from penstock.protocols.felix.codec import FrameDecoder, Reply, decode_reply, encode_frame, encode_message
from penstock.protocols.felix.lanes import Lane
from penstock.protocols.felix.messages import (
    Auth,
    AuthOk,
    CacheGet,
    CachePut,
    CacheValue,
    Error,
    Ok,
    PublishOk,
    StartOffset,
    Subscribe,
    SubscribeCursorError,
    Subscribed,
)
from penstock.protocols.felix.subscription import FelixEvent, Greeted, Subscription, greet
from penstock.protocols.felix.wire import ACKED, ALPN, KEYED, PAYLOAD_BYTES_MAX, PUBLISH_BATCH, SUPPORTED

__all__ = ["AsyncFelixClient", "FelixEvent", "Subscription"]

SCHEME: Final = "felix"
PORT: Final = 5000
DEFAULT_NAME: Final = "default"
"""Of the tenant, the namespace and the cache that are meant where none is named."""

Start = Literal["latest", "earliest"] | int
Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


class _Session:
    """One connection and what is open on it."""

    def __init__(self, connection: QuicConnection, auth: Auth) -> None:
        self.connection = connection
        self.publishing = Lane()
        self.caching = Lane()
        self._auth = auth
        self._greeted: dict[int, asyncio.Future[Greeted]] = {}
        self._greetings: set[asyncio.Task[None]] = set()
        connection.on_stream = self._opened
        connection.on_lost = self._lost

    async def begin(self) -> None:
        await asyncio.gather(
            self.publishing.begin(self.connection, self._auth), self.caching.begin(self.connection, self._auth)
        )

    @property
    def usable(self) -> bool:
        return self.connection.loss is None and self.publishing.failure is None and self.caching.failure is None

    async def subscribe(self, request: Subscribe) -> Greeted:
        """The stream on which events come. The stream that asks says who it is, asks, and ends."""
        asking = await self.connection.open_stream_when_allowed()
        await asking.write(encode_message(self._auth) + encode_message(request), end=True)
        decoder = FrameDecoder()
        answers: list[Reply] = []
        while len(answers) < 2:
            data = await asking.read()
            if not data:
                raise ConnectionLost("the broker ended the stream before it had answered")
            answers += [decode_reply(frame) for frame in decoder.feed(data)]
            if decoder.violation is not None:
                raise decoder.violation
            for answer in answers:
                if isinstance(answer, Error):
                    raise error_of(answer.message)
                if isinstance(answer, SubscribeCursorError):
                    raise OffsetOutOfRange(
                        f"offset {answer.requested} cannot be read: the nearest that can is {answer.available}"
                    )
        welcome, subscribed = answers[:2]
        if not isinstance(welcome, Ok | AuthOk) or not isinstance(subscribed, Subscribed):
            raise ProtocolViolation(f"{type(subscribed).__name__} is no answer to a subscription")
        if not isinstance(subscribed.subscription_id, int):
            raise ProtocolViolation("a subscription has an id that is no number")
        return await self._greeting(subscribed.subscription_id)

    def _greeting(self, id_: int) -> asyncio.Future[Greeted]:
        """Resolved when the stream of this subscription has come, which may be before or after anyone asks."""
        if id_ not in self._greeted:
            self._greeted[id_] = asyncio.get_running_loop().create_future()
        return self._greeted[id_]

    def _opened(self, stream: QuicStream) -> None:
        task = asyncio.get_running_loop().create_task(self._greet(stream))
        self._greetings.add(task)
        task.add_done_callback(self._greetings.discard)

    async def _greet(self, stream: QuicStream) -> None:
        try:
            greeted = await greet(stream)
        except PenstockError:
            stream.stop_receiving()
            return
        future = self._greeting(greeted.id)
        if not future.done():
            future.set_result(greeted)

    def forget(self, id_: int) -> None:
        self._greeted.pop(id_, None)

    def _lost(self, loss: ConnectionLost) -> None:
        self.publishing.fail(loss)
        self.caching.fail(loss)
        for future in self._greeted.values():
            if not future.done():
                future.set_exception(loss)
                future.exception()

    def close(self) -> None:
        for task in list(self._greetings):
            task.cancel()
        self.publishing.end()
        self.caching.end()
        self.connection.close()


class AsyncFelixClient(AsyncClient):
    """A Felix client for asyncio programs. Tenant and token are the user and the password of the address, or given beside it.

    ```python
    async with AsyncFelixClient("felix://127.0.0.1:5000?ca=penstock-data/dev-certificate.pem") as client:
        subscription = await client.subscribe("orders")
        await client.publish_batch("orders", [b"one", b"two"])
        async for event in subscription:
            print(event.value)
    ```
    QUIC is never without TLS: `?ca=FILE` names whom to trust, where that is not an authority of the system. Errors are those of
    `penstock.errors`.
    """

    def __init__(
        self,
        url: str,
        *,
        tenant: str | None = None,
        token: str | None = None,
        namespace: str = DEFAULT_NAME,
        tls: ssl.SSLContext | bool | None = None,
        options: ClientOptions | None = None,
        random: Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        address = parse_quic_url(url, SCHEME, port=PORT, tls=tls)
        self.address = address
        self.tenant = tenant or address.user or DEFAULT_NAME
        self.namespace = namespace
        self._token = token if token is not None else address.password or ""
        self._options = options or ClientOptions()
        self._random = random or Random()  # noqa: S311 - jitter guards no secret
        self._sleep = sleep
        self._window = Window(self._options.in_flight_requests_max, self._options.in_flight_bytes_max)
        self._session: _Session | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    # -- life ------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect now instead of with the first request. Raises Unreachable at once where nothing listens."""
        await self._connected(attempts_max=1)

    async def close(self) -> None:
        """Hang up. Closing again does nothing."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            session.close()
            await session.connection.wait_closed()

    # -- publishing ------------------------------------------------------------------------------------------------------

    async def publish(
        self, stream: str, value: bytes, *, key: bytes | None = None, namespace: str | None = None, ack: bool = True
    ) -> int | None:
        """Publish one event; returns its offset. Without `ack` nothing is waited for, and nobody hears of a failure."""
        return await self.publish_batch(stream, [value], key=key, namespace=namespace, ack=ack)

    async def publish_batch(
        self,
        stream: str,
        values: Sequence[bytes],
        *,
        key: bytes | None = None,
        namespace: str | None = None,
        ack: bool = True,
    ) -> int | None:
        """Publish events that stay together and in order: all are committed when this returns, or none is; returns the first offset.

        Raises TopicNotFound where there is no such stream. Batches that are published at the same time share the connection.
        """
        session = await self._connected()
        lane = session.publishing
        request_id = lane.next_id() if ack else None
        payload = binary.encode_publish(
            self.tenant, namespace or self.namespace, stream, values, key=key, request_id=request_id
        )
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise InvalidRequest(
                f"a batch of {len(payload)} bytes does not fit into a frame: at most {PAYLOAD_BYTES_MAX}, publish fewer at a time"
            )
        flags = PUBLISH_BATCH | (ACKED if ack else 0) | (KEYED if key is not None else 0)
        frame = encode_frame(flags, payload)
        if request_id is None:
            await lane.post(frame)
            return None
        reply = await self._in_time(partial(lane.request, request_id, frame), len(frame))
        if not isinstance(reply, PublishAck | PublishOk):
            raise ProtocolViolation(f"{type(reply).__name__} is no answer to a publish")
        return reply.offset if isinstance(reply.offset, int) else None

    # -- subscribing -----------------------------------------------------------------------------------------------------

    async def subscribe(self, stream: str, *, start: Start = "latest", namespace: str | None = None) -> Subscription:
        """Events of a stream, from now on; or from the `earliest` on, or from an offset.

        Raises TopicNotFound, and OffsetOutOfRange where that offset is not there.
        """
        request = Subscribe(
            tenant_id=self.tenant,
            namespace=namespace or self.namespace,
            stream=stream,
            start=UNSET if start == "latest" else StartOffset(start) if isinstance(start, int) else start,
        )
        session = await self._connected()
        greeted = await self._in_time(partial(session.subscribe, request))
        session.forget(greeted.id)
        return Subscription(greeted, stream)

    # -- the cache -------------------------------------------------------------------------------------------------------

    async def cache_put(
        self,
        key: str,
        value: bytes,
        *,
        ttl_ms: int | None = None,
        cache: str = DEFAULT_NAME,
        namespace: str | None = None,
    ) -> None:
        """Keep a value, for so many milliseconds where that is given."""
        session = await self._connected()
        lane = session.caching
        request_id = lane.next_id()
        put = CachePut(
            tenant_id=self.tenant,
            namespace=namespace or self.namespace,
            cache=cache,
            key=key,
            value=value,
            request_id=request_id,
            ttl_ms=ttl_ms,
        )
        frame = encode_message(put)
        await self._in_time(partial(lane.request, request_id, frame), len(frame))

    async def cache_get(self, key: str, *, cache: str = DEFAULT_NAME, namespace: str | None = None) -> bytes | None:
        """The value, None where there is none or its time is over."""

        async def ask() -> bytes | None:
            lane = (await self._connected()).caching
            request_id = lane.next_id()
            get = CacheGet(
                tenant_id=self.tenant,
                namespace=namespace or self.namespace,
                cache=cache,
                key=key,
                request_id=request_id,
            )
            frame = encode_message(get)
            reply = await self._in_time(partial(lane.request, request_id, frame), len(frame))
            if not isinstance(reply, CacheValue):
                raise ProtocolViolation(f"{type(reply).__name__} is no answer to a cache_get")
            return reply.value

        try:
            return await ask()
        except ConnectionLost:
            return await ask()

    # -- connecting ------------------------------------------------------------------------------------------------------

    async def _in_time(self, work: Callable[[], Awaitable[T]], size_bytes: int = 0) -> T:
        """Within the bounds of what may be in flight, and of time."""
        await self._window.enter(1, size_bytes)
        try:
            async with asyncio.timeout(self._options.request_timeout_s):
                return await work()
        except TimeoutError:
            raise RequestTimeout(
                f"{self.address} did not answer within {self._options.request_timeout_s:g} s"
            ) from None
        finally:
            self._window.leave(1, size_bytes)

    async def _connected(self, attempts_max: int | None = None) -> _Session:
        session = self._session
        if session is not None and session.usable:
            return session
        async with self._connecting:
            session = self._session
            if session is not None and session.usable:
                return session
            if self._closed:
                raise InvalidRequest("this client is closed; connect again to go on")
            if session is not None:
                session.close()
            self._session = await self._connect(attempts_max or self._options.retry.attempts_max)
            return self._session

    async def _connect(self, attempts_max: int) -> _Session:
        delays_s = self._options.retry.delays_s(self._random)
        for attempt in range(1, attempts_max + 1):
            try:
                return await self._connect_once()
            except (Unreachable, RequestTimeout, ConnectionLost):
                if attempt == attempts_max:
                    raise
                await self._sleep(next(delays_s))
        raise AssertionError("unreachable")

    async def _connect_once(self) -> _Session:
        files = self.address.tls_files
        timeout_s = self._options.connect_timeout_s
        connection = await connect_quic(
            self.address.host,
            self.address.port,
            alpn=ALPN,
            ca_file=files.get("ca"),
            cert=files.get("cert"),
            key=files.get("key"),
            timeout_s=timeout_s,
        )
        session = _Session(connection, Auth(tenant_id=self.tenant, token=self._token, client_flags=SUPPORTED))
        try:
            async with asyncio.timeout(timeout_s):
                await session.begin()
        except TimeoutError:
            session.close()
            raise RequestTimeout(f"{self.address} did not answer within {timeout_s:g} s") from None
        except BaseException:
            session.close()
            raise
        return session

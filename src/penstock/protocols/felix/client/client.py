"""The async Felix client.

One connection for requests, with one stream for publishing and one for the cache and many in flight on each (`client_session`); and a
connection for each subscription. It speaks as deployed clients do: it says who it is on each stream, publishes in binary and reads binary
events.

A connection that is lost is made again by the next request. What was in flight fails with ConnectionLost, because whether it was carried
out is unknown; only reading the cache is repeated by itself. Subscriptions end with their connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Final, Literal

from msgspec import UNSET

from penstock.clients.arguments import check_bytes, milliseconds, offset_field, values_of
from penstock.clients.life import AsyncClient
from penstock.clients.options import ClientOptions
from penstock.clients.quic import QuicConnection
from penstock.clients.reconnecting import Reconnecting
from penstock.clients.retry import Sleep, resend
from penstock.clients.url import parse_quic_url
from penstock.clock import Clock
from penstock.errors import ConnectionLost, InvalidRequest, ProtocolViolation, RequestTimeout
from penstock.protocols.felix.client.lanes import Lane
from penstock.protocols.felix.client.session import ClientSession
from penstock.protocols.felix.client.subscription import AsyncSubscription, FelixEvent, subscribe
from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.binary import PublishAck
from penstock.protocols.felix.codec.frames import Reply, encode_frame, encode_message
from penstock.protocols.felix.codec.messages import (
    Auth,
    CacheDelete,
    CacheGet,
    CacheOk,
    CachePut,
    CacheValue,
    Ok,
    PublishOk,
    StartOffset,
    Subscribe,
)
from penstock.protocols.felix.wire import ACKED, HEADER_BYTES, KEYED, PAYLOAD_BYTES_MAX, PUBLISH_BATCH, SUPPORTED

__all__ = ["AsyncFelixClient", "AsyncSubscription", "FelixEvent"]

SCHEME: Final = "felix"
PORT: Final = 5000
DEFAULT_NAME: Final = "default"
"""The tenant, namespace and cache by default."""

Start = Literal["latest", "earliest"] | int


class AsyncFelixClient(AsyncClient):
    """A Felix client for asyncio programs.

    ```python
    async with AsyncFelixClient("felix://127.0.0.1:5000?ca=penstock-data/dev-certificate.pem") as client:
        subscription = await client.subscribe("orders")
        await client.send_many("orders", [b"one", b"two"])
        async for event in subscription:
            print(event.value)
    ```
    Tenant and token are the user and the password of the address, or given as arguments. QUIC always uses TLS: `?ca=FILE` names
    the CA to trust if it is not one of the system's. Errors are those of `penstock.errors`. One client serves any number of
    concurrent tasks of one event loop.
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
        clock: Clock | None = None,
        random: Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        address = parse_quic_url(url, SCHEME, port=PORT, tls=tls)
        super().__init__(address, options, clock=clock, random=random, sleep=sleep)
        self.tenant: str = tenant or self.address.user or DEFAULT_NAME
        self.namespace: str = namespace
        token = token if token is not None else self.address.password or ""
        self._auth = Auth(tenant_id=self.tenant, token=token, client_flags=SUPPORTED)
        self._subscriptions: set[AsyncSubscription] = set()
        self._sessions: Reconnecting[ClientSession] = Reconnecting(
            self._nodes,
            self._options,
            self._attempts,
            self._new_return,
            alpn=None,  # many deployed brokers have none, and the others accept clients that offer none
            begin=lambda connection: ClientSession.begin(connection, self._auth),
            is_usable=lambda session: session.is_usable,
            is_idle=lambda session: session.is_idle,
            replaced=lambda session: session.close(),
        )

    # -- life ------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._sessions.open()

    async def close(self) -> None:
        """End subscriptions, wait for replies to requests in flight, then close the connection. Closing again does nothing."""
        session = self._sessions.close()
        for subscription in list(self._subscriptions):
            subscription.close()
        if session is not None:
            await self._sessions.in_time(session.finish, requests=0)

    # -- publishing ------------------------------------------------------------------------------------------------------

    async def send(
        self, stream: str, value: bytes, *, key: bytes | None = None, namespace: str | None = None, ack: bool = True
    ) -> int | None:
        """Publish one event; return its offset. Without `ack`, do not wait for a reply; failures go unnoticed."""
        return await self.send_many(stream, [value], key=key, namespace=namespace, ack=ack)

    async def send_many(
        self,
        stream: str,
        values: Iterable[bytes],
        *,
        key: bytes | None = None,
        namespace: str | None = None,
        ack: bool = True,
    ) -> int | None:
        """Publish events atomically and in order; return the offset of the first once all are committed.

        Raises TopicNotFound if the stream does not exist. Concurrent calls share one connection.
        """
        rows = values_of(
            values,
            "Felix events have no headers, and those of one call share a key: send values, and name it with key=",
        )
        check_bytes((), [key])
        lane = (await self._sessions.get()).publishing
        request_id = lane.next_id() if ack else None
        payload = binary.encode_publish(
            self.tenant, namespace or self.namespace, stream, rows, key=key, request_id=request_id
        )
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise InvalidRequest(
                f"{len(rows)} events of {len(payload)} bytes do not fit into a frame: at most {PAYLOAD_BYTES_MAX}, send fewer at a time"
            )
        flags = PUBLISH_BATCH | (ACKED if ack else 0) | (KEYED if key is not None else 0)
        frame = encode_frame(flags, payload)
        if request_id is None:
            await self._sessions.in_time(partial(lane.post, frame), size_bytes=len(frame))
            return None
        reply = await self._ask(lane, request_id, frame)
        if not isinstance(reply, PublishAck | PublishOk):
            raise ProtocolViolation(f"{type(reply).__name__} is not a reply to a publish")
        return reply.offset if isinstance(reply.offset, int) else None

    # -- subscribing -----------------------------------------------------------------------------------------------------

    async def subscribe(
        self, stream: str, *, start: Start = "latest", namespace: str | None = None
    ) -> AsyncSubscription:
        """Subscribe to a stream: to new events, from the `earliest` on, or from an offset.

        Raises TopicNotFound, and OffsetOutOfRange if the stream has no such offset.
        """
        request = Subscribe(
            tenant_id=self.tenant,
            namespace=namespace or self.namespace,
            stream=stream,
            start=UNSET if start == "latest" else StartOffset(offset_field(start)) if isinstance(start, int) else start,
        )

        async def begin(connection: QuicConnection) -> AsyncSubscription:
            return await subscribe(connection, self._auth, request, self._subscriptions.discard)

        subscription = await self._sessions.connect(begin)
        self._subscriptions.add(subscription)
        return subscription

    # -- the cache -------------------------------------------------------------------------------------------------------

    async def cache_put(
        self,
        key: str,
        value: bytes,
        *,
        ttl_s: float | None = None,
        cache: str = DEFAULT_NAME,
        namespace: str | None = None,
    ) -> None:
        """Store a value, until it expires if a time to live is given."""
        check_bytes([value], ())
        reply = await self._ask_cache(
            CachePut(
                tenant_id=self.tenant,
                namespace=namespace or self.namespace,
                cache=cache,
                key=key,
                value=value,
                ttl_ms=None if ttl_s is None else milliseconds(ttl_s, "time to live"),
            )
        )
        if not isinstance(reply, CacheOk | Ok):
            raise ProtocolViolation(f"{type(reply).__name__} is not a reply to a cache_put")

    async def cache_get(self, key: str, *, cache: str = DEFAULT_NAME, namespace: str | None = None) -> bytes | None:
        """Return a value, or None if there is none or it has expired."""
        get = CacheGet(tenant_id=self.tenant, namespace=namespace or self.namespace, cache=cache, key=key)
        reply = await resend(lambda: self._ask_cache(get))
        if not isinstance(reply, CacheValue):
            raise ProtocolViolation(f"{type(reply).__name__} is not a reply to a cache_get")
        return reply.value

    async def cache_delete(self, key: str, *, cache: str = DEFAULT_NAME, namespace: str | None = None) -> bytes | None:
        """Remove a value and return it, or None if there was none. Requires permission to read and to write."""
        reply = await self._ask_cache(
            CacheDelete(tenant_id=self.tenant, namespace=namespace or self.namespace, cache=cache, key=key)
        )
        if not isinstance(reply, CacheValue):
            raise ProtocolViolation(f"{type(reply).__name__} is not a reply to a cache_delete")
        return reply.value

    async def _ask_cache(self, request: CachePut | CacheGet | CacheDelete) -> Reply:
        lane = (await self._sessions.get()).caching
        request.request_id = request_id = lane.next_id()
        frame = encode_message(request)
        if len(frame) > HEADER_BYTES + PAYLOAD_BYTES_MAX:
            raise InvalidRequest(f"a value of {len(frame)} bytes in a frame is too long: at most {PAYLOAD_BYTES_MAX}")
        return await self._ask(lane, request_id, frame)

    async def _ask(self, lane: Lane, request_id: int, frame: bytes) -> Reply:
        """Send a request. After a timeout the connection is given up, and the next request uses another one."""
        try:
            return await self._sessions.in_time(partial(lane.request, request_id, frame), size_bytes=len(frame))
        except RequestTimeout as late:
            lane.fail(ConnectionLost(f"the connection was given up: {late}"))
            raise

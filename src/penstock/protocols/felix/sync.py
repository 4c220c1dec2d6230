"""The Felix client for programs without an event loop: the async client, run in a background thread.

Generated from `penstock.protocols.felix`: change the async client, and run `make sync`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from penstock.clients.options import ClientOptions
from penstock.clients.sync import SyncClient, SyncConsumer
from penstock.protocols.felix.client.client import DEFAULT_NAME, AsyncFelixClient, Start
from penstock.protocols.felix.client.subscription import AsyncSubscription, FelixEvent


class FelixClient(SyncClient[AsyncFelixClient]):
    """A Felix client for programs without an event loop.

    ```python
    with FelixClient("felix://127.0.0.1:5000?ca=penstock-data/dev-certificate.pem") as client:
        subscription = client.subscribe("orders")
        client.send_many("orders", [b"one", b"two"])
        for event in subscription:
            print(event.value)
    ```
    Tenant and token are the user and the password of the address, or given as arguments. QUIC always uses TLS: `?ca=FILE` names
    the CA to trust if it is not one of the system's. Errors are those of `penstock.errors`. One client serves any number of
    threads.
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
    ) -> None:
        super().__init__(
            AsyncFelixClient(url, tenant=tenant, token=token, namespace=namespace, tls=tls, options=options)
        )

    @property
    def tenant(self) -> str:
        return self._async.tenant

    @property
    def namespace(self) -> str:
        return self._async.namespace

    def send(
        self, stream: str, value: bytes, *, key: bytes | None = None, namespace: str | None = None, ack: bool = True
    ) -> int | None:
        """Publish one event; return its offset. Without `ack`, do not wait for a reply; failures go unnoticed."""
        return self._thread.run(self._async.send(stream, value, key=key, namespace=namespace, ack=ack))

    def send_many(
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
        return self._thread.run(self._async.send_many(stream, values, key=key, namespace=namespace, ack=ack))

    def subscribe(self, stream: str, *, start: Start = "latest", namespace: str | None = None) -> Subscription:
        """Subscribe to a stream: to new events, from the `earliest` on, or from an offset.

        Raises TopicNotFound, and OffsetOutOfRange if the stream has no such offset.
        """
        return Subscription(
            self._thread, self._thread.run(self._async.subscribe(stream, start=start, namespace=namespace))
        )

    def cache_put(
        self,
        key: str,
        value: bytes,
        *,
        ttl_s: float | None = None,
        cache: str = DEFAULT_NAME,
        namespace: str | None = None,
    ) -> None:
        """Store a value, until it expires if a time to live is given."""
        self._thread.run(self._async.cache_put(key, value, ttl_s=ttl_s, cache=cache, namespace=namespace))

    def cache_get(self, key: str, *, cache: str = DEFAULT_NAME, namespace: str | None = None) -> bytes | None:
        """Return a value, or None if there is none or it has expired."""
        return self._thread.run(self._async.cache_get(key, cache=cache, namespace=namespace))

    def cache_delete(self, key: str, *, cache: str = DEFAULT_NAME, namespace: str | None = None) -> bytes | None:
        """Remove a value and return it, or None if there was none. Requires permission to read and to write."""
        return self._thread.run(self._async.cache_delete(key, cache=cache, namespace=namespace))


class Subscription(SyncConsumer[AsyncSubscription, FelixEvent]):
    """Events as they come. What is not read waits at the broker, which may drop it in the end: the protocol promises no more.

    Ends when the broker ends it; raises ConnectionLost where the connection broke or the broker cut it off.
    """

    @property
    def stream(self) -> str:
        return self._async.stream

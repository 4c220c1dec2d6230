"""The Felix client for programs without an event loop: the async client, driven in one background thread."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from penstock.clients.loop_thread import LoopThread
from penstock.clients.options import ClientOptions
from penstock.clients.sync_twin import SyncTwin
from penstock.protocols.felix.client import DEFAULT_NAME, AsyncFelixClient, FelixEvent, Start, Subscription


class SyncSubscription:
    """Events as they come, for a `for` loop; `close`, or the end of a `with` block, tells the broker to send no more."""

    def __init__(self, subscription: Subscription, thread: LoopThread) -> None:
        self._subscription = subscription
        self._thread = thread

    def next(self, timeout_s: float | None = None) -> FelixEvent | None:
        """The next event; None where the subscription has ended, or where none came in time."""
        return self._thread.run(self._subscription.next(timeout_s))

    def close(self) -> None:
        if not self._thread.closed:
            self._thread.run(self._close())

    async def _close(self) -> None:
        self._subscription.close()

    def __iter__(self) -> Iterator[FelixEvent]:
        while events := self._thread.run(self._subscription.next_many()):
            yield from events

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FelixClient(SyncTwin[AsyncFelixClient]):
    """The same calls as `AsyncFelixClient`, each waiting for its answer. Any number of threads may share one client.

    ```python
    with penstock.connect("felix://127.0.0.1:5000?ca=penstock-data/dev-certificate.pem") as client:
        with client.subscribe("orders") as subscription:
            client.send("orders", b"one")
            print(subscription.next().value)
    ```
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

    def send(
        self, stream: str, value: bytes, *, key: bytes | None = None, namespace: str | None = None, ack: bool = True
    ) -> int | None:
        """Publish one event; returns its offset. For many, `send_many` is much faster."""
        return self._thread.run(self._client.send(stream, value, key=key, namespace=namespace, ack=ack))

    def send_many(
        self,
        stream: str,
        values: Iterable[bytes],
        *,
        key: bytes | None = None,
        namespace: str | None = None,
        ack: bool = True,
    ) -> int | None:
        """Publish events that stay together and in order; all are committed when this returns, or none is."""
        return self._thread.run(self._client.send_many(stream, values, key=key, namespace=namespace, ack=ack))

    def subscribe(self, stream: str, *, start: Start = "latest", namespace: str | None = None) -> SyncSubscription:
        """Events of a stream, from now on; or from the `earliest` on, or from an offset."""
        subscription = self._thread.run(self._client.subscribe(stream, start=start, namespace=namespace))
        return SyncSubscription(subscription, self._thread)

    def cache_put(
        self,
        key: str,
        value: bytes,
        *,
        ttl_s: float | None = None,
        cache: str = DEFAULT_NAME,
        namespace: str | None = None,
    ) -> None:
        """Keep a value, for so many seconds where that is given."""
        self._thread.run(self._client.cache_put(key, value, ttl_s=ttl_s, cache=cache, namespace=namespace))

    def cache_get(self, key: str, *, cache: str = DEFAULT_NAME, namespace: str | None = None) -> bytes | None:
        """The value, None where there is none or its time is over."""
        return self._thread.run(self._client.cache_get(key, cache=cache, namespace=namespace))

    def cache_delete(self, key: str, *, cache: str = DEFAULT_NAME, namespace: str | None = None) -> bytes | None:
        """Remove a value; returns it, None where there was none. Needs the right to read as well as that to write."""
        return self._thread.run(self._client.cache_delete(key, cache=cache, namespace=namespace))

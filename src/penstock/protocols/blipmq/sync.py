"""The BlipMQ client for programs without an event loop: the async client, driven in one background thread."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator

from penstock.clients.options import ClientOptions
from penstock.clients.sync_twin import SyncTwin
from penstock.protocols.blipmq.client import AsyncBlipMQClient, Message


class BlipMQClient(SyncTwin[AsyncBlipMQClient]):
    """The same calls as `AsyncBlipMQClient`, each waiting for its answer. Any number of threads may share one client.

    ```python
    with penstock.connect("blipmq://dev-key@127.0.0.1:5555") as client:
        subscription = client.subscribe("orders")
        client.send("orders", b"one")
        for message in client.records("orders", subscription=subscription):
            print(message.value)
    ```
    """

    def __init__(
        self, url: str, *, tls: ssl.SSLContext | bool | None = None, options: ClientOptions | None = None
    ) -> None:
        super().__init__(AsyncBlipMQClient(url, tls=tls, options=options))

    def send(self, topic: str, value: bytes, *, qos: int = 1) -> None:
        """Publish one message. With QoS 1 it is committed when this returns. For many, `send_many` is much faster."""
        self._thread.run(self._client.send(topic, value, qos=qos))

    def send_many(self, topic: str, values: Iterable[bytes], *, qos: int = 1) -> None:
        """Publish many messages, in order. Raises BatchFailed where some were refused."""
        self._thread.run(self._client.send_many(topic, values, qos=qos))

    def subscribe(self, topic: str, *, qos: int = 1) -> int:
        """Make a subscription; returns its number."""
        return self._thread.run(self._client.subscribe(topic, qos=qos))

    def poll(self, subscription: int, max_records: int = 1) -> list[Message]:
        """The next messages of a subscription, as many as there are up to a bound."""
        return self._thread.run(self._client.poll(subscription, max_records))

    def ack(self, subscription: int, *tags: int) -> None:
        """Acknowledge deliveries. Raises EntryNotFound where one is not in flight."""
        self._thread.run(self._client.ack(subscription, *tags))

    def records(
        self,
        topic: str,
        *,
        subscription: int | None = None,
        qos: int = 1,
        follow: bool = False,
        limit: int | None = None,
    ) -> Iterator[Message]:
        """Iterate over messages, acknowledging each when the next is asked for; see `AsyncBlipMQClient.records`."""
        return self._iterate(
            self._client.records(topic, subscription=subscription, qos=qos, follow=follow, limit=limit)
        )

    def ping(self) -> float:
        """Ask for nothing and return how long the answer took, in seconds."""
        return self._thread.run(self._client.ping())

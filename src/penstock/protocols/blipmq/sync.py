"""The BlipMQ client for programs without an event loop: the async client, run in a background thread.

Generated from `penstock.protocols.blipmq`: change the async client, and run `make sync`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator

from penstock.clients.options import ClientOptions
from penstock.clients.sync import SyncClient
from penstock.protocols.blipmq.client import AsyncBlipMQClient, Message


class BlipMQClient(SyncClient[AsyncBlipMQClient]):
    """A BlipMQ client for programs without an event loop; the API key is the user of the address.

    ```python
    with BlipMQClient("blipmq://dev-key@127.0.0.1:5555") as client:
        subscription = client.subscribe("orders")
        client.send("orders", b"one")
        for message in client.records("orders", subscription=subscription):
            print(message.value)
    ```
    Records have neither keys nor offsets in this protocol. Errors are those of `penstock.errors`. One client serves any number of
    threads.
    """

    def __init__(
        self, url: str, *, tls: ssl.SSLContext | bool | None = None, options: ClientOptions | None = None
    ) -> None:
        super().__init__(AsyncBlipMQClient(url, tls=tls, options=options))

    def send(self, topic: str, value: bytes, *, qos: int = 1) -> None:
        """Publish one message. With QoS 1 it is committed when this returns; with QoS 0 there is no acknowledgement."""
        self._thread.run(self._async.send(topic, value, qos=qos))

    def send_many(self, topic: str, values: Iterable[bytes], *, qos: int = 1) -> None:
        """Publish many messages, pipelined, in order.

        Raises the error if all failed for one reason; if some did, BatchFailed, whose `results` has the outcome of each.
        """
        self._thread.run(self._async.send_many(topic, values, qos=qos))

    def subscribe(self, topic: str, *, qos: int = 1) -> int:
        """Create a subscription to messages published from now on; return its number. It outlives this connection."""
        return self._thread.run(self._async.subscribe(topic, qos=qos))

    def poll(self, subscription: int, max_records: int = 1) -> list[Message]:
        """Return the next messages of a subscription, up to a bound. Acknowledge those with a tag."""
        return self._thread.run(self._async.poll(subscription, max_records))

    def ack(self, subscription: int, *tags: int) -> None:
        """Acknowledge deliveries. Raises EntryNotFound if one is not in flight: unknown, or requeued."""
        self._thread.run(self._async.ack(subscription, *tags))

    def records(
        self,
        topic: str,
        *,
        subscription: int | None = None,
        qos: int = 1,
        follow: bool = False,
        limit: int | None = None,
    ) -> Iterator[Message]:
        """Iterate over messages, acknowledging each batch when the next is polled.

        Without a `subscription` a new one is created, for messages published from now on. Without `follow` the iteration ends when
        there is nothing to deliver; with it, it waits for more. `limit` is the maximum number of messages.
        """
        return self._iterate(self._async.records(topic, subscription=subscription, qos=qos, follow=follow, limit=limit))

    def ping(self) -> float:
        """Ask for nothing and return how long the answer took, in seconds."""
        return self._thread.run(self._async.ping())

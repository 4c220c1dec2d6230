"""The Fujin client for programs without an event loop: the async client, run in a background thread.

Generated from `penstock.protocols.fujin`: change the async client, and run `make sync`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Literal

from penstock.clients.options import ClientOptions
from penstock.clients.sync import SyncClient, SyncConsumer, SyncContext
from penstock.protocols.fujin.client.client import (
    FETCH_RECORDS,
    AsyncFujinClient,
    AsyncReader,
    AsyncTransaction,
    Message,
)
from penstock.protocols.fujin.client.connection import Records
from penstock.protocols.fujin.codec.request_encoding import Headers


class FujinClient(SyncClient[AsyncFujinClient]):
    """A Fujin client for programs without an event loop.

    ```python
    with FujinClient("fujin://127.0.0.1:4848?ca=penstock-data/dev-certificate.pem") as client:
        client.send("orders", b"one")
        with client.transaction() as transaction:
            transaction.send("orders", b"two")
            transaction.send("payments", b"three")
        with client.reader("orders") as reader:
            for message in reader:
                print(message.value)
                reader.ack(message)
    ```
    QUIC always uses TLS: `?ca=FILE` names the CA to trust if it is not one of the system's, `?cert=FILE&key=FILE` a client certificate.
    `write_form="code"` is for servers without support for headers. Errors are those of `penstock.errors`. One client
    serves any number of threads.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | bool | None = None,
        options: ClientOptions | None = None,
        write_form: Literal["table", "code"] = "table",
    ) -> None:
        super().__init__(AsyncFujinClient(url, tls=tls, options=options, write_form=write_form))

    def send(self, topic: str, value: bytes, *, headers: Headers = None) -> None:
        """Store one record; it is committed when this returns."""
        self._thread.run(self._async.send(topic, value, headers=headers))

    def send_many(self, topic: str, values: Records, *, headers: Headers = None) -> None:
        """Store many records, pipelined, in order: values, with `headers` for all, or triples of None, value and headers.

        Raises the error if all failed for one reason; if some did, BatchFailed, whose `results` has the outcome of each.
        """
        self._thread.run(self._async.send_many(topic, values, headers=headers))

    def transaction(self) -> Transaction:
        """Return a transaction, for `with client.transaction() as transaction:`.

        It is committed at the end of the block, and rolled back if an exception leaves the block.
        """
        return Transaction(self._thread, self._async.transaction())

    def reader(self, topic: str, *, pull: bool = False, auto_commit: bool = False) -> Reader:
        """Return a reader in the group that the server has for this name, for `with client.reader("orders") as reader:`.

        Records are pushed, and `for message in reader` iterates over them; with `pull`, `reader.fetch` requests them. With
        `auto_commit` a record is acknowledged as soon as it arrives; otherwise call `reader.ack`.
        """
        return Reader(self._thread, self._async.reader(topic, pull=pull, auto_commit=auto_commit))

    def records(self, topic: str, *, follow: bool = False, limit: int | None = None) -> Iterator[Message]:
        """Iterate over records, acknowledging each batch when the next is fetched. The batch size adapts to the speed of the loop.

        Without `follow` the iteration ends when the server has had nothing to deliver for as long as it waits (5 s by default).
        """
        return self._iterate(self._async.records(topic, follow=follow, limit=limit))


class Transaction(SyncContext[AsyncTransaction]):
    """Made by `FujinClient.transaction`; used once, in a `with` block."""

    def send(self, topic: str, value: bytes, *, headers: Headers = None) -> None:
        """Add one record. Raises now if the broker would refuse it."""
        self._thread.run(self._async.send(topic, value, headers=headers))

    def send_many(self, topic: str, values: Records, *, headers: Headers = None) -> None:
        """Add many records, which are what `FujinClient.send_many` takes, and fail as they do there."""
        self._thread.run(self._async.send_many(topic, values, headers=headers))

    def commit(self) -> None:
        """Commit all records, as the end of the block does. If it fails, it may be retried."""
        self._thread.run(self._async.commit())

    def rollback(self) -> None:
        """Drop everything that was added."""
        self._thread.run(self._async.rollback())


class Reader(SyncConsumer[AsyncReader, Message]):
    """Made by `FujinClient.reader`; reconnects after a lost connection."""

    @property
    def topic(self) -> str:
        return self._async.topic

    def fetch(self, max_records: int = FETCH_RECORDS) -> list[Message]:
        """Return up to `max_records` records as soon as there is one; none if none arrived while the server waited.

        If it is cancelled, records that arrive for it are returned by the next call.
        """
        return self._thread.run(self._async.fetch(max_records))

    def ack(self, *messages: Message | bytes) -> None:
        """Acknowledge messages; the acknowledgement is committed when this returns.

        Raises EntryNotFound if one is not in flight any more: settled already, or requeued after the acknowledgement timeout.
        """
        self._thread.run(self._async.ack(*messages))

    def nack(self, *messages: Message | bytes) -> None:
        """Reject messages: they are redelivered after a delay, or become dead letters after the last delivery."""
        self._thread.run(self._async.nack(*messages))

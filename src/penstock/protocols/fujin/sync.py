"""The Fujin client for programs without an event loop: the async client, run in a background thread.

Generated from `penstock.protocols.fujin`: change the async client, and run `make sync`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Literal

from penstock.clients.options import ClientOptions
from penstock.clients.sync import SyncClient, SyncConsumer, SyncContext
from penstock.protocols.fujin.client import FETCH_RECORDS, AsyncFujinClient, AsyncReader, AsyncTransaction, Message
from penstock.protocols.fujin.client_connection import Records
from penstock.protocols.fujin.request_encoding import Headers


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
    QUIC is never without TLS: `?ca=FILE` names whom to trust, where that is not an authority of the system, `?cert=FILE&key=FILE` a client
    certificate. `write_form="code"` is for servers that know no headers. Errors are those of `penstock.errors`. One client
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
        """Write one record; it is on disk when this returns."""
        self._thread.run(self._async.send(topic, value, headers=headers))

    def send_many(self, topic: str, values: Records, *, headers: Headers = None) -> None:
        """Write many records, pipelined, in order: values, with `headers` for all, or triples of None, value and headers.

        Raises the error if all failed for one reason; if some did, BatchFailed, whose `results` tell of each.
        """
        self._thread.run(self._async.send_many(topic, values, headers=headers))

    def transaction(self) -> Transaction:
        """Records that appear together or not at all: `with client.transaction() as transaction:`.

        It is committed at the end of the block, and rolled back where that is left by an exception.
        """
        return Transaction(self._thread, self._async.transaction())

    def reader(self, topic: str, *, pull: bool = False, auto_commit: bool = False) -> Reader:
        """A reader of the group that the server has for this name: `with client.reader("orders") as reader:`.

        Records are pushed, and `for message in reader` gives them; with `pull`, `reader.fetch` asks for them. With
        `auto_commit` the server takes a record for dealt with once it has arrived here; otherwise `reader.ack` says so.
        """
        return Reader(self._thread, self._async.reader(topic, pull=pull, auto_commit=auto_commit))

    def records(self, topic: str, *, follow: bool = False, limit: int | None = None) -> Iterator[Message]:
        """Iterate over records, acknowledging them as the next are asked for; how many at a time depends on how fast that is.

        Without `follow` the iteration ends when the server has had nothing to deliver for as long as it waits (5 s by default).
        """
        return self._iterate(self._async.records(topic, follow=follow, limit=limit))


class Transaction(SyncContext[AsyncTransaction]):
    """Made by `FujinClient.transaction`; used once, in a `with` block."""

    def send(self, topic: str, value: bytes, *, headers: Headers = None) -> None:
        """Add one record. It is refused now where the broker would not take it."""
        self._thread.run(self._async.send(topic, value, headers=headers))

    def send_many(self, topic: str, values: Records, *, headers: Headers = None) -> None:
        """Add many records, which are what `FujinClient.send_many` takes, and fail as they do there."""
        self._thread.run(self._async.send_many(topic, values, headers=headers))

    def commit(self) -> None:
        """Write everything that was added; the end of the block does that by itself. Where it fails, it may be tried again."""
        self._thread.run(self._async.commit())

    def rollback(self) -> None:
        """Drop everything that was added."""
        self._thread.run(self._async.rollback())


class Reader(SyncConsumer[AsyncReader, Message]):
    """Made by `FujinClient.reader`; connects again by itself where the connection was lost."""

    @property
    def topic(self) -> str:
        return self._async.topic

    def fetch(self, max_records: int = FETCH_RECORDS) -> list[Message]:
        """Up to so many records, as soon as there is one; none where none came for as long as the server waits.

        Where this is cancelled, records that come for it nevertheless are for the next call.
        """
        return self._thread.run(self._async.fetch(max_records))

    def ack(self, *messages: Message | bytes) -> None:
        """These are dealt with and will not come again; on disk when this returns.

        Raises EntryNotFound where one is not known any more: settled already, or taken back because that took too long.
        """
        self._thread.run(self._async.ack(*messages))

    def nack(self, *messages: Message | bytes) -> None:
        """These could not be dealt with: deliver them again after a moment, or make them dead letters if that was the last time."""
        self._thread.run(self._async.nack(*messages))

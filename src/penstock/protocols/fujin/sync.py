"""The Fujin client for programs without an event loop: the async client, driven in one background thread."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Literal, Self

from penstock.clients.loop_thread import LoopThread
from penstock.clients.options import ClientOptions
from penstock.clients.sync_twin import SyncTransaction, SyncTwin
from penstock.protocols.fujin.client import FETCH_RECORDS, AsyncFujinClient, Message
from penstock.protocols.fujin.client import Reader as AsyncReader
from penstock.protocols.fujin.client import Transaction as AsyncTransaction


class FujinClient(SyncTwin[AsyncFujinClient]):
    """The same calls as `AsyncFujinClient`, each waiting for its answer. Any number of threads may share one client.

    ```python
    with penstock.connect("fujin://127.0.0.1:4848?ca=penstock-data/dev-certificate.pem") as client:
        client.send("orders", b"one")
        with client.reader("orders") as reader:
            for message in reader:
                print(message.value)
                reader.ack(message)
    ```
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

    def send(self, topic: str, value: bytes, *, headers: Mapping[str, bytes] | None = None) -> None:
        """Write one record; it is on disk when this returns. For many, `send_many` is much faster."""
        self._thread.run(self._client.send(topic, value, headers=headers))

    def send_many(self, topic: str, values: Iterable[bytes], *, headers: Mapping[str, bytes] | None = None) -> None:
        """Write many records, in order. Raises BatchFailed where some were refused."""
        self._thread.run(self._client.send_many(topic, values, headers=headers))

    def transaction(self) -> Transaction:
        """Records that appear together or not at all: `with client.transaction() as transaction:`."""
        return Transaction(self._thread, self._client.transaction())

    def reader(self, topic: str, *, pull: bool = False, auto_commit: bool = False) -> Reader:
        """A reader of the group that the server has for this name: `with client.reader("orders") as reader:`."""
        return Reader(self._thread, self._client.reader(topic, pull=pull, auto_commit=auto_commit))

    def records(self, topic: str, *, follow: bool = False, limit: int | None = None) -> Iterator[Message]:
        """Iterate over records, acknowledging them as the next are asked for; see `AsyncFujinClient.records`."""
        return self._iterate(self._client.records(topic, follow=follow, limit=limit))


class Transaction(SyncTransaction[AsyncTransaction]):
    """Made by `FujinClient.transaction`; used once, in a `with` block."""

    def send(self, topic: str, value: bytes, *, headers: Mapping[str, bytes] | None = None) -> None:
        """Add one record."""
        self._thread.run(self._transaction.send(topic, value, headers=headers))

    def send_many(self, topic: str, values: Iterable[bytes], *, headers: Mapping[str, bytes] | None = None) -> None:
        """Add many records. Raises BatchFailed where some were refused."""
        self._thread.run(self._transaction.send_many(topic, values, headers=headers))


class Reader:
    """Made by `FujinClient.reader`: iterate over what is pushed, or fetch."""

    def __init__(self, thread: LoopThread, reader: AsyncReader) -> None:
        self._thread = thread
        self._reader = reader
        self._ahead: deque[Message] = deque()
        """What was pushed and taken over from the loop's thread, but not asked for yet; going there for each would take longer."""

    @property
    def topic(self) -> str:
        return self._reader.topic

    def __enter__(self) -> Self:
        self._thread.run(self._reader.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        while (message := self.next()) is not None:
            yield message

    def next(self, timeout_s: float | None = None) -> Message | None:
        """The next message that is pushed; None where none comes in time."""
        if not self._ahead:
            self._ahead.extend(self._thread.run(self._reader.next_batch(timeout_s=timeout_s)))
        return self._ahead.popleft() if self._ahead else None

    def next_batch(self, max_records: int = FETCH_RECORDS, timeout_s: float | None = None) -> list[Message]:
        """The next messages that are pushed, as many as have come up to a bound, once there is one; none where none comes in time."""
        if self._ahead:
            return [self._ahead.popleft() for _ in range(min(max_records, len(self._ahead)))]
        return self._thread.run(self._reader.next_batch(max_records, timeout_s))

    def fetch(self, max_records: int = FETCH_RECORDS) -> list[Message]:
        """Up to so many records, as soon as there is one; none where none came for as long as the server waits."""
        return self._thread.run(self._reader.fetch(max_records))

    def ack(self, *messages: Message | bytes) -> None:
        """These are dealt with and will not come again."""
        self._thread.run(self._reader.ack(*messages))

    def nack(self, *messages: Message | bytes) -> None:
        """These could not be dealt with: deliver them again after a moment."""
        self._thread.run(self._reader.nack(*messages))

    def close(self) -> None:
        """Leave; what was not settled goes to other readers of the group."""
        if not self._thread.closed:
            self._thread.run(self._reader.close())

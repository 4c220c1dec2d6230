"""The RustLog client for programs without an event loop: the async client, driven in one background thread."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from penstock.clients.arguments import Values
from penstock.clients.options import ClientOptions
from penstock.clients.records import FetchResult, Record, RecordMetadata, TopicDescription
from penstock.clients.sync_twin import SyncTwin
from penstock.protocols.rustlog.client import FETCH_BYTES, AsyncRustLogClient, Start


class RustLogClient(SyncTwin[AsyncRustLogClient]):
    """The same calls as `AsyncRustLogClient`, each waiting for its answer. Any number of threads may share one client.

    ```python
    with penstock.connect("rustlog://127.0.0.1:9292") as client:
        client.create_topic("orders", 2)
        client.send("orders", b"one")
        for record in client.records("orders"):
            print(record.offset, record.value)
    ```
    """

    def __init__(
        self, url: str, *, tls: ssl.SSLContext | bool | None = None, options: ClientOptions | None = None
    ) -> None:
        super().__init__(AsyncRustLogClient(url, tls=tls, options=options))

    # -- producing -------------------------------------------------------------------------------------------------------

    def send(self, topic: str, value: bytes, partition: int | None = None) -> RecordMetadata:
        """Store one record; returns where, once it is committed. For many records, `send_many` is much faster."""
        return self._thread.run(self._client.send(topic, value, partition))

    def send_many(self, topic: str, records: Values, partition: int | None = None) -> list[RecordMetadata]:
        """Store many values in one partition, in order; returns where each is, once all are committed."""
        return self._thread.run(self._client.send_many(topic, records, partition))

    # -- reading ---------------------------------------------------------------------------------------------------------

    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int = FETCH_BYTES, group: str | None = None
    ) -> FetchResult:
        """Read records of one partition from `offset` on; see `AsyncRustLogClient.fetch`."""
        return self._thread.run(self._client.fetch(topic, partition, offset, max_bytes, group))

    def batches(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Start | None = None,
        group: str | None = None,
        follow: bool = False,
        commit: bool = True,
        limit: int | None = None,
    ) -> Iterator[list[Record]]:
        """Like `records`, a list at a time: each holds records of one partition, in order. The faster way to read much."""
        return self._iterate(
            self._client.batches(topic, partition, start=start, group=group, follow=follow, commit=commit, limit=limit)
        )

    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Start | None = None,
        group: str | None = None,
        follow: bool = False,
        commit: bool = True,
        limit: int | None = None,
    ) -> Iterator[Record]:
        """Iterate over the records of one partition or of all of them; see `AsyncRustLogClient.records`."""
        for batch in self.batches(
            topic, partition, start=start, group=group, follow=follow, commit=commit, limit=limit
        ):
            yield from batch

    # -- topics ----------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic; one that exists stays as it is."""
        self._thread.run(self._client.create_topic(name, partitions))

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._thread.run(self._client.topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """Raises TopicNotFound."""
        return self._thread.run(self._client.describe_topic(name))

    # -- groups ----------------------------------------------------------------------------------------------------------

    def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Store `offset` as the next one the group will read."""
        self._thread.run(self._client.commit(topic, group, partition, offset))

    def committed(self, topic: str, group: str, partition: int) -> int | None:
        """The next offset the group will read, None where it has committed nothing."""
        return self._thread.run(self._client.committed(topic, group, partition))

    # -- the broker ------------------------------------------------------------------------------------------------------

    def metrics(self) -> str:
        """What the listener counts, in Prometheus' text form."""
        return self._thread.run(self._client.metrics())

    def ping(self) -> float:
        """Ask for nothing and return how long the answer took, in seconds."""
        return self._thread.run(self._client.ping())

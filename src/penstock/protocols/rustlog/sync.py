"""The RustLog client for programs without an event loop: the async client, run in a background thread.

Generated from `penstock.protocols.rustlog`: change the async client, and run `make sync`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator

from penstock.clients.options import ClientOptions
from penstock.clients.records import FetchResult, Record, RecordMetadata, TopicDescription
from penstock.clients.sync import SyncClient
from penstock.protocols.rustlog.client.client import FETCH_BYTES, AsyncRustLogClient, Start
from penstock.protocols.rustlog.wire import Dialect


class RustLogClient(SyncClient[AsyncRustLogClient]):
    """A RustLog client for programs without an event loop.

    ```python
    with RustLogClient("rustlog://127.0.0.1:9292") as client:
        client.create_topic("orders", 2)
        client.send("orders", b"one")
        for record in client.records("orders"):
            print(record.offset, record.value)
    ```
    `rustlog://` speaks the binary dialect, `rustlog+json://` that of the contract; with `rustlogs` for TLS. Errors are those of
    `penstock.errors`. Records have no keys in this protocol, and topics must be created before they are written to. One client
    serves any number of threads.
    """

    def __init__(
        self, url: str, *, tls: ssl.SSLContext | bool | None = None, options: ClientOptions | None = None
    ) -> None:
        super().__init__(AsyncRustLogClient(url, tls=tls, options=options))

    @property
    def dialect(self) -> Dialect:
        return self._async.dialect

    def send(self, topic: str, value: bytes, partition: int | None = None) -> RecordMetadata:
        """Store one record; return its place once it is committed. Without a partition, round robin.

        The protocol does not tell the record's time: `timestamp_ms` is 0. ConnectionLost and RequestTimeout leave open whether the
        record was stored.
        """
        return self._thread.run(self._async.send(topic, value, partition))

    def send_many(self, topic: str, records: Iterable[bytes], partition: int | None = None) -> list[RecordMetadata]:
        """Store many values in one partition, in order; return the place of each once all are committed.

        Without a partition, calls take turns. The batch is cut into frames; where some of them failed, BatchFailed has the results.
        """
        return self._thread.run(self._async.send_many(topic, records, partition))

    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int = FETCH_BYTES, group: str | None = None
    ) -> FetchResult:
        """Read records of one partition starting at `offset`, about `max_bytes` of them and at least one; none at its end.

        With a `group`, reading begins at what the group has committed, where that is further.
        """
        return self._thread.run(self._async.fetch(topic, partition, offset, max_bytes, group))

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
        """Like `records`, a list at a time, each of one partition and in order: the faster way to read many records."""
        return self._iterate(
            self._async.batches(topic, partition, start=start, group=group, follow=follow, commit=commit, limit=limit)
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
        """Iterate over the records of one partition or of all of them; order holds within a partition.

        `start` is "earliest" (default), "latest" or an offset. With a `group`, reading continues at the group's committed
        offsets, `start` applies only to partitions without one, and offsets are committed as the loop continues (unless `commit` is
        false). Without `follow` the iteration ends at what was the end of the topic when it began; with it, it waits for more.
        `limit` is the maximum number of records.
        """
        for batch in self.batches(
            topic, partition, start=start, group=group, follow=follow, commit=commit, limit=limit
        ):
            yield from batch

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic; one that exists stays as it is."""
        self._thread.run(self._async.create_topic(name, partitions))

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._thread.run(self._async.topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic with its partitions. Raises TopicNotFound. Sent in JSON whatever the dialect: only that has start offsets."""
        return self._thread.run(self._async.describe_topic(name))

    def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Store `offset` as the next one the group will read."""
        self._thread.run(self._async.commit(topic, group, partition, offset))

    def committed(self, topic: str, group: str, partition: int) -> int | None:
        """Return the next offset the group reads, or None if it has committed nothing."""
        return self._thread.run(self._async.committed(topic, group, partition))

    def metrics(self) -> str:
        """What the listener counts, in Prometheus' text form."""
        return self._thread.run(self._async.metrics())

    def ping(self) -> float:
        """Ask for nothing and return how long the answer took, in seconds."""
        return self._thread.run(self._async.ping())

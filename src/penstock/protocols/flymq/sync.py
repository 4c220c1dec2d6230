"""The FlyMQ client for programs without an event loop: the async client, driven in one background thread."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from penstock.clients.arguments import Values
from penstock.clients.options import ClientOptions
from penstock.clients.records import (
    FetchResult,
    GroupDescription,
    Lag,
    Record,
    RecordMetadata,
    TopicDescription,
)
from penstock.clients.sync_twin import SyncTwin
from penstock.protocols.flymq.access.client import Access
from penstock.protocols.flymq.blocks.client import Blocks
from penstock.protocols.flymq.client import FETCH_RECORDS, AsyncFlyMQClient
from penstock.protocols.flymq.keys.client import Keys
from penstock.protocols.flymq.lifetime.client import DeadLetters
from penstock.protocols.flymq.lifetime.messages import DelayedRecord
from penstock.protocols.flymq.pipelines.client import Pipelines
from penstock.protocols.flymq.reading import Start
from penstock.protocols.flymq.schemas.client import Schemas
from penstock.protocols.flymq.snapshots.client import Snapshots
from penstock.protocols.flymq.staging.client import Staging
from penstock.protocols.flymq.transactions.client import Transaction


class FlyMQClient(SyncTwin[AsyncFlyMQClient]):
    """The same calls as `AsyncFlyMQClient`, each waiting for its answer. Any number of threads may share one client.

    ```python
    with penstock.connect("flymq://127.0.0.1:9092") as client:
        client.send("orders", b"one", key=b"k")
        for record in client.records("orders"):
            print(record.offset, record.value)
    ```
    """

    def __init__(
        self, url: str, *, tls: ssl.SSLContext | bool | None = None, options: ClientOptions | None = None
    ) -> None:
        super().__init__(AsyncFlyMQClient(url, tls=tls, options=options))
        self.dead_letters = DeadLetters(self._thread, self._client.dead_letters)
        self.schemas = Schemas(self._thread, self._client.schemas)
        """What records must look like: register, get, list, validate, delete, bind to a topic."""
        self.access = Access(self._thread, self._client.access)
        """Users, roles, ACLs, the audit trail and the cluster."""
        self.pipelines = Pipelines(self._thread, self._client.pipelines)
        """What Spark pipelines report of themselves."""
        self.staging = Staging(self._thread, self._client.staging)
        """Records that are published when a commit names them, for writers of many processes."""
        self.snapshots = Snapshots(self._thread, self._client.snapshots)
        """Snapshots of the log, for backups and checks on the broker's machine."""
        self.keys = Keys(self._thread, self._client.keys)
        """API keys of protocols that have no users."""
        self.blocks = Blocks(self._thread, self._client.blocks)
        """Whole blocks, for readers that decode columns themselves, and plans for sharing out the work."""

    # -- producing -------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None = None,
        partition: int | None = None,
        *,
        ttl_s: float | None = None,
        schema: str | None = None,
    ) -> RecordMetadata:
        """Store one record; returns where, once it is committed. For many records, `send_many` is much faster.

        A record with a time to live is shown to no reader once that time has passed. One that is not what its schema ("orders",
        "orders:3") says is refused with ValidationFailed.
        """
        return self._thread.run(self._client.send(topic, value, key, partition, ttl_s=ttl_s, schema=schema))

    def send_later(
        self,
        topic: str,
        value: bytes,
        delay_s: float,
        key: bytes | None = None,
        partition: int | None = None,
        *,
        ttl_s: float | None = None,
    ) -> DelayedRecord:
        """Store one record after a delay; returns once it is safe that it will be. Its `id` cancels it until then."""
        return self._thread.run(self._client.send_later(topic, value, delay_s, key, partition, ttl_s=ttl_s))

    def cancel(self, topic: str, delayed_id: str) -> None:
        """End a delayed record before its time. Raises EntryNotFound, also where it was delivered or cancelled before."""
        self._thread.run(self._client.cancel(topic, delayed_id))

    def send_many(
        self, topic: str, records: Values, partition: int | None = None, *, schema: str | None = None
    ) -> list[RecordMetadata]:
        """Store many records (values, or pairs of key and value), in order; returns where each is, once all are committed."""
        return self._thread.run(self._client.send_many(topic, records, partition, schema=schema))

    def transaction(self, transaction_id: str | None = None) -> Transaction:
        """Records and group offsets that appear together or not at all: `with client.transaction() as txn:`."""
        return Transaction(self._thread, self._client.transaction(transaction_id))

    # -- reading ---------------------------------------------------------------------------------------------------------

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_records: int = FETCH_RECORDS,
        filter: str | None = None,  # noqa: A002
    ) -> FetchResult:
        """Read up to `max_records` records of one partition from `offset` on; none at its end."""
        return self._thread.run(self._client.fetch(topic, partition, offset, max_records, filter))

    def batches(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Start | None = None,
        group: str | None = None,
        follow: bool = False,
        commit: bool = True,
        filter: str | None = None,  # noqa: A002
        limit: int | None = None,
    ) -> Iterator[list[Record]]:
        """Like `records`, a list at a time: each holds records of one partition, in order. The faster way to read much."""
        return self._iterate(
            self._client.batches(
                topic, partition, start=start, group=group, follow=follow, commit=commit, filter=filter, limit=limit
            )
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
        filter: str | None = None,  # noqa: A002
        limit: int | None = None,
    ) -> Iterator[Record]:
        """Iterate over the records of one partition or of all of them; see `AsyncFlyMQClient.records`."""
        for batch in self.batches(
            topic, partition, start=start, group=group, follow=follow, commit=commit, filter=filter, limit=limit
        ):
            yield from batch

    # -- topics ----------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, **config: str | int) -> None:
        """Create a topic; one that exists stays as it is. `config` as in `AsyncFlyMQClient.create_topic`."""
        self._thread.run(self._client.create_topic(name, partitions, **config))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; one that does not exist is no error."""
        self._thread.run(self._client.delete_topic(name))

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._thread.run(self._client.topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """Raises TopicNotFound."""
        return self._thread.run(self._client.describe_topic(name))

    # -- groups ----------------------------------------------------------------------------------------------------------

    def subscribe(
        self, topic: str, group: str, partition: int, mode: Literal["earliest", "latest", "commit"] = "commit"
    ) -> int:
        """Join a group as a member for as long as the connection lasts; returns the offset to start at."""
        return self._thread.run(self._client.subscribe(topic, group, partition, mode))

    def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Store `offset` as the next one the group will read."""
        self._thread.run(self._client.commit(topic, group, partition, offset))

    def committed(self, topic: str, group: str, partition: int) -> int | None:
        """The next offset the group will read, None where it has committed nothing."""
        return self._thread.run(self._client.committed(topic, group, partition))

    def reset(self, topic: str, group: str, partition: int, to: Start) -> int:
        """Move a group's committed offset to "earliest", "latest", an offset, or a time; returns the offset it has now."""
        return self._thread.run(self._client.reset(topic, group, partition, to))

    def seek_to_time(self, topic: str, group: str | None, partition: int, time: datetime | int) -> int:
        """The first offset at or after a time (a datetime, or milliseconds since 1970); committed for the group if one is given."""
        return self._thread.run(self._client.seek_to_time(topic, group, partition, time))

    def groups(self) -> list[GroupDescription]:
        """Every group of every topic."""
        return self._thread.run(self._client.groups())

    def describe_group(self, group: str, topic: str | None = None) -> list[GroupDescription]:
        """A group's committed offsets, one entry for each topic it reads. Raises GroupNotFound."""
        return self._thread.run(self._client.describe_group(group, topic))

    def delete_group(self, group: str, topic: str | None = None) -> None:
        """Forget a group's offsets, in one topic or in all. Raises GroupNotFound."""
        self._thread.run(self._client.delete_group(group, topic))

    def lag(self, topic: str, group: str, partition: int) -> Lag:
        """How many records of a partition the group has yet to read."""
        return self._thread.run(self._client.lag(topic, group, partition))

    # -- the connection --------------------------------------------------------------------------------------------------

    def ping(self) -> float:
        """Ask for nothing and return how long the answer took, in seconds."""
        return self._thread.run(self._client.ping())

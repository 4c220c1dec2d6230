"""The FlyMQ client for programs without an event loop: the async client, run in a background thread.

Generated from `penstock.protocols.flymq`: change the async client, and run `make sync`.
"""

# ruff: noqa: A002 - arguments are named as those of the async client

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, Self

from penstock.clients.arguments import Values
from penstock.clients.options import ClientOptions
from penstock.clients.records import FetchResult, GroupDescription, Lag, Record, RecordMetadata, TopicDescription
from penstock.clients.sync import SyncClient, SyncContext, SyncObject, SyncPolled
from penstock.protocols.flymq.client.access import AsyncAccess, AsyncKeys, Identity
from penstock.protocols.flymq.client.client import FETCH_RECORDS, AsyncFlyMQClient
from penstock.protocols.flymq.client.consumer import POLL_RECORDS, AsyncConsumer, OnRebalance, TopicPartition, in_thread
from penstock.protocols.flymq.client.monitoring import AsyncMonitoring
from penstock.protocols.flymq.client.producing import Headers, Records
from penstock.protocols.flymq.client.reading import Start
from penstock.protocols.flymq.client.records import (
    LETTERS,
    AsyncDeadLetters,
    AsyncSchemas,
    DeadLetterInfo,
    DelayedRecord,
    SchemaInfo,
)
from penstock.protocols.flymq.client.spark import (
    FETCH_BYTES,
    AsyncAttempt,
    AsyncBlocks,
    AsyncPipelines,
    AsyncSnapshots,
    AsyncStaging,
    Parts,
)
from penstock.protocols.flymq.client.transactions import AsyncTransaction
from penstock.protocols.flymq.operations.access import (
    AclDescription,
    AuditQuery,
    AuditRecords,
    KeyDescription,
    RoleDescription,
    UserDescription,
)
from penstock.protocols.flymq.operations.blocks import NO_EPOCH, EncodedBlocks, Plan, TopicSpans
from penstock.protocols.flymq.operations.groups import GroupProgress, MovedPosition, SubscriptionProgress
from penstock.protocols.flymq.operations.monitoring import OpenTransaction, PendingRecord
from penstock.protocols.flymq.operations.spark import PipelineDescription, PipelineReport, Run, Unstaged, Winner
from penstock.protocols.flymq.operations.topics import ClusterState, SnapshotDescription


class FlyMQClient(SyncClient[AsyncFlyMQClient]):
    """A FlyMQ client for programs without an event loop.

    ```python
    with FlyMQClient("flymq://127.0.0.1:9092") as client:
        client.send("orders", b"one", key=b"k")
        for record in client.records("orders"):
            print(record.offset, record.value)
    ```
    Errors are those of `penstock.errors`; `error.retriable` says whether trying again can help. One client serves any number of
    threads.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | bool | None = None,
        options: ClientOptions | None = None,
        idempotent: bool = True,
    ) -> None:
        """Unless `idempotent` is false, here or in the address (`?idempotent=false`), records are sent again after a lost connection and
        stored once, if the server is a Penstock broker."""
        super().__init__(AsyncFlyMQClient(url, tls=tls, options=options, idempotent=idempotent))
        self.monitoring = Monitoring(self._thread, self._async.monitoring)
        """Members and lag of groups, and deliveries of subscriptions in flight."""
        self.dead_letters = DeadLetters(self._thread, self._async.dead_letters)
        """Dead letters: list, replay, purge."""
        self.schemas = Schemas(self._thread, self._async.schemas)
        """Schemas: register, get, list, validate, delete, bind to a topic."""
        self.access = Access(self._thread, self._async.access)
        """Users, roles, ACLs, the audit trail and the cluster."""
        self.pipelines = Pipelines(self._thread, self._async.pipelines)
        """Reports of Spark pipelines."""
        self.staging = Staging(self._thread, self._async.staging)
        """Staged writes, for writers that run in many processes."""
        self.snapshots = Snapshots(self._thread, self._async.snapshots)
        """Snapshots of the log, for backups and checks on the broker's machine."""
        self.keys = Keys(self._thread, self._async.keys)
        """API keys of other protocols: create, list, revoke."""
        self.blocks = Blocks(self._thread, self._async.blocks)
        """Whole blocks, for readers that decode columns themselves, and plans for splitting the work."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        *,
        headers: Headers = (),
        ttl_s: float | None = None,
        schema: str | None = None,
    ) -> RecordMetadata:
        """Store one record; return its place once it is committed. For many records, `send_many` is much faster.

        Without a partition the key decides, or round robin if there is none. A value of None is a tombstone: compaction removes its key.
        `headers` are names with values, as a mapping or as pairs. The timestamp is the time of the commit.

        A record with a time to live is invisible once that time has passed. One that does not match its schema ("orders",
        "orders:3") is refused with ValidationFailed. If the connection is lost, the record is sent again, and stored once. If that
        fails too, ConnectionLost and RequestTimeout leave the outcome unknown. Raises NotSupported if the server is not Penstock and
        would lose headers or a null value.
        """
        return self._thread.run(
            self._async.send(topic, value, key, partition, headers=headers, ttl_s=ttl_s, schema=schema)
        )

    def send_later(
        self,
        topic: str,
        value: bytes | None,
        delay_s: float,
        key: bytes | None = None,
        partition: int | None = None,
        *,
        headers: Headers = (),
        ttl_s: float | None = None,
    ) -> DelayedRecord:
        """Store one record that becomes readable after a delay; return once it is durable. Its `id` cancels it until then.

        A time to live begins when the record becomes readable. Without a delay the record is stored at once, and has no id.
        """
        return self._thread.run(
            self._async.send_later(topic, value, delay_s, key, partition, headers=headers, ttl_s=ttl_s)
        )

    def cancel(self, topic: str, delayed_id: str) -> None:
        """Cancel a delayed record. Raises EntryNotFound, also if it is readable already or was cancelled before."""
        self._thread.run(self._async.cancel(topic, delayed_id))

    def send_many(
        self, topic: str, records: Records, partition: int | None = None, *, schema: str | None = None
    ) -> list[RecordMetadata]:
        """Store many records, pipelined, in order; return the place of each once all are committed.

        Records are values, pairs of key and value, or triples of key, value and headers, as in `send`.

        If all failed for one reason, that error is raised; if some did, BatchFailed, whose `results` has the outcome of each.
        """
        return self._thread.run(self._async.send_many(topic, records, partition, schema=schema))

    def transaction(self, transaction_id: str | None = None) -> Transaction:
        """Return a transaction, for `with client.transaction() as txn:`.

        An id resumes a transaction that was begun before, here or elsewhere; `commit()` then returns its outcome.
        """
        return Transaction(self._thread, self._async.transaction(transaction_id))

    def fetch(
        self, topic: str, partition: int, offset: int, max_records: int = FETCH_RECORDS, filter: str | None = None
    ) -> FetchResult:
        """Read up to `max_records` records of one partition starting at `offset`; none at its end.

        A server that is not Penstock returns keys and values only: no headers, no timestamps, and empty values for tombstones.

        The broker applies `filter`: text found in value or key (any case), a regular expression, or conditions on JSON members, key
        and headers, such as `$.customer.id = 42 and $header.source = web`.
        """
        return self._thread.run(self._async.fetch(topic, partition, offset, max_records, filter))

    def batches(
        self,
        topic: str | Sequence[str],
        partition: int | None = None,
        *,
        start: Start | None = None,
        group: str | None = None,
        follow: bool = False,
        commit: bool = True,
        filter: str | None = None,
        limit: int | None = None,
        last: int | None = None,
    ) -> Iterator[list[Record]]:
        """Like `records`, a list at a time: the faster way to read many records.

        Each list has records of one partition, in order; the first has those of `last`, in the order of their times.
        """
        return self._iterate(
            self._async.batches(
                topic,
                partition,
                start=start,
                group=group,
                follow=follow,
                commit=commit,
                filter=filter,
                limit=limit,
                last=last,
            )
        )

    def records(
        self,
        topic: str | Sequence[str],
        partition: int | None = None,
        *,
        start: Start | None = None,
        group: str | None = None,
        follow: bool = False,
        commit: bool = True,
        filter: str | None = None,
        limit: int | None = None,
        last: int | None = None,
    ) -> Iterator[Record]:
        """Iterate over the records of one topic or several, of one partition or of all; order holds within a partition.

        `start` is "earliest" (default), "latest", an offset, or a time. With a `group`, reading continues at the group's
        committed offsets, `start` applies only to partitions without one, and offsets are committed as the loop continues (unless
        `commit` is false): a batch is committed when the record after it is requested. Without `follow` the iteration ends at what
        was the end of the topic when it began; with it, it waits for more. `limit` is the maximum number of records. `last` starts
        with that many of the newest records, over all partitions.
        """
        for batch in self.batches(
            topic,
            partition,
            start=start,
            group=group,
            follow=follow,
            commit=commit,
            filter=filter,
            limit=limit,
            last=last,
        ):
            yield from batch

    def consumer(
        self,
        topics: Sequence[str],
        *,
        group: str,
        start: Literal["earliest", "latest"] = "earliest",
        auto_commit: bool = True,
        session_timeout_s: float = 30.0,
        poll_interval_s_max: float = 300.0,
        instance_id: str | None = None,
        on_assigned: OnRebalance | None = None,
        on_revoked: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> Consumer:
        """Return a member of a consumer group, whose members share the partitions of their topics: iterate over it, or `poll` it.

        `start` applies to partitions without a committed offset. The broker assigns the partitions to other members after
        `session_timeout_s` without a heartbeat, or if the program does not poll for `poll_interval_s_max`. A static member, with an
        `instance_id` that no other member of the group has, keeps its partitions if it restarts within the session timeout. The
        callbacks are called with partitions that are assigned, revoked (commit their offsets), or lost to other members.
        """
        return Consumer(
            self._thread,
            self._async.consumer(
                topics,
                group=group,
                start=start,
                auto_commit=auto_commit,
                session_timeout_s=session_timeout_s,
                poll_interval_s_max=poll_interval_s_max,
                instance_id=instance_id,
                on_assigned=in_thread(on_assigned),
                on_revoked=in_thread(on_revoked),
                on_lost=in_thread(on_lost),
            ),
        )

    def create_topic(self, name: str, partitions: int = 1, **config: str | int) -> None:
        """Create a topic; an existing one is not changed. Settings: durability, retention_ms, retention_bytes, cleanup,
        compression, segment_bytes, segment_ms."""
        self._thread.run(self._async.create_topic(name, partitions, **config))

    def alter_topic(self, name: str, **config: str | int) -> None:
        """Change settings of a topic, named as in `create_topic`; others keep their values. Raises TopicNotFound."""
        self._thread.run(self._async.alter_topic(name, **config))

    def add_partitions(self, name: str, partitions: int) -> None:
        """Add partitions until a topic has this many. Records stay where they are; keys may map to other partitions afterwards."""
        self._thread.run(self._async.add_partitions(name, partitions))

    def truncate_topic(
        self, name: str, before: Literal["latest"] | int | datetime, partition: int | None = None
    ) -> None:
        """Delete the records before an offset (in one partition) or a time, or all of them ("latest")."""
        self._thread.run(self._async.truncate_topic(name, before, partition))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records, if it exists."""
        self._thread.run(self._async.delete_topic(name))

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._thread.run(self._async.topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic with its settings and partitions. Raises TopicNotFound."""
        return self._thread.run(self._async.describe_topic(name))

    def describe_topics(self) -> list[TopicDescription]:
        """Return every topic, by name: up to 10,000 partitions a request, or a request for each topic if the server is not Penstock."""
        return self._thread.run(self._async.describe_topics())

    def subscribe(
        self, topic: str, group: str, partition: int, mode: Literal["earliest", "latest", "commit"] = "commit"
    ) -> int:
        """Join a group until the connection ends; return the offset to start at."""
        return self._thread.run(self._async.subscribe(topic, group, partition, mode))

    def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Commit `offset` as the next one the group reads."""
        self._thread.run(self._async.commit(topic, group, partition, offset))

    def committed(self, topic: str, group: str, partition: int) -> int | None:
        """Return the next offset the group reads, or None if it has committed nothing."""
        return self._thread.run(self._async.committed(topic, group, partition))

    def reset(self, topic: str, group: str, partition: int, to: Start) -> int:
        """Move a group's committed offset to "earliest", "latest", an offset, or a time; return the new offset."""
        return self._thread.run(self._async.reset(topic, group, partition, to))

    def seek_to_time(self, topic: str, group: str | None, partition: int, time: datetime | int) -> int:
        """Return the first offset at or after a time (a datetime, or milliseconds since 1970), and commit it if a group is given."""
        return self._thread.run(self._async.seek_to_time(topic, group, partition, time))

    def groups(self) -> list[GroupDescription]:
        """Return every group of every topic."""
        return self._thread.run(self._async.groups())

    def describe_group(self, group: str, topic: str | None = None) -> list[GroupDescription]:
        """Return a group's committed offsets, one entry for each topic it reads. Raises GroupNotFound."""
        return self._thread.run(self._async.describe_group(group, topic))

    def delete_group(self, group: str, topic: str | None = None) -> None:
        """Delete a group's offsets, in one topic or in all. Raises GroupNotFound."""
        self._thread.run(self._async.delete_group(group, topic))

    def lag(self, topic: str, group: str, partition: int) -> Lag:
        """Return the consumer lag of a group in one partition."""
        return self._thread.run(self._async.lag(topic, group, partition))

    def ping(self) -> float:
        """Send a request that changes nothing and return the round-trip time in seconds."""
        return self._thread.run(self._async.ping())


class Access(SyncObject[AsyncAccess]):
    """`client.access` of the sync client."""

    def whoami(self) -> Identity | None:
        """Return the authenticated user, or None if the client is anonymous."""
        return self._thread.run(self._async.whoami())

    def create_user(self, user: str, password: str, roles: Sequence[str] = ()) -> None:
        """Create a user. Raises UserExists."""
        self._thread.run(self._async.create_user(user, password, roles))

    def update_user(self, user: str, roles: Sequence[str] = (), enabled: bool | None = None) -> None:
        """Replace the roles of a user (if any are given), and enable or disable it (unless None). Raises UserNotFound."""
        self._thread.run(self._async.update_user(user, roles, enabled))

    def delete_user(self, user: str) -> None:
        """Delete a user. Raises UserNotFound."""
        self._thread.run(self._async.delete_user(user))

    def users(self) -> list[UserDescription]:
        """Return all users, without their permissions."""
        return self._thread.run(self._async.users())

    def user(self, user: str) -> UserDescription:
        """Return one user. Raises UserNotFound."""
        return self._thread.run(self._async.user(user))

    def set_password(self, user: str, password: str, old_password: str = "") -> None:
        """Change your own password, which requires the old one, or, as an administrator, that of another user."""
        self._thread.run(self._async.set_password(user, password, old_password))

    def roles(self) -> list[RoleDescription]:
        """Return all roles, the built-in ones first."""
        return self._thread.run(self._async.roles())

    def set_role(self, role: str, permissions: Sequence[str], description: str = "") -> None:
        """Create a role, or replace a custom one. Permissions: read, write, commit, describe, create, delete, admin."""
        self._thread.run(self._async.set_role(role, permissions, description))

    def delete_role(self, role: str) -> None:
        """Delete a custom role that no user has and no ACL names."""
        self._thread.run(self._async.delete_role(role))

    def set_acl(
        self, topic: str, users: Sequence[str] = (), roles: Sequence[str] = (), *, public: bool = False
    ) -> None:
        """Set the ACL of a topic, replacing any other. `topic` may end in `*`; an entry may end in `:read` or `:write`."""
        self._thread.run(self._async.set_acl(topic, users, roles, public=public))

    def acl(self, topic: str) -> AclDescription:
        """Return the ACL with exactly this name; `exists` is false if there is none."""
        return self._thread.run(self._async.acl(topic))

    def delete_acl(self, topic: str) -> None:
        """Delete an ACL, if it exists."""
        self._thread.run(self._async.delete_acl(topic))

    def acls(self) -> list[AclDescription]:
        """Return all ACLs, by topic."""
        return self._thread.run(self._async.acls())

    def audit(self, query: AuditQuery | None = None) -> AuditRecords:
        """Return events of the audit trail, newest first."""
        return self._thread.run(self._async.audit(query))

    def export_audit(self, form: Literal["json", "csv"], query: AuditQuery | None = None) -> bytes:
        """Return events as the bytes of a JSON or CSV file."""
        return self._thread.run(self._async.export_audit(form, query))

    def cluster_status(self) -> ClusterState:
        """Return the nodes of the cluster, and which one leads."""
        return self._thread.run(self._async.cluster_status())


class Keys(SyncObject[AsyncKeys]):
    """`client.keys` of the sync client."""

    def create(self, name: str, roles: Sequence[str] = ()) -> str:
        """Create an API key and return its secret, which cannot be shown again. Without roles it may publish and read."""
        return self._thread.run(self._async.create(name, roles))

    def list(self) -> list[KeyDescription]:
        """Return all keys by name, without their secrets."""
        return self._thread.run(self._async.list())

    def revoke(self, name: str) -> None:
        """Revoke a key, also for connections that are authenticated with it. Raises EntryNotFound."""
        self._thread.run(self._async.revoke(name))


class Consumer(SyncPolled[AsyncConsumer, Record]):
    """A member of a consumer group.

    ```python
    with client.consumer(["orders"], group="billing") as consumer:
        for record in consumer:
            print(record.partition, record.offset, record.value)
    ```
    It joins with the first `poll`. One task at a time reads from it; `commit` may be called from any.
    """

    def poll(self, max_records: int = POLL_RECORDS, timeout_s: float = 1.0) -> list[Record]:
        """Return the next records of the assigned partitions, an empty list if there are none within `timeout_s`.

        What was returned before counts as processed. Callbacks of a rebalance run here. Errors that time can mend, such as a broker that
        restarts, are retried; others are raised.
        """
        return self._thread.run(self._async.poll(max_records, timeout_s))

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit the given offsets (the next to read of each partition), or those after all records that were handed out.

        Raises ConsumerFenced if a partition does not belong to this consumer any more: another member reads these records again.
        """
        self._thread.run(self._async.commit(offsets))

    def close(self) -> None:
        """Commit what was handed out (with `auto_commit`), give up all partitions and leave the group. Closing again does nothing.

        A static member does not leave: if it joins again within its session timeout, it has its partitions back.
        """
        self._thread.run(self._async.close())

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads, sorted."""
        return self._async.assignment

    @property
    def closed(self) -> bool:
        return self._async.closed

    @property
    def generation(self) -> int:
        """The generation of the group as of the last heartbeat, 0 before the first."""
        return self._async.generation

    @property
    def member_id(self) -> str:
        """The id under which the group knows this consumer; another one after its session has ended."""
        return self._async.member_id


class Monitoring(SyncObject[AsyncMonitoring]):
    """Members, assignments and lag of groups, what subscriptions have in flight, and what waits to become readable. Needs the right to
    administer the broker."""

    def groups(self, group: str = "", topic: str = "") -> list[GroupProgress]:
        """Return groups by topic and name, each once for each topic it reads, with the lag of every partition; all, or some by name."""
        return self._thread.run(self._async.groups(group, topic))

    def subscriptions(self, name: str = "", topic: str = "") -> list[SubscriptionProgress]:
        """Return the subscriptions of BlipMQ, Fujin and Felix by topic and name; all, or some by name."""
        return self._thread.run(self._async.subscriptions(name, topic))

    def reset_group(
        self,
        group: str,
        topic: str,
        to: Start | None = None,
        *,
        shift: int | None = None,
        partition: int | None = None,
        preview: bool = False,
    ) -> list[MovedPosition]:
        """Move a group in a topic `to` "earliest", "latest", an offset or a time, or by `shift` records (back if negative); return what
        changed in each partition.

        All partitions are moved, unless one is given. With `preview` nothing changes. Positions stay within the log. Raises
        InvalidRequest while the group has members. Needs the right to commit for the group only.
        """
        return self._thread.run(
            self._async.reset_group(group, topic, to, shift=shift, partition=partition, preview=preview)
        )

    def reset_subscription(
        self,
        name: str,
        topic: str,
        to: Start | None = None,
        *,
        shift: int | None = None,
        partition: int | None = None,
        preview: bool = False,
    ) -> list[MovedPosition]:
        """The same for a subscription of BlipMQ, Fujin or Felix, known by its name or by # and its number.

        Records before the new position count as settled, those from it on are delivered as if for the first time. Raises GroupNotFound,
        InvalidRequest while it has readers.
        """
        return self._thread.run(
            self._async.reset_subscription(name, topic, to, shift=shift, partition=partition, preview=preview)
        )

    def delayed(self, topic: str = "", limit: int = 1000) -> list[PendingRecord]:
        """Return the delayed records that are due next, at most `limit`, of one topic or of all."""
        return self._thread.run(self._async.delayed(topic, limit))

    def transactions(self) -> list[OpenTransaction]:
        """Return the open transactions of all clients, oldest first."""
        return self._thread.run(self._async.transactions())


class DeadLetters(SyncObject[AsyncDeadLetters]):
    """`client.dead_letters` of the sync client."""

    def list(self, topic: str, max_letters: int = LETTERS) -> list[DeadLetterInfo]:
        """Return the dead letters of a topic that were not replayed, oldest first."""
        return self._thread.run(self._async.list(topic, max_letters))

    def replay(self, topic: str, letter_id: str) -> None:
        """Write a dead letter to its topic again, once. Raises EntryNotFound, also if it was replayed before."""
        self._thread.run(self._async.replay(topic, letter_id))

    def replay_at(self, topic: str, offset: int) -> None:
        """Replay the dead letter at an offset of the dead-letter topic."""
        self._thread.run(self._async.replay_at(topic, offset))

    def replay_all(self, topic: str, filter: str = "", *, dry_run: bool = False) -> int:
        """Replay every dead letter, or those whose record or reason matches a filter as in `fetch`; return how many.

        A dry run only counts. Retried after a lost connection: what was replayed by then is neither replayed nor counted again.
        """
        return self._thread.run(self._async.replay_all(topic, filter, dry_run=dry_run))

    def purge(self, topic: str) -> None:
        """Delete all dead letters of a topic, replayed or not."""
        self._thread.run(self._async.purge(topic))


class Schemas(SyncObject[AsyncSchemas]):
    """`client.schemas` of the sync client."""

    def register(self, name: str, definition: str, type: str = "json", compatibility: str | None = None) -> SchemaInfo:
        """Register the next version of a schema (json, avro or protobuf), or return the version that already has this definition.

        `compatibility` (none, backward, forward, full) applies to later versions. Raises SchemaInvalid, IncompatibleSchema.
        """
        return self._thread.run(self._async.register(name, definition, type, compatibility))

    def get(self, name: str, version: int | None = None) -> SchemaInfo:
        """Return one version with its definition, by default the latest. Raises SchemaNotFound."""
        return self._thread.run(self._async.get(name, version))

    def validate(self, schema: str, value: bytes) -> list[str]:
        """Return why a value does not match a schema ("orders", "orders:3"); an empty list if it does. Raises SchemaNotFound."""
        return self._thread.run(self._async.validate(schema, value))

    def delete(self, name: str, version: int | None = None) -> None:
        """Delete one version, or all of them. Raises SchemaNotFound."""
        self._thread.run(self._async.delete(name, version))

    def bind(self, topic: str, schema: str | None) -> None:
        """Require that records of a topic match a schema ("orders", "orders:3"); None removes the requirement."""
        self._thread.run(self._async.bind(topic, schema))

    def list(self, name: str | None = None) -> list[SchemaInfo]:
        """Return every version of one schema, or of all."""
        return self._thread.run(self._async.list(name))


class Staging(SyncObject[AsyncStaging]):
    """Staged writes: records that become visible when a commit names the task attempts that staged them. The Spark sink uses it."""

    def begin_run(
        self,
        application: str,
        name: str,
        *,
        lasting: bool = True,
        query: str = "",
        replaces: bool = False,
        topic: str = "",
    ) -> Run:
        """Begin a run of an application, or return the run with this name. Raises ProducerFenced if a newer run has begun.

        Records staged by older runs are dropped. An application that is not `lasting` has one epoch, and is soon forgotten. The reply names
        the query that the application belongs to: the first that was named, or the last that `replaces` it. Of a `topic` that exists it has
        the id and the number of partitions.
        """
        return self._thread.run(
            self._async.begin_run(application, name, lasting=lasting, query=query, replaces=replaces, topic=topic)
        )

    def attempt(self, application: str, run: int, epoch: int, attempt: str) -> Attempt:
        """Return an object that stages the records of one task attempt."""
        return Attempt(self._thread, self._async.attempt(application, run, epoch, attempt))

    def commit(
        self, application: str, run: int, epoch: int, winners: Sequence[Winner], unstaged: Sequence[Unstaged] = ()
    ) -> bool:
        """Publish what the winning attempts staged, atomically and once. Return False if the epoch was committed before.

        `unstaged` are more records of the epoch: where all of them fit into a request, nothing needs to be staged. Raises TopicNotFound if
        a topic is not the one that `begin_run` found. Returns when all records are visible; a large commit may take long.
        """
        return self._thread.run(self._async.commit(application, run, epoch, winners, unstaged))

    def abort(self, application: str, run: int, epoch: int) -> bool:
        """Drop what this run and earlier ones staged for an epoch. Return False if the epoch is committed.

        Raises OutcomeUnknown if only a restart of the broker can tell whether it is.
        """
        return self._thread.run(self._async.abort(application, run, epoch))


class Attempt(SyncObject[AsyncAttempt]):
    """The requests of one task attempt, pipelined."""

    @property
    def winner(self) -> Winner:
        """The name of this attempt in a commit."""
        return self._async.winner

    def stage(self, topic: str, parts: Parts) -> None:
        """Send blocks for partitions of a topic, which is created if it is missing. Returns when another request may be sent.

        Raises the error of this or an earlier request; then the attempt has failed.
        """
        self._thread.run(self._async.stage(topic, parts))

    def finish(self) -> Winner:
        """Wait until everything is staged."""
        return self._thread.run(self._async.finish())

    def cancel(self) -> None:
        """Wait for the requests in flight, and ignore their results."""
        self._thread.run(self._async.cancel())


class Pipelines(SyncObject[AsyncPipelines]):
    """All requests are idempotent, so they are retried after a lost connection."""

    def report(self, report: PipelineReport) -> bool:
        """Report the progress of a run; return whether it should stop."""
        return self._thread.run(self._async.report(report))

    def list(self) -> list[PipelineDescription]:
        """Return the last report of every pipeline, by name."""
        return self._thread.run(self._async.list())

    def stop(self, pipeline: str) -> bool:
        """Ask the current run of a pipeline to stop; return whether there is one. Raises EntryNotFound."""
        return self._thread.run(self._async.stop(pipeline))


class Blocks(SyncObject[AsyncBlocks]):
    """Reads of whole blocks. Requests are retried after a lost connection."""

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        topic_id: str = "",
        max_bytes: int = FETCH_BYTES,
        epoch: int = NO_EPOCH,
    ) -> EncodedBlocks:
        """Return whole blocks as they are stored, beginning with the one that holds `offset`; none at the end of the partition.

        At least one, then more while they fit into `max_bytes`. Raises OffsetOutOfRange, also if the partition's log epoch is not the one
        given, and TopicNotFound, also if the topic's id is not the one given. Expired records are included; the caller filters them.
        """
        return self._thread.run(
            self._async.fetch(topic, partition, offset, topic_id=topic_id, max_bytes=max_bytes, epoch=epoch)
        )

    def plan(self, topics: Sequence[TopicSpans], *, step_bytes: int = 0, wait_ms: int = 0) -> Plan:
        """Return ids, start and end offsets and log epochs of topics, where their logs were cut since the epochs of the given spans and,
        with `step_bytes`, where the blocks of the spans are.

        With `wait_ms`, the reply is sent once there is a record after one of the spans, its log was cut, or the time is over.
        """
        return self._thread.run(self._async.plan(topics, step_bytes=step_bytes, wait_ms=wait_ms))


class Snapshots(SyncObject[AsyncSnapshots]):
    """Requests are retried after a lost connection: a snapshot that nobody reads is removed after a minute."""

    def create(self) -> SnapshotDescription:
        """Create a snapshot of every topic, for a reader on the broker's machine that locks it within a minute."""
        return self._thread.run(self._async.create())

    def release(self, snapshot_id: str) -> None:
        """Release a snapshot. Its files are removed once its lock is free."""
        self._thread.run(self._async.release(snapshot_id))


class Transaction(SyncContext[AsyncTransaction]):
    """Records and group offsets that become visible together or not at all.

    ```python
    with client.transaction() as txn:
        txn.send("orders", b"one", key=b"k")
        txn.send("payments", b"1.00")
        txn.commit_offset("carts", "checkout", partition=0, offset=42)
    ```
    The end of the block commits; an exception inside it rolls back. Nothing can be read before the commit is done. A transaction that is
    open for too long (a minute, unless the broker is configured otherwise) is rolled back by the broker.
    """

    @property
    def id(self) -> str:
        """The id that the broker assigned."""
        return self._async.id

    def begin(self) -> Self:
        """Begin the transaction, as entering the block does."""
        self._thread.run(self._async.begin())
        return self

    def send(self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None) -> int:
        """Add one record; return its partition. The commit assigns its offset."""
        return self._thread.run(self._async.send(topic, value, key, partition))

    def send_many(self, topic: str, records: Values, partition: int | None = None) -> list[int]:
        """Add many records (values, or pairs of key and value), pipelined, in order; return the partition of each.

        If some are refused, the others are in the transaction: roll back, or commit without the refused ones.
        """
        return self._thread.run(self._async.send_many(topic, records, partition))

    def commit_offset(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Commit a group's next offset with the transaction, so that input offsets and output records change atomically."""
        self._async.commit_offset(topic, group, partition, offset)

    def commit(self) -> None:
        """Commit: make all records visible atomically. Retried after a lost connection; a commit is never applied twice.

        Raises TransactionNotFound or TransactionNotActive if it was not committed and cannot be: it timed out, or the broker was restarted.
        After OutcomeUnknown, RequestTimeout and ConnectionLost the outcome is unknown: call it again to find out.
        """
        self._thread.run(self._async.commit())

    def rollback(self) -> None:
        """Roll back: drop all records. Raises TransactionNotActive if it is committed."""
        self._thread.run(self._async.rollback())

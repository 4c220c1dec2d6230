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
from penstock.protocols.flymq.operations.groups import GroupProgress, SubscriptionProgress
from penstock.protocols.flymq.operations.monitoring import OpenTransaction, PendingRecord
from penstock.protocols.flymq.operations.spark import PipelineDescription, PipelineReport, Run, Winner
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
        """Members and lag of groups, and what subscriptions have in flight."""
        self.dead_letters = DeadLetters(self._thread, self._async.dead_letters)
        """Records that failed: list, replay, purge."""
        self.schemas = Schemas(self._thread, self._async.schemas)
        """What records must look like: register, get, list, validate, delete, bind to a topic."""
        self.access = Access(self._thread, self._async.access)
        """Users, roles, ACLs, the audit trail and the cluster."""
        self.pipelines = Pipelines(self._thread, self._async.pipelines)
        """What Spark pipelines report of themselves."""
        self.staging = Staging(self._thread, self._async.staging)
        """Records that are published when a commit names them, for writers of many processes."""
        self.snapshots = Snapshots(self._thread, self._async.snapshots)
        """Snapshots of the log, for backups and checks on the broker's machine."""
        self.keys = Keys(self._thread, self._async.keys)
        """API keys of other protocols: create, list, revoke."""
        self.blocks = Blocks(self._thread, self._async.blocks)
        """Whole blocks, for readers that decode columns themselves, and plans for sharing out the work."""

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
        """Store one record; returns where, once it is committed. For many records, `send_many` is much faster.

        Without a partition the key decides, or else they take turns. A value of None is a tombstone: compaction removes its key.
        `headers` are names with values, as a mapping or as pairs. The timestamp is when the broker commits the record.

        A record with a time to live is shown to no reader once that time has passed. One that is not what its schema ("orders",
        "orders:3") says is refused with ValidationFailed. If the connection is lost, the record is sent again, and stored once. If that
        fails too, ConnectionLost and RequestTimeout leave open whether it was stored. Raises NotSupported if the server is not Penstock and
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
        """Store one record after a delay; returns once it is safe that it will be. Its `id` cancels it until then.

        A time to live begins with the delivery. Without a delay the record is stored at once, and has no id.
        """
        return self._thread.run(
            self._async.send_later(topic, value, delay_s, key, partition, headers=headers, ttl_s=ttl_s)
        )

    def cancel(self, topic: str, delayed_id: str) -> None:
        """End a delayed record before its time. Raises EntryNotFound, also where it was delivered or cancelled before."""
        self._thread.run(self._async.cancel(topic, delayed_id))

    def send_many(
        self, topic: str, records: Records, partition: int | None = None, *, schema: str | None = None
    ) -> list[RecordMetadata]:
        """Store many records, pipelined, in order; returns where each is, once all are committed.

        Records are values, pairs of key and value, or triples of key, value and headers, as in `send`.

        If all failed for one reason, that error is raised; if some did, BatchFailed, whose `results` tell of each record.
        """
        return self._thread.run(self._async.send_many(topic, records, partition, schema=schema))

    def transaction(self, transaction_id: str | None = None) -> Transaction:
        """Records and group offsets that appear together or not at all: `with client.transaction() as txn:`.

        An id goes on with a transaction that was begun before, here or elsewhere; `commit()` then tells what became of it.
        """
        return Transaction(self._thread, self._async.transaction(transaction_id))

    def fetch(
        self, topic: str, partition: int, offset: int, max_records: int = FETCH_RECORDS, filter: str | None = None
    ) -> FetchResult:
        """Read up to `max_records` records of one partition from `offset` on; none at its end.

        A server that is not Penstock gives keys and values only: no headers, no timestamps, and empty values for tombstones.

        `filter` leaves out records at the broker: text found in value or key (any case), a regular expression, or `$.path` for JSON
        values that have such a member.
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
        """Like `records`, a list at a time. The faster way to read much.

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

        `start` is "earliest" (default), "latest", an offset, or a time. With a `group`, reading goes on where the group's committed
        offsets stand, `start` counts only where there are none, and offsets are committed as the loop asks for more (unless
        `commit` is false): a record counts as read once all of its batch was handed out and the next record was asked for. Without
        `follow` the iteration ends at what was the end of the topic when it began; with it, it waits for more. `limit` ends it after
        so many records. `last` starts with that many of the newest records, over all partitions.
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

        `start` counts for partitions without a committed offset. The broker gives the partitions to other members after
        `session_timeout_s` without a heartbeat, or if the program does not poll for `poll_interval_s_max`. A static member, with an
        `instance_id` that no other member of the group has, keeps its partitions if it restarts within the session timeout. The
        callbacks are told of partitions when they are taken up, given up (commit what was read of them), or lost to others.
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
        """Create a topic; one that exists stays as it is. Settings: durability, retention_ms, retention_bytes, cleanup,
        compression, segment_bytes, segment_ms."""
        self._thread.run(self._async.create_topic(name, partitions, **config))

    def alter_topic(self, name: str, **config: str | int) -> None:
        """Change settings of a topic, named as in `create_topic`; others stay as they are. Raises TopicNotFound."""
        self._thread.run(self._async.alter_topic(name, **config))

    def add_partitions(self, name: str, partitions: int) -> None:
        """Add partitions until a topic has this many. Records stay where they are; keys may map to other partitions afterwards."""
        self._thread.run(self._async.add_partitions(name, partitions))

    def truncate_topic(
        self, name: str, before: Literal["latest"] | int | datetime, partition: int | None = None
    ) -> None:
        """Delete the records before an offset (in one partition) or a time, or all there are ("latest")."""
        self._thread.run(self._async.truncate_topic(name, before, partition))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; one that does not exist is no error."""
        self._thread.run(self._async.delete_topic(name))

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._thread.run(self._async.topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """Raises TopicNotFound."""
        return self._thread.run(self._async.describe_topic(name))

    def describe_topics(self) -> list[TopicDescription]:
        """Return every topic, by name: some thousand partitions a request, or a request for each topic if the server is not Penstock."""
        return self._thread.run(self._async.describe_topics())

    def subscribe(
        self, topic: str, group: str, partition: int, mode: Literal["earliest", "latest", "commit"] = "commit"
    ) -> int:
        """Join a group as a member for as long as the connection lasts; returns the offset to start at."""
        return self._thread.run(self._async.subscribe(topic, group, partition, mode))

    def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Store `offset` as the next one the group will read."""
        self._thread.run(self._async.commit(topic, group, partition, offset))

    def committed(self, topic: str, group: str, partition: int) -> int | None:
        """The next offset the group will read, None where it has committed nothing."""
        return self._thread.run(self._async.committed(topic, group, partition))

    def reset(self, topic: str, group: str, partition: int, to: Start) -> int:
        """Move a group's committed offset to "earliest", "latest", an offset, or a time; returns the offset it has now."""
        return self._thread.run(self._async.reset(topic, group, partition, to))

    def seek_to_time(self, topic: str, group: str | None, partition: int, time: datetime | int) -> int:
        """The first offset at or after a time (a datetime, or milliseconds since 1970); committed for the group if one is given."""
        return self._thread.run(self._async.seek_to_time(topic, group, partition, time))

    def groups(self) -> list[GroupDescription]:
        """Every group of every topic."""
        return self._thread.run(self._async.groups())

    def describe_group(self, group: str, topic: str | None = None) -> list[GroupDescription]:
        """A group's committed offsets, one entry for each topic it reads. Raises GroupNotFound."""
        return self._thread.run(self._async.describe_group(group, topic))

    def delete_group(self, group: str, topic: str | None = None) -> None:
        """Forget a group's offsets, in one topic or in all. Raises GroupNotFound."""
        self._thread.run(self._async.delete_group(group, topic))

    def lag(self, topic: str, group: str, partition: int) -> Lag:
        """How many records of a partition the group has yet to read."""
        return self._thread.run(self._async.lag(topic, group, partition))

    def ping(self) -> float:
        """Ask for nothing and return how long the answer took, in seconds."""
        return self._thread.run(self._async.ping())


class Access(SyncObject[AsyncAccess]):
    """`client.access` of the sync client."""

    def whoami(self) -> Identity | None:
        """Whom the broker takes this client for; None where nobody has logged in."""
        return self._thread.run(self._async.whoami())

    def create_user(self, user: str, password: str, roles: Sequence[str] = ()) -> None:
        """Raises UserExists."""
        self._thread.run(self._async.create_user(user, password, roles))

    def update_user(self, user: str, roles: Sequence[str] = (), enabled: bool | None = None) -> None:
        """Give a user other roles (none: unchanged), or let it log in or not (None: unchanged). Raises UserNotFound."""
        self._thread.run(self._async.update_user(user, roles, enabled))

    def delete_user(self, user: str) -> None:
        """Raises UserNotFound."""
        self._thread.run(self._async.delete_user(user))

    def users(self) -> list[UserDescription]:
        """Every user, without permissions."""
        return self._thread.run(self._async.users())

    def user(self, user: str) -> UserDescription:
        """Raises UserNotFound."""
        return self._thread.run(self._async.user(user))

    def set_password(self, user: str, password: str, old_password: str = "") -> None:
        """One's own, for which the old one is needed, or, as an administrator, somebody else's."""
        self._thread.run(self._async.set_password(user, password, old_password))

    def roles(self) -> list[RoleDescription]:
        """Every role, the built-in ones first."""
        return self._thread.run(self._async.roles())

    def set_role(self, role: str, permissions: Sequence[str], description: str = "") -> None:
        """Make a role, or change one that is not built in. Permissions: read, write, describe, create, delete, admin."""
        self._thread.run(self._async.set_role(role, permissions, description))

    def delete_role(self, role: str) -> None:
        """One that nobody has any more."""
        self._thread.run(self._async.delete_role(role))

    def set_acl(
        self, topic: str, users: Sequence[str] = (), roles: Sequence[str] = (), *, public: bool = False
    ) -> None:
        """Put an ACL in the place of the one there may be. `topic` may end in `*`; an entry may end in `:read` or `:write`."""
        self._thread.run(self._async.set_acl(topic, users, roles, public=public))

    def acl(self, topic: str) -> AclDescription:
        """The ACL of this very name; `exists` is false where there is none."""
        return self._thread.run(self._async.acl(topic))

    def delete_acl(self, topic: str) -> None:
        """One that does not exist is no error."""
        self._thread.run(self._async.delete_acl(topic))

    def acls(self) -> list[AclDescription]:
        return self._thread.run(self._async.acls())

    def audit(self, query: AuditQuery | None = None) -> AuditRecords:
        """Events of the audit trail, newest first."""
        return self._thread.run(self._async.audit(query))

    def export_audit(self, form: Literal["json", "csv"], query: AuditQuery | None = None) -> bytes:
        """The same as a file."""
        return self._thread.run(self._async.export_audit(form, query))

    def cluster_status(self) -> ClusterState:
        return self._thread.run(self._async.cluster_status())


class Keys(SyncObject[AsyncKeys]):
    """`client.keys` of the sync client."""

    def create(self, name: str, roles: Sequence[str] = ()) -> str:
        """Make a key; returns it, and nobody can see it again. Without roles it may publish and read."""
        return self._thread.run(self._async.create(name, roles))

    def list(self) -> list[KeyDescription]:
        """Every key by name, without its secret."""
        return self._thread.run(self._async.list())

    def revoke(self, name: str) -> None:
        """Forget a key; who is logged in with it is turned away. Raises EntryNotFound."""
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

    def delayed(self, topic: str = "", limit: int = 1000) -> list[PendingRecord]:
        """Return the delayed records that are due next, at most `limit`, of one topic or of all."""
        return self._thread.run(self._async.delayed(topic, limit))

    def transactions(self) -> list[OpenTransaction]:
        """Return the open transactions of all clients, oldest first."""
        return self._thread.run(self._async.transactions())


class DeadLetters(SyncObject[AsyncDeadLetters]):
    """`client.dead_letters` of the sync client."""

    def list(self, topic: str, max_letters: int = LETTERS) -> list[DeadLetterInfo]:
        """The records of a topic that failed and were not replayed, oldest first; none where it has no dead letters."""
        return self._thread.run(self._async.list(topic, max_letters))

    def replay(self, topic: str, letter_id: str) -> None:
        """Write a failed record to its topic again, once. Raises EntryNotFound, also where it was replayed before."""
        self._thread.run(self._async.replay(topic, letter_id))

    def replay_at(self, topic: str, offset: int) -> None:
        """The same for the dead letter at an offset of the dead-letter topic."""
        self._thread.run(self._async.replay_at(topic, offset))

    def replay_all(self, topic: str, filter: str = "", *, dry_run: bool = False) -> int:
        """Replay every dead letter, or those whose record or reason matches a filter as in `fetch`; returns how many.

        A dry run only counts. Sent again where the connection was lost: what was replayed by then is not replayed again, nor counted.
        """
        return self._thread.run(self._async.replay_all(topic, filter, dry_run=dry_run))

    def purge(self, topic: str) -> None:
        """Delete all dead letters of a topic, replayed or not; none are no error."""
        self._thread.run(self._async.purge(topic))


class Schemas(SyncObject[AsyncSchemas]):
    """`client.schemas` of the sync client."""

    def register(self, name: str, definition: str, type: str = "json", compatibility: str | None = None) -> SchemaInfo:
        """Register the next version (json, avro or protobuf), or find the one that has this definition already.

        `compatibility` (none, backward, forward, full) is kept for versions to come. Raises SchemaInvalid, IncompatibleSchema.
        """
        return self._thread.run(self._async.register(name, definition, type, compatibility))

    def get(self, name: str, version: int | None = None) -> SchemaInfo:
        """One version with its definition, by default the latest. Raises SchemaNotFound."""
        return self._thread.run(self._async.get(name, version))

    def validate(self, schema: str, value: bytes) -> list[str]:
        """What is wrong with a record; nothing where it is what the schema ("orders", "orders:3") says. Raises SchemaNotFound."""
        return self._thread.run(self._async.validate(schema, value))

    def delete(self, name: str, version: int | None = None) -> None:
        """Delete one version, or all of them. Raises SchemaNotFound."""
        self._thread.run(self._async.delete(name, version))

    def bind(self, topic: str, schema: str | None) -> None:
        """From now on records of the topic must follow the schema ("orders", "orders:3"); None lifts that."""
        self._thread.run(self._async.bind(topic, schema))

    def list(self, name: str | None = None) -> list[SchemaInfo]:
        """Every version of one schema, or of all."""
        return self._thread.run(self._async.list(name))


class Staging(SyncObject[AsyncStaging]):
    """Records that are shown to nobody until a commit names the attempts they belong to; see docs/spark.md for who uses it."""

    def begin_run(
        self, application: str, name: str, *, lasting: bool = True, query: str = "", replaces: bool = False
    ) -> Run:
        """Begin a run of an application, or find the one of this name begun. Raises ProducerFenced where a newer one has begun.

        What older runs staged is dropped. An application that is not `lasting` has one epoch, and is soon forgotten. The reply names the
        query that the application belongs to: the first that was named, or the last that `replaces` it.
        """
        return self._thread.run(
            self._async.begin_run(application, name, lasting=lasting, query=query, replaces=replaces)
        )

    def attempt(self, application: str, run: int, epoch: int, attempt: str) -> Attempt:
        """What one attempt of one task stages."""
        return Attempt(self._thread, self._async.attempt(application, run, epoch, attempt))

    def commit(self, application: str, run: int, epoch: int, winners: Sequence[Winner]) -> bool:
        """Publish what the winners staged, all or nothing, once. False where the epoch was committed before.

        Returns when all of it can be read; a large commit may take long.
        """
        return self._thread.run(self._async.commit(application, run, epoch, winners))

    def abort(self, application: str, run: int, epoch: int) -> bool:
        """Drop what this run and earlier ones staged for an epoch. False where it was committed, which stays."""
        return self._thread.run(self._async.abort(application, run, epoch))


class Attempt(SyncObject[AsyncAttempt]):
    """Requests of one attempt, some of them on their way at a time."""

    @property
    def winner(self) -> Winner:
        """What names this attempt in a commit."""
        return self._async.winner

    def stage(self, topic: str, parts: Parts) -> None:
        """Send blocks for partitions of a topic (which is created where it is missing). Returns when there is room for more.

        Raises what went wrong with this or an earlier request; then the attempt has failed.
        """
        self._thread.run(self._async.stage(topic, parts))

    def finish(self) -> Winner:
        """Wait until everything is staged."""
        return self._thread.run(self._async.finish())

    def cancel(self) -> None:
        """Wait for what is on its way, whatever comes of it."""
        self._thread.run(self._async.cancel())


class Pipelines(SyncObject[AsyncPipelines]):
    """Every request may be sent again where a connection was lost: reporting or stopping twice is doing it once."""

    def report(self, report: PipelineReport) -> bool:
        """Say how a run is doing; returns whether it should stop."""
        return self._thread.run(self._async.report(report))

    def list(self) -> list[PipelineDescription]:
        """The last report of every pipeline, by name."""
        return self._thread.run(self._async.list())

    def stop(self, pipeline: str) -> bool:
        """Ask the running run of a pipeline to stop; returns whether there is one. Raises EntryNotFound."""
        return self._thread.run(self._async.stop(pipeline))


class Blocks(SyncObject[AsyncBlocks]):
    """`read` may be sent again where a connection was lost."""

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
        """Whole blocks as they are stored, the first of which holds `offset`; none at the end of the partition.

        At least one, then more while they fit into `max_bytes`. Raises OffsetOutOfRange, also if the partition's log epoch is not the one
        given, and TopicNotFound also where the topic's id is not the one given. Expired records are among them; who reads blocks leaves
        them out itself.
        """
        return self._thread.run(
            self._async.fetch(topic, partition, offset, topic_id=topic_id, max_bytes=max_bytes, epoch=epoch)
        )

    def plan(self, topics: Sequence[TopicSpans], *, step_bytes: int = 0, wait_ms: int = 0) -> Plan:
        """What the broker holds of some topics: ids, start and end offsets, log epochs, where the log was cut since the epochs of the
        given spans, and with `step_bytes` where the blocks of the spans lie.

        With `wait_ms`, the answer comes once there is a record after one of the spans, its log was cut, or the time is over.
        """
        return self._thread.run(self._async.plan(topics, step_bytes=step_bytes, wait_ms=wait_ms))


class Snapshots(SyncObject[AsyncSnapshots]):
    """A request may be sent again if a connection was lost: a snapshot that nobody reads is removed after a minute."""

    def create(self) -> SnapshotDescription:
        """Have the broker keep every topic as it is now, for a reader on its machine that locks the snapshot within a minute."""
        return self._thread.run(self._async.create())

    def release(self, snapshot_id: str) -> None:
        """Tell the broker that a snapshot is not needed any more. Once nobody holds its lock, its files are removed."""
        self._thread.run(self._async.release(snapshot_id))


class Transaction(SyncContext[AsyncTransaction]):
    """Records and group offsets that appear together or not at all.

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
        """What the broker calls it."""
        return self._async.id

    def begin(self) -> Self:
        """What entering the block does first."""
        self._thread.run(self._async.begin())
        return self

    def send(self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None) -> int:
        """Add one record; returns its partition. Its offset is decided by the commit."""
        return self._thread.run(self._async.send(topic, value, key, partition))

    def send_many(self, topic: str, records: Values, partition: int | None = None) -> list[int]:
        """Add many records (values, or pairs of key and value), pipelined, in order; returns the partition of each.

        Where some are refused, the others are in the transaction: roll back, or commit without those.
        """
        return self._thread.run(self._async.send_many(topic, records, partition))

    def commit_offset(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Note the next offset that a group reads; it moves with the commit. So a record that was read, and what came of it, are one."""
        self._async.commit_offset(topic, group, partition, offset)

    def commit(self) -> None:
        """Make everything readable, all or nothing. Sent again where the connection is lost: it is never done twice.

        Raises TransactionNotFound or TransactionNotActive where it was not done and cannot be any more: it timed out, or the broker was
        restarted. After OutcomeUnknown, RequestTimeout and ConnectionLost whether it was done is unknown: call it again to learn.
        """
        self._thread.run(self._async.commit())

    def rollback(self) -> None:
        """Drop everything. Raises TransactionNotActive where it was committed before."""
        self._thread.run(self._async.rollback())

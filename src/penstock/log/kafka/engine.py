"""The engine on Apache Kafka: opens the log, hands out partitions, and makes several appends one.

It keeps nothing on this machine: topics are topics of Kafka, records are records of Kafka, and what the broker needs to know beyond that is
in a table of topics. One node at a time decides for the topics behind a prefix (`lock`). An engine that is given the name of a node shares
them with others: the nodes choose one that leads (`membership`), and the rest follow the table of topics. An engine without one claims the
lead for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final, Literal

import structlog

from penstock.background import Background, Loop, run_to_completion
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    InvalidRequest,
    NotLeading,
    NotWritten,
    OffsetOutOfRange,
    PenstockError,
    ShuttingDown,
    TopicExists,
    TopicNotFound,
    Unreachable,
)
from penstock.log.api import (
    BatchFor,
    Engine,
    EngineStats,
    LateBatch,
    OnAllAppended,
    TopicConfig,
    TopicInfo,
    missing_partition,
)
from penstock.log.failed_partitions import FailedPartitions
from penstock.log.kafka.client import KafkaClient
from penstock.log.kafka.faults import KafkaFault
from penstock.log.kafka.follower import Follower
from penstock.log.kafka.importing import KafkaImport
from penstock.log.kafka.lock import CHECK_S, KEEP_S, TRANSACTION_MS
from penstock.log.kafka.membership import Membership, check_alone, leader_of
from penstock.log.kafka.names import OWNED
from penstock.log.kafka.partition import KafkaPartition
from penstock.log.kafka.reader import RETRY_S_MAX, Reader
from penstock.log.kafka.sender import LED_BY_ANOTHER, Sender
from penstock.log.kafka.settings import KafkaSettings
from penstock.log.kafka.shards import Shards
from penstock.log.kafka.topics import REPLICATION, StoredTopic, TopicStore
from penstock.log.kafka.transactions import Transactions
from penstock.log.nodes import NodeInfo
from penstock.log.tail import TailBudget
from penstock.log.watchers import Watchers

LOOK_S: Final = 30.0
"""How often Kafka is polled for topics that others created or deleted, and for sizes."""
FOLLOWED_AT_ONCE: Final = 100
"""Partitions whose bounds are requested together at the start."""
CLOSE_S_MAX: Final = 10.0
"""How long closing waits for answers beyond the time that an append waits."""

log = structlog.get_logger(__name__)


class KafkaEngine(Engine):
    def __init__(
        self,
        settings: KafkaSettings,
        *,
        role: Literal["serve", "import", "observe", "retire"] = "serve",
        clock: Clock | None = None,
        background: Background | None = None,
        node: str | None = None,
        shards: int = 1,
        tail_bytes_per_partition: int = 4 << 20,
        tail_bytes_max: int = 256 << 20,
    ) -> None:
        """To `import` is to fill the topics with another log, to `observe` is to read while a node serves them, and to `retire` is to
        read what nobody writes to any more. `node` is the name of this node among others that share the log and what is divided into
        `shards`; without one it has the log for itself."""
        self.stats = EngineStats()
        self.failed = FailedPartitions()
        self._role = role
        self.background = background or Background()
        self._settings = settings
        self._node = node
        self._membership: Membership | None = None
        self._node_watchers: Watchers[[]] = Watchers("nodes")
        self._shared: set[str] = set()
        self._shard_count = shards
        self._leads = False
        self._catching_up = asyncio.Lock()
        self._stop_following: Callable[[], None] | None = None
        self._clock = clock or SystemClock()
        self._client = KafkaClient(settings)
        self._tails = TailBudget(tail_bytes_max)
        self._tail_bytes = tail_bytes_per_partition
        self._topics: dict[str, TopicInfo] = {}
        self._stored: dict[str, StoredTopic] = {}
        self._partitions: dict[str, list[KafkaPartition]] = {}
        self._topic_watchers: Watchers[[str]] = Watchers("topics")
        self._changing = asyncio.Lock()
        self._running: list[Sender | Transactions | Follower] = []
        self._missing: set[str] = set()
        """Topics that Kafka did not have the last time it was asked."""
        self._started = False
        self._closing = False
        self._loops: list[Loop] = []
        self._table: KafkaPartition | None = None
        self._fenced: str | None = None
        self._kept_at = 0.0

    # -- start and stop ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        settings, prefix = self._settings, self._settings.topic_prefix
        await self._client.start()
        try:
            self._reader = Reader(self._client, settings.append_s_max)
            self._sender = Sender(self._client, self._clock, self.stats, settings.append_s_max)
            self._sender.on_fenced = self._was_fenced
            if self._node is not None:
                self._sender.taken_over = LED_BY_ANOTHER
            self._shards = Shards(self._client, self._reader, prefix, self.shards or 0, self._shared, self.partition)
            self._lead = self._shards.lead
            for claim in self._shards:
                claim.on_lost = self._sender.fence
            self._follower = Follower(self._client)
            self._running = [self._sender, *(claim.transactions for claim in self._shards), self._follower]
            replication = settings.replication or min(REPLICATION, len(self._client.nodes()))
            self._store = TopicStore(self._client, self._reader, settings, self._clock, replication)
            if self._role == "observe" and self._store.place[0] not in self._client.partition_counts():
                raise TopicNotFound(f"Kafka has no topic {self._store.place[0]!r}: no broker has kept its log there")
            if self._node is None and self._role != "observe":
                await check_alone(self._client, self._reader, prefix)
            leads = self._role != "observe" and (self._node is None or await self._joined(self._node))
            if leads:
                await self._take_over(prefix)
            elif self._role != "observe":
                self._sender.producer = await self._reader.patiently(
                    "getting a producer id", lambda: self._client.new_producer(TRANSACTION_MS)
                )
            table = self._make_partition("topics", 0, self._store.place, TopicConfig(cleanup="compact"))
            table.claim = self._lead
            self._table = table
            self._leads = leads
            load = self._store.observe if self._role == "observe" else self._store.load if leads else self._store.follow
            for topic in (await load(table)).values():
                self._open(topic)
            if self._role == "retire":
                await self._lead.lock.fence([partition.place for partition in self._every_partition()])
            await self._follow_all()
        except BaseException as error:
            await self._release()
            if isinstance(error, KafkaFault):
                raise Unreachable(f"Kafka refuses what this node needs to start: {error}") from error
            raise
        log.info(
            "kafka_opened",
            brokers=len(self._client.nodes()),
            replication=replication,
            topics=len(self._topics),
            leads=self._leads,
        )
        self._started = True
        if self._role == "observe":
            return
        self._loops = [
            self.background.loop("kafka claim", self._check_lock, first_s=CHECK_S),
            self.background.loop("kafka topics", self.look_around, first_s=0, retry_s_max=LOOK_S),
        ]
        if self._node is not None:
            self._leading = self.background.loop("kafka lead", self._look_at_lead, first_s=0)
            self._loops.append(self._leading)
        if not self._leads:
            self._following = self.background.loop("kafka table of topics", self._follow_topics, first_s=0)
            self._loops.append(self._following)
            self._stop_following = table.watch(self._following.wake)

    # -- nodes -------------------------------------------------------------------------------------------------------------

    async def _joined(self, node: str) -> bool:
        """Join the other nodes; returns whether this one is to lead. If not, another has made the table of topics."""
        self._membership = Membership(
            self._client,
            self._settings.topic_prefix,
            node,
            self._clock.now_ms(),
            self._membership_changed,
            self.background,
            shards=self._shard_count,
        )
        await self._membership.join()
        while not self._membership.leads and self._store.place[0] not in self._client.partition_counts():
            await asyncio.sleep(RETRY_S_MAX)
            await self._client.refresh()
        return self._membership.leads

    def _membership_changed(self) -> None:
        if self._loops:
            self._leading.wake()
            self._node_watchers.notify()

    async def _look_at_lead(self) -> None:
        """Begin to lead, or cease to, if that was decided."""
        assert self._membership is not None
        # It may be lost before it began to lead, and nothing else would bring it back among the nodes.
        if self._membership.lost is not None:
            self._sender.fence(f"this node does not lead any more: {self._membership.lost}")
        elif not self._leads and self._membership.leads:
            await self._begin_to_lead()

    async def _begin_to_lead(self) -> None:
        """Fence who led before, complete what that node was about, and write from now on what the others follow."""
        assert self._table is not None
        log.info("leadership_acquired", node=self._node)
        async with self._changing, self._catching_up:
            await self._client.refresh()
            await self._take_over(self._settings.topic_prefix)
            if self._stop_following is not None:
                self._stop_following()
                self._stop_following = None
            topics = await self._store.load(self._table)
            for name, known in list(self._stored.items()):
                if name not in topics or topics[name].info.id != known.info.id:
                    self._forget(name)
            for topic in topics.values():
                self._open(topic)
            self._leads = True
        self._node_watchers.notify()

    async def _follow_topics(self) -> None:
        """Show what the node that leads has changed."""
        async with self._catching_up:
            if self._leads or self._closing:
                return
            for name, topic in (await self._store.news()).items():
                known = self._stored.get(name)
                if known is not None and (topic is None or topic.info.id != known.info.id):
                    self._forget(name)
                if topic is not None:
                    self._open(topic)

    @property
    def leads(self) -> bool:
        return self._leads and self._fenced is None

    @property
    def deposed(self) -> str | None:
        return self._fenced

    def nodes(self) -> Sequence[NodeInfo]:
        return () if self._membership is None else self._membership.nodes

    def watch_nodes(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._node_watchers.add(callback)

    def announce(self, addresses: Mapping[str, str]) -> None:
        if self._membership is not None:
            self._membership.announce(addresses)

    def share(self, topic: str) -> None:
        self._shared.add(topic)
        self._note_claims(topic)

    # -- shards ------------------------------------------------------------------------------------------------------------

    @property
    def shards(self) -> int | None:
        return None if self._node is None else self._shard_count

    @property
    def given_shards(self) -> Collection[int]:
        return () if self._membership is None else self._membership.given

    @property
    def is_heard(self) -> bool:
        return self._membership is None or self._membership.is_heard

    def divide(self, topic: str) -> None:
        self._shards.divide(topic)
        self._note_claims(topic)

    @run_to_completion
    async def claim_shard(self, shard: int) -> None:
        await self._shards.take(shard)

    @run_to_completion
    async def release_shard(self, shard: int) -> None:
        await self._shards.leave(shard)
        if self._membership is not None:
            self._membership.release(shard)

    def _note_claims(self, topic: str) -> None:
        for partition in self._partitions.get(topic, ()):
            partition.claim = self._shards.claim_of(partition)

    async def catch_up(self) -> None:
        if not self._leads and self._table is not None:
            await self._table.follow()
            await self._follow_topics()

    async def _take_over(self, prefix: str) -> None:
        """From here on a node that was here before writes nothing that matters."""
        try:
            await self._lead.lock.claim()
            await self._store.open()
            counts = self._client.partition_counts()
            internal = [
                (kafka, index)
                for kafka, count in counts.items()
                if kafka.startswith(prefix + OWNED)
                and self._role != "import"  # the mark would take an offset of a record
                for index in range(count)
            ]
            await self._lead.lock.fence(internal or [self._store.place])
            await self._lead.transactions.start()
        except KafkaFault as fault:
            raise NotWritten(
                f"Kafka does not let this node claim its topics ({fault}): it needs the rights to create and write topics that begin"
                f" with {prefix + OWNED!r}, and to use transactional ids that begin with {prefix + 'penstock.'!r}"
            ) from fault
        if self._node is None:
            self._sender.producer = self._lead.producer
        elif self._sender.producer.id < 0:
            self._sender.producer = await self._reader.patiently(
                "getting a producer id", lambda: self._client.new_producer(TRANSACTION_MS)
            )
        self._lead.held = True
        self._kept_at = asyncio.get_running_loop().time()

    async def _follow_all(self) -> None:
        """Request the bounds of every partition, so that they are current right after the start."""
        partitions = list(self._every_partition())
        for at in range(0, len(partitions), FOLLOWED_AT_ONCE):
            await asyncio.gather(*(partition.follow() for partition in partitions[at : at + FOLLOWED_AT_ONCE]))

    async def close(self) -> None:
        if self._closing or not self._started:
            return
        self._closing = True
        for loop in self._loops:
            await loop.cancel()
        async with self._changing:
            pass
        for partition in self._every_partition():
            partition.close(deleted=False)
        try:
            async with asyncio.timeout(self._settings.append_s_max + CLOSE_S_MAX):
                await self._sender.drained()
        except TimeoutError:
            log.warning("kafka_appends_abandoned", consequence="appends in flight have an unknown outcome")
        await self._release()

    async def _release(self) -> None:
        """End everything that runs, as far as the start came."""
        if self._membership is not None:
            await self._membership.leave()
        for part in self._running:
            await part.stop()
        if self._table is not None:
            await self._table.stop()
        await asyncio.gather(*(partition.stop() for partition in self._every_partition()))
        await self._client.close()

    def _was_fenced(self, reason: str) -> None:
        self._fenced = reason
        log.error("fenced", reason=reason)
        for partition in self._every_partition():
            partition.fail(reason)
            if not partition.busy:
                self._sender.refuse_queued(partition)
        self._node_watchers.notify()

    async def _check_lock(self) -> float:
        """Find out that another node has taken over, even if nothing is written here."""
        now = asyncio.get_running_loop().time()
        with suppress(NotWritten):  # of which the sender was told
            keep = now - self._kept_at > KEEP_S
            await self._shards.check(self._store.place, keep=keep)
            if keep:
                self._kept_at = now
        if self._fenced is not None:
            raise NotWritten(self._fenced)  # the broker is not ready, and stays so
        return CHECK_S

    async def look_around(self) -> float:
        """See what others have created and deleted, and how large partitions are."""
        if await self._client.refresh() and self._fenced is None:
            async with self._changing:
                if self._leads and not self._closing:
                    for topic in (await self._store.adopt(self._stored)).values():
                        self._open(topic)
                    await self._drop_vanished()
            self._follower.begin_all()
            for partition in self._every_partition():
                if partition.watchers and not partition.followed:
                    self._follower.catch_up_soon(partition)
            await self._follower.note_sizes(self._every_partition())
        return LOOK_S

    async def _drop_vanished(self) -> None:
        """Forget topics that were not there twice: somebody deleted them in Kafka. Those that have more partitions get them here."""
        counts = self._client.partition_counts()
        for name, topic in list(self._stored.items()):
            count = counts.get(topic.kafka, 0)
            if not count and name not in self._missing:
                self._missing.add(name)  # the broker that was asked may not know of it yet
            elif not count:
                log.warning("topic_vanished", topic=name, reason="it was deleted in Kafka")
                await self._store.forget(name)
                self._forget(name)
            elif count > topic.info.config.partitions:
                self._open(await self._store.grown(topic, count))
        self._missing = {
            name for name in self._missing if name in self._stored and not counts.get(self._stored[name].kafka)
        }

    # -- topics ------------------------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._topics

    def watch_topics(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return self._topic_watchers.add(callback)

    def partition(self, topic: str, index: int) -> KafkaPartition:
        parts = self._partitions.get(topic)
        if parts is None or not 0 <= index < len(parts):
            raise missing_partition(topic, index, parts)
        return parts[index]

    def _every_partition(self) -> Iterator[KafkaPartition]:
        return chain.from_iterable(list(self._partitions.values()))

    def _make_partition(self, name: str, index: int, place: tuple[str, int], config: TopicConfig) -> KafkaPartition:
        partition = KafkaPartition(
            name,
            index,
            place,
            config,
            reader=self._reader,
            sender=self._sender,
            follower=self._follower,
            tails=self._tails,
            tail_bytes=self._tail_bytes,
            failed=self.failed,
        )
        partition.claim = self._shards.claim_of(partition)
        return partition

    def _open(self, topic: StoredTopic, *, created: bool = False) -> None:
        """Serve a topic, or what is new of it."""
        info = topic.info
        parts = self._partitions.setdefault(info.name, [])
        for partition in parts:
            partition.config = info.config
        for index in range(len(parts), info.config.partitions):
            partition = self._make_partition(info.name, index, (topic.kafka, index), info.config)
            if created:
                partition.opened_empty()
            parts.append(partition)
        self._stored[info.name] = topic
        self._topics[info.name] = info
        self._topic_watchers.notify(info.name)

    def _forget(self, name: str) -> None:
        for partition in self._partitions.pop(name):
            partition.close(deleted=True)
            if not partition.busy:
                self._sender.refuse_queued(partition)
            self._follower.drop(partition)
            for claim in self._shards:
                claim.transactions.forget(partition)
        del self._stored[name], self._topics[name]
        self._topic_watchers.notify(name)

    def _check_writable(self) -> None:
        if self._closing:
            raise ShuttingDown("the broker is stopping; send again when it is back")
        if self._fenced is not None:
            raise NotWritten(self._fenced)
        if not self._leads:
            raise NotLeading(f"this node does not lead: {leader_of(self.nodes())} does")

    def _topic(self, name: str) -> StoredTopic:
        self._check_writable()
        topic = self._stored.get(name)
        if topic is None:
            raise TopicNotFound(f"topic {name!r} not found")
        return topic

    @run_to_completion
    async def create_topic(self, name: str, config: TopicConfig) -> TopicInfo:
        async with self._changing:
            self._check_writable()
            if name in self._topics:
                raise TopicExists(f"topic {name!r} already exists")
            topic = await self._store.create(name, config)
            self._open(topic, created=True)
            return topic.info

    @run_to_completion
    async def delete_topic(self, name: str) -> None:
        async with self._changing:
            topic = self._topic(name)
            for partition in self._partitions[name]:
                partition.close(deleted=True)
                if not partition.busy:
                    self._sender.refuse_queued(partition)
            try:
                await self._store.delete(topic)
            except PenstockError:
                for partition in self._partitions[name]:
                    partition.reopen()
                raise
            self._forget(name)

    @run_to_completion
    async def alter_topic(self, name: str, config: TopicConfig) -> TopicInfo:
        async with self._changing:
            topic = self._topic(name)
            before = topic.info.config.partitions
            if config.partitions < before:
                raise InvalidRequest(f"topic {name!r} has {before} partitions, and cannot have fewer")
            altered = await self._store.alter(topic, config)
            self._open(altered, created=True)
            return altered.info

    @run_to_completion
    async def truncate_topic(self, name: str, before: Mapping[int, int]) -> None:
        async with self._changing:
            topic = self._topic(name)
            parts = {index: self.partition(name, index) for index in before}
            await asyncio.gather(*(partition.follow() for partition in parts.values()))
            for index, offset in before.items():
                if not 0 <= offset <= parts[index].committed_end:
                    raise OffsetOutOfRange(
                        f"offset {offset} out of range: {parts[index]} ends at {parts[index].committed_end}, and nothing was deleted"
                    )
            moved = {index: offset for index, offset in before.items() if offset > parts[index].start_offset}
            if moved:
                for index, start in (await self._store.truncate(topic, moved)).items():
                    parts[index].truncated_to(start)

    # -- filling it with another log ---------------------------------------------------------------------------------------

    def importing(self) -> KafkaImport:
        if self._role != "import":
            raise InvalidRequest("open the log to import, so that nothing else takes offsets in its topics")
        return KafkaImport(self, self._client, self._reader, self._settings.topic_prefix)

    @run_to_completion
    async def import_topic(self, info: TopicInfo) -> None:
        """Create a topic with an id and a time that it has already, unless it is there, and keep everything in it until it is altered.

        Raises TopicExists if there is another topic of that name.
        """
        async with self._changing:
            self._check_writable()
            topic = self._stored.get(info.name)
            if topic is None:
                topic = await self._store.create_as(info)
                self._open(topic, created=True)
            elif topic.info.id != info.id:
                raise TopicExists(f"the target has another topic {info.name!r} already, as {topic.kafka} in Kafka")
            elif topic.info.config.partitions < info.config.partitions:
                topic = await self._store.alter(topic, info.config)
                self._open(topic, created=True)
            await self._store.keep_all(topic)

    # -- appending ---------------------------------------------------------------------------------------------------------

    def append_atomic(self, parts: Sequence[BatchFor], done: OnAllAppended) -> None:
        partitions = [part.partition for part in parts]
        if not parts or len(set(partitions)) != len(partitions):
            raise InvalidRequest("an atomic append names at least one partition, and each only once")
        for partition, batch in parts:
            assert isinstance(partition, KafkaPartition)
            refusal = partition.refusal(None if isinstance(batch, LateBatch) else batch)
            if refusal is not None:
                asyncio.get_running_loop().call_soon(done, refusal)
                return
        partition, batch = parts[0]
        claim = self._shards.claim_for(parts)
        if not claim.held and len(parts) > 1:
            error = NotLeading(f"nothing was written, because {claim.what}")
            asyncio.get_running_loop().call_soon(done, error)
        elif len(parts) == 1 and not isinstance(batch, LateBatch):
            partition.append(
                batch, lambda result: done(result if isinstance(result, PenstockError) else {partition: result})
            )
        else:
            self._sender.append_atomic(parts, done, claim)

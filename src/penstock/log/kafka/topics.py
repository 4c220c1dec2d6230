"""The topics of a node: what they are called and how they are stored here and in Kafka.

Kafka keeps no settings of ours, so a table in a compacted topic does: for each topic its name, its name in Kafka, id and settings. A change
of several steps is noted there first and completed at the next start if it was cut short. Topics that others created are adopted.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeVar

import msgspec
import structlog

from penstock.clock import Clock
from penstock.errors import CorruptMetadata, InvalidRequest, NotWritten, PenstockError, TopicExists
from penstock.log.api import Batch, Durability, TopicConfig, TopicInfo
from penstock.log.appending import start_append
from penstock.log.kafka.client import KafkaClient, Place
from penstock.log.kafka.faults import Code, KafkaFault
from penstock.log.kafka.names import TOPICS_TABLE, adopted_name, hashed_name, kafka_name
from penstock.log.kafka.partition import KafkaPartition
from penstock.log.kafka.reader import RETRY_S_MAX, UNKNOWN_S_MAX, Reader
from penstock.log.kafka.settings import KafkaSettings

REPLICATION: Final = 3
SEGMENT_BYTES_MIN: Final = 1 << 20
"""Kafka makes none that are smaller."""
SEGMENT_BYTES_MAX: Final = (1 << 31) - 1
CONFIGS_AT_ONCE: Final = 500
FOREVER: Final = -1

_T = TypeVar("_T")
log = structlog.get_logger(__name__)


class _Settings(msgspec.Struct, frozen=True):
    partitions: int
    durability: str
    retention_ms: int | None
    retention_bytes: int | None
    cleanup: Literal["delete", "compact"]
    compression: Literal["none", "zstd"]
    segment_bytes: int
    segment_ms: int


class _Row(msgspec.Struct, frozen=True):
    """A topic as the table holds it, by its name."""

    kafka: str
    id: str
    created_ms: int
    config: _Settings
    change: Literal["create", "alter", "delete", "truncate"] | None = None
    """What was begun and is not known to be complete."""
    before: dict[int, int] = {}
    """For a truncation: the offsets that partitions are to start at."""


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic, and its name in Kafka."""

    info: TopicInfo
    kafka: str


class TopicStore:
    """The table, and the requests that make Kafka's topics what it says."""

    def __init__(
        self, client: KafkaClient, reader: Reader, settings: KafkaSettings, clock: Clock, replication: int
    ) -> None:
        self._client = client
        self._reader = reader
        self._settings = settings
        self._clock = clock
        self._replication = replication
        self.place: Place = (settings.topic_prefix + TOPICS_TABLE, 0)
        self._partition: KafkaPartition | None = None
        self._read_to = 0

    async def open(self) -> None:
        """Create the table if there is none."""
        if self.place[0] not in self._client.partition_counts():
            config = TopicConfig(cleanup="compact", segment_bytes=SEGMENT_BYTES_MIN)
            await self._create(self.place[0], config)

    async def load(self, partition: KafkaPartition) -> dict[str, StoredTopic]:
        """Read the table, complete what was cut short, and adopt what others created; returns the topics by name."""
        rows = {name: row for name, row in (await self._read(partition)).items() if row is not None}
        await self._see({row.kafka for row in rows.values() if row.change is None})
        topics: dict[str, StoredTopic] = {}
        for name, row in rows.items():
            if row.change is not None:
                log.info("topic_change_completed", topic=name, change=row.change)
            completed = await self._complete(name, row)
            if completed is not None:
                topics[name] = completed
        await self._client.refresh()
        return topics | await self.adopt(topics)

    async def observe(self, partition: KafkaPartition) -> dict[str, StoredTopic]:
        """Read the table and change nothing; returns the topics by name that nobody is creating or deleting."""
        rows = await self._read(partition)
        exists = self._client.partition_counts().keys()
        return {
            name: _stored(name, row)
            for name, row in rows.items()
            if row is not None and row.change not in {"create", "delete"} and row.kafka in exists
        }

    async def follow(self, partition: KafkaPartition) -> dict[str, StoredTopic]:
        """Read the table where another node writes it; returns the topics by name. `news` has what is changed from now on."""
        return {name: topic for name, topic in (await self._changes(await self._read(partition))).items() if topic}

    async def news(self) -> dict[str, StoredTopic | None]:
        """The topics whose change another node has completed since they were last read, by name; None for those that are gone."""
        assert self._partition is not None
        return await self._changes(await self._read_on(self._partition))

    async def _changes(self, rows: Mapping[str, _Row | None]) -> dict[str, StoredTopic | None]:
        expected = {row.kafka for row in rows.values() if row is not None and row.change is None}
        if not expected <= self._client.partition_counts().keys():
            await self._client.refresh()
        await self._see(expected)
        return {
            name: None if row is None else _stored(name, row)
            for name, row in rows.items()
            if row is None or row.change is None
        }

    async def _read(self, partition: KafkaPartition) -> dict[str, _Row | None]:
        self._partition = partition
        await partition.follow()
        self._read_to = partition.start_offset
        return await self._read_on(partition)

    async def _read_on(self, partition: KafkaPartition) -> dict[str, _Row | None]:
        """The last row of each topic behind what was read before."""
        rows: dict[str, _Row | None] = {}
        self._read_to = max(self._read_to, partition.start_offset)
        async for blocks in partition.read_to_end(self._read_to):
            for block in blocks:
                first = block.index_of(self._read_to)
                for key, value in zip(block.keys(first) or (), block.values(first), strict=False):
                    name = (key or b"").decode()
                    rows[name] = None if value is None else _decoded(name, value, partition)
                self._read_to = block.next_offset
        return rows

    async def _see(self, expected: set[str]) -> None:
        """Wait a while until Kafka names these topics: the broker that was asked may not know of all yet."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + UNKNOWN_S_MAX
        while not expected <= self._client.partition_counts().keys() and loop.time() < deadline:
            await asyncio.sleep(RETRY_S_MAX)
            await self._client.refresh()

    # -- changes -----------------------------------------------------------------------------------------------------------

    async def create(self, name: str, config: TopicConfig) -> StoredTopic:
        """Raises TopicExists if Kafka has a topic of the name, InvalidRequest where it refuses the settings."""
        return await self.create_as(TopicInfo(name, uuid.uuid4().hex, config, self._clock.now_ms()))

    async def create_as(self, info: TopicInfo) -> StoredTopic:
        """Create a topic that has an id and a time already. Raises what `create` does."""
        name, config = info.name, info.config
        kafka = kafka_name(name, self._settings.topic_prefix)
        row = _Row(kafka, info.id, info.created_ms, _settings_of(config), "create")
        await self._put(name, row)
        try:
            try:
                await self._create(kafka, config)
            except KafkaFault as fault:
                other = hashed_name(name, self._settings.topic_prefix)
                if fault.code != Code.INVALID_TOPIC or kafka == other:
                    raise
                # Kafka has one that differs only by dots and low lines.
                row = msgspec.structs.replace(row, kafka=other)
                await self._put(name, row)
                await self._create(other, config)
        except KafkaFault as fault:
            await self._put(name, None)
            if fault.code == Code.TOPIC_ALREADY_EXISTS:
                raise TopicExists(f"topic {name!r} already exists in Kafka, as {row.kafka}") from fault
            raise InvalidRequest(f"Kafka refuses to create topic {name!r}: {fault}") from fault
        await self._put(name, msgspec.structs.replace(row, change=None))
        return _stored(name, row)

    async def keep_all(self, topic: StoredTopic) -> None:
        """Have Kafka keep every record of a topic with the time it comes with, until the topic is altered."""
        keeping = {
            "cleanup.policy": "delete",
            "retention.ms": str(FOREVER),
            "retention.bytes": str(FOREVER),
            "message.timestamp.type": "CreateTime",
        }
        try:
            await self._ask(f"preparing {topic.kafka}", lambda: self._client.set_configs(topic.kafka, keeping))
        except KafkaFault as fault:
            raise InvalidRequest(f"Kafka refuses to alter topic {topic.info.name!r}: {fault}") from fault

    async def alter(self, topic: StoredTopic, config: TopicConfig) -> StoredTopic:
        """Raises InvalidRequest if Kafka refuses the settings; nothing is changed then."""
        before, after = _row_of(topic), replace(topic, info=replace(topic.info, config=config))
        row = msgspec.structs.replace(_row_of(after), change="alter")
        await self._put(topic.info.name, row)
        try:
            await self._alter(row)
        except KafkaFault as fault:
            await self._put(topic.info.name, before)
            raise InvalidRequest(f"Kafka refuses to alter topic {topic.info.name!r}: {fault}") from fault
        await self._put(topic.info.name, _row_of(after))
        return after

    async def truncate(self, topic: StoredTopic, before: Mapping[int, int]) -> dict[int, int]:
        """Delete records before offsets; returns where the partitions start then."""
        row = _row_of(topic)
        await self._put(topic.info.name, msgspec.structs.replace(row, change="truncate", before=dict(before)))
        try:
            starts = await self._truncate(topic.kafka, before)
        except InvalidRequest:
            await self._put(topic.info.name, row)  # else it would be refused at each start, too
            raise
        await self._put(topic.info.name, row)
        return starts

    async def delete(self, topic: StoredTopic) -> None:
        """Raises a PenstockError: the topic stays, unless Kafka has deleted it after all, which is found out later."""
        row = _row_of(topic)
        await self._put(topic.info.name, msgspec.structs.replace(row, change="delete"))
        try:
            await self._delete(topic.kafka)
        except PenstockError:
            await self._put(
                topic.info.name, row
            )  # else the next start would delete it, with what is written until then
            raise
        await self._put(topic.info.name, None)

    async def _complete(self, name: str, row: _Row) -> StoredTopic | None:
        """Do again what may have been cut short. None if the topic is gone."""
        exists = row.kafka in self._client.partition_counts()
        if row.change == "delete" or (row.change is None and not exists):
            if exists:
                await self._delete(row.kafka)
            else:
                log.warning("topic_vanished", topic=name, kafka=row.kafka, reason="it was deleted in Kafka")
            await self._put(name, None)
            return None
        stored = _stored(name, row)
        try:
            if row.change == "create" and not exists:
                await self._create(row.kafka, stored.info.config)
            elif row.change == "alter":
                await self._alter(row)
            elif row.change == "truncate":
                await self._truncate(row.kafka, row.before)
        except InvalidRequest as error:
            log.warning("topic_change_given_up", topic=name, change=row.change, reason=str(error))
        except KafkaFault as fault:
            raise NotWritten(f"Kafka refuses to {row.change} topic {name!r}, as was begun before: {fault}") from fault
        if row.change is not None:
            await self._put(name, _row_of(stored))
        return stored

    async def adopt(self, known: Mapping[str, StoredTopic]) -> dict[str, StoredTopic]:
        """Topics that others created and the table does not have; they are in it from now on."""
        if not self._settings.adopt:
            return {}
        kafka_names = {topic.kafka for topic in known.values()}
        counts = self._client.partition_counts()
        found = {
            kafka: name
            for kafka in counts
            if kafka not in kafka_names
            and (name := adopted_name(kafka, self._settings.topic_prefix)) is not None
            and name not in known
        }
        adopted: dict[str, StoredTopic] = {}
        for at in range(0, len(found), CONFIGS_AT_ONCE):
            some = list(found)[at : at + CONFIGS_AT_ONCE]
            configs = await self._ask("reading settings of topics", partial(self._client.topic_configs, some))
            for kafka in some:
                name = found[kafka]
                config = _config_in_kafka(configs[kafka], counts[kafka])
                info = TopicInfo(name, uuid.uuid4().hex, config, self._clock.now_ms())
                adopted[name] = StoredTopic(info, kafka)
                await self._put(name, _row_of(adopted[name]))
                log.info(
                    "topic_adopted", topic=name, partitions=counts[kafka], reason="somebody else created it in Kafka"
                )
        return adopted

    async def forget(self, name: str) -> None:
        """Somebody deleted the topic in Kafka."""
        await self._put(name, None)

    async def grown(self, topic: StoredTopic, partitions: int) -> StoredTopic:
        """Somebody added partitions in Kafka."""
        grown = replace(topic, info=replace(topic.info, config=replace(topic.info.config, partitions=partitions)))
        await self._put(topic.info.name, _row_of(grown))
        return grown

    # -- Kafka's side ------------------------------------------------------------------------------------------------------

    async def _ask(self, what: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        return await self._reader.patiently(what, attempt)

    async def _ask_once(self, what: str, attempt: Callable[[], Awaitable[None]], done: Code) -> None:
        """Ask for a change until it is answered. If an answer may have been lost, a refusal with `done` means that the change is made."""
        asked = 0

        async def ask() -> None:
            nonlocal asked
            asked += 1
            try:
                await attempt()
            except KafkaFault as fault:
                if asked == 1 or fault.code != done:
                    raise

        await self._ask(what, ask)

    async def _create(self, kafka: str, config: TopicConfig) -> None:
        """Create a topic and wait until every partition has a leader that knows of it."""
        configs = self._configs(config)
        await self._ask_once(
            f"creating topic {kafka}",
            lambda: self._client.create_topic(kafka, config.partitions, self._replication, configs),
            Code.TOPIC_ALREADY_EXISTS,
        )
        await self._client.refresh()
        await self._ready(kafka, config.partitions)

    async def _ready(self, kafka: str, partitions: int) -> None:
        await asyncio.gather(*(self._reader.offset((kafka, index), -1) for index in range(partitions)))

    async def _alter(self, row: _Row) -> None:
        config = _config_of(row.config)
        await self._ask(
            f"altering topic {row.kafka}", lambda: self._client.set_configs(row.kafka, self._configs(config))
        )
        if self._client.partition_counts().get(row.kafka, 0) < config.partitions:
            await self._add_partitions(row.kafka, config.partitions)

    async def _add_partitions(self, kafka: str, count: int) -> None:
        await self._ask_once(
            f"adding partitions to {kafka}",
            lambda: self._client.create_partitions(kafka, count),
            Code.INVALID_PARTITIONS,
        )
        await self._client.refresh()
        await self._ready(kafka, count)

    async def _truncate(self, kafka: str, before: Mapping[int, int]) -> dict[int, int]:
        starts = await asyncio.gather(
            *(self._reader.delete_before((kafka, index), offset) for index, offset in before.items())
        )
        return dict(zip(before, starts, strict=True))

    async def _delete(self, kafka: str) -> None:
        """Delete a topic and wait until its leaders know."""
        leaders = {
            index: self._client.leader((kafka, index)) for index in range(self._client.partition_counts().get(kafka, 0))
        }

        async def ask() -> None:
            try:
                await self._client.delete_topic(kafka)
            except KafkaFault as fault:
                if fault.code != Code.UNKNOWN_TOPIC_OR_PARTITION:
                    raise

        async def ask_leader(index: int, node: int) -> None:
            answers = await self._client.offsets(node, {(kafka, index): -1})
            answer = answers[kafka, index]
            if not isinstance(answer, KafkaFault):
                raise KafkaFault(Code.LEADER_NOT_AVAILABLE)  # it still has the topic: ask again

        try:
            await self._ask(f"deleting topic {kafka}", ask)
        except KafkaFault as fault:
            raise NotWritten(f"Kafka refuses to delete {kafka}: {fault}") from fault
        for index, node in leaders.items():
            if node is not None:
                await self._ask(f"deleting topic {kafka}", partial(ask_leader, index, node))
        await self._client.refresh()

    def _configs(self, config: TopicConfig) -> dict[str, str]:
        """The settings of a topic in Kafka's words."""
        forever = config.retention_ms is None and config.retention_bytes is None
        policy = config.cleanup if config.cleanup == "delete" or forever else "compact,delete"
        retention = [FOREVER if each is None else each for each in (config.retention_ms, config.retention_bytes)]
        flushed = self._settings.flush and config.durability.mode == "fsync"
        return {
            "cleanup.policy": policy,
            "retention.ms": str(retention[0]),
            "retention.bytes": str(retention[1]),
            "segment.bytes": str(min(max(config.segment_bytes, SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX)),
            "segment.ms": str(config.segment_ms),
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(self._settings.message_bytes_max),
            "min.insync.replicas": str(max(1, self._replication - 1)),
            "flush.messages": "1" if flushed else str((1 << 63) - 1),
        }

    # -- the table ---------------------------------------------------------------------------------------------------------

    async def _put(self, name: str, row: _Row | None) -> None:
        assert self._partition is not None
        value = None if row is None else msgspec.json.encode(row)
        await start_append(self._partition, Batch([value], [name.encode()]))


def _decoded(name: str, value: bytes, partition: KafkaPartition) -> _Row:
    try:
        return msgspec.json.decode(value, type=_Row)
    except msgspec.MsgspecError as error:
        raise CorruptMetadata(f"the row of topic {name!r} in {partition.place[0]} cannot be read: {error}") from error


def _stored(name: str, row: _Row) -> StoredTopic:
    return StoredTopic(TopicInfo(name, row.id, _config_of(row.config), row.created_ms), row.kafka)


def _row_of(topic: StoredTopic) -> _Row:
    return _Row(topic.kafka, topic.info.id, topic.info.created_ms, _settings_of(topic.info.config))


def _settings_of(config: TopicConfig) -> _Settings:
    return _Settings(
        config.partitions,
        str(config.durability),
        config.retention_ms,
        config.retention_bytes,
        config.cleanup,
        config.compression,
        config.segment_bytes,
        config.segment_ms,
    )


def _config_of(settings: _Settings) -> TopicConfig:
    return TopicConfig(
        settings.partitions,
        Durability.parse(settings.durability),
        settings.retention_ms,
        settings.retention_bytes,
        settings.cleanup,
        settings.compression,
        settings.segment_bytes,
        settings.segment_ms,
    )


def _config_in_kafka(configs: Mapping[str, str], partitions: int) -> TopicConfig:
    """The settings of a topic that somebody else created, as far as there are such here."""

    def bound(name: str) -> int | None:
        value = int(configs.get(name, FOREVER))
        return None if value < 0 else value

    return TopicConfig(
        partitions,
        retention_ms=bound("retention.ms"),
        retention_bytes=bound("retention.bytes"),
        cleanup="compact" if "compact" in configs.get("cleanup.policy", "") else "delete",
        segment_bytes=int(configs["segment.bytes"]),
        segment_ms=int(configs["segment.ms"]),
    )

"""Topics: list, describe, create, alter, add partitions, truncate, bind to a schema, delete."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Final, Literal

import msgspec

from penstock.admin.api.table import Call, Reply, Request, endpoint
from penstock.broker.limits import INT64_MAX
from penstock.broker.schemas.operations import Schemas
from penstock.broker.topics.operations import ALL_PARTITIONS, Topics
from penstock.broker.topics.settings import TopicDescription, format_topic_config, parse_topic_config
from penstock.errors import (
    InvalidRequest,
    LimitExceeded,
    OffsetOutOfRange,
    PartitionNotFound,
    SchemaNotFound,
    TopicExists,
    TopicNotFound,
)
from penstock.log.api import PARTITIONS_MAX, TopicInfo

TOPICS_MAX: Final = 1_000
"""Per page."""
PAGE_PARTITIONS_MAX: Final = 5_000
"""A page ends with the topic that reaches this: reading that number of partitions takes some milliseconds of the event loop."""
SETTINGS_MAX: Final = 32

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
PartitionCount = Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
Settings = Annotated[dict[str, str], msgspec.Meta(max_length=SETTINGS_MAX)]


class TopicsQuery(Request, frozen=True):
    search: str = ""
    """Only topics whose names contain this."""
    after: str = ""
    """The name at which the page before ended."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=TOPICS_MAX)] = TOPICS_MAX


class TopicSummary(Reply, frozen=True):
    name: str
    partitions: int
    records: int
    """Offsets between the log start offsets and the high watermarks; compaction may have removed some of these records."""
    end_offsets: int
    """The sum of the high watermarks, from which rates can be derived."""
    size_bytes: int
    schema: str | None
    failed_partitions: int


class TopicPage(Reply, frozen=True):
    topics: list[TopicSummary]
    more: bool


class PartitionState(Reply, frozen=True):
    partition: int
    start_offset: int
    high_watermark: int
    size_bytes: int
    failure: str | None
    """Why the partition refuses writes."""


class Topic(Reply, frozen=True):
    name: str
    id: str
    created_ms: int
    settings: dict[str, str]
    schema: str | None
    partitions: list[PartitionState]


class StoredTopic(Reply, frozen=True):
    """A topic as it was created or changed."""

    name: str
    id: str
    created_ms: int
    settings: dict[str, str]
    partitions: int


class NewTopic(Request, frozen=True):
    name: Name
    partitions: PartitionCount = 1
    settings: Settings = msgspec.field(default_factory=dict)
    """As `penstock topic create --set` takes them, such as retention_ms, cleanup, compression."""
    schema: str | None = None


class TopicSettings(Request, frozen=True):
    settings: Settings


class NewPartitions(Request, frozen=True):
    partitions: PartitionCount
    """How many the topic is to have."""


class Truncation(Request, frozen=True):
    mode: Literal["offset", "time", "end"]
    position: Offset = 0
    """An offset, or milliseconds since 1970, as the mode says."""
    partition: Annotated[int, msgspec.Meta(ge=ALL_PARTITIONS, le=PARTITIONS_MAX)] = ALL_PARTITIONS
    """-1 for all partitions."""


class SchemaBinding(Request, frozen=True):
    schema: str | None
    """A name, or name:version; null lifts the binding."""


@endpoint("GET", "/topics", asks=Topics.names, errors=(InvalidRequest,))
async def list_topics(call: Call, query: TopicsQuery) -> TopicPage:
    """List the topics that the caller may know of, by name."""
    names = call.broker.topics.names(call.principal)
    if query.search:
        wanted = query.search.lower()
        names = [name for name in names if wanted in name.lower()]
    rest = names[bisect_right(names, query.after) :]
    page: list[TopicSummary] = []
    partitions = looked_at = 0
    for name in islice(rest, query.limit):
        looked_at += 1
        with suppress(TopicNotFound):  # it was deleted meanwhile
            page.append(await _summary(call, name))
            partitions += page[-1].partitions
        if partitions >= PAGE_PARTITIONS_MAX:
            break
    return TopicPage(page, len(rest) > looked_at)


async def _summary(call: Call, name: str) -> TopicSummary:
    described = (await call.broker.topics.follow(call.principal, name)).partitions
    return TopicSummary(
        name,
        len(described),
        sum(each.committed_end - each.start_offset for each in described),
        sum(each.committed_end for each in described),
        sum(each.size_bytes for each in described),
        call.broker.schemas.bound_to(call.principal, name),
        sum(each.failure is not None for each in described),
    )


@endpoint(
    "POST",
    "/topics",
    asks=Topics.create,
    status=HTTPStatus.CREATED,
    errors=(InvalidRequest, TopicExists, LimitExceeded, SchemaNotFound),
)
async def create_topic(call: Call, body: NewTopic) -> StoredTopic:
    """Create a topic."""
    config = parse_topic_config(_pairs(body.settings), call.broker.topics.defaults)
    return _stored(
        await call.broker.topics.create(
            call.principal, body.name, replace(config, partitions=body.partitions), body.schema or None
        )
    )


def _stored(info: TopicInfo) -> StoredTopic:
    return StoredTopic(info.name, info.id, info.created_ms, _settings(info), info.config.partitions)


def _settings(info: TopicInfo) -> dict[str, str]:
    settings = dict(format_topic_config(info.config))
    del settings["partitions"]
    return settings


@endpoint("GET", "/topics/{topic}", asks=Topics.follow, errors=(TopicNotFound,))
async def get_topic(call: Call) -> Topic:
    """Return a topic with its settings and partitions."""
    return await _topic(call, call.path["topic"])


async def _topic(call: Call, name: str) -> Topic:
    described: TopicDescription = await call.broker.topics.follow(call.principal, name)
    return Topic(
        name,
        described.info.id,
        described.info.created_ms,
        _settings(described.info),
        call.broker.schemas.bound_to(call.principal, name),
        [
            PartitionState(each.index, each.start_offset, each.committed_end, each.size_bytes, each.failure)
            for each in described.partitions
        ],
    )


def _pairs(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    if "partitions" in settings:
        raise InvalidRequest("partitions are not a setting here: give them as a number of their own")
    return list(settings.items())


@endpoint("PATCH", "/topics/{topic}", asks=Topics.alter, errors=(InvalidRequest, TopicNotFound))
async def alter_topic(call: Call, body: TopicSettings) -> StoredTopic:
    """Change settings of a topic; those that are not given stay as they are."""
    return _stored(await call.broker.topics.alter(call.principal, call.path["topic"], _pairs(body.settings)))


@endpoint(
    "POST",
    "/topics/{topic}/partitions",
    asks=Topics.add_partitions,
    errors=(InvalidRequest, TopicNotFound, LimitExceeded),
)
async def add_partitions(call: Call, body: NewPartitions) -> StoredTopic:
    """Add partitions to a topic. Records stay where they are; keys may map to other partitions from now on."""
    return _stored(await call.broker.topics.add_partitions(call.principal, call.path["topic"], body.partitions))


@endpoint(
    "POST",
    "/topics/{topic}/truncation",
    asks=Topics.truncate,
    errors=(InvalidRequest, TopicNotFound, PartitionNotFound, OffsetOutOfRange),
)
async def truncate_topic(call: Call, body: Truncation) -> None:
    """Delete the records before an offset or a time, or all of them, in one partition or in all."""
    await call.broker.topics.truncate(call.principal, call.path["topic"], body.mode, body.position, body.partition)


@endpoint("PUT", "/topics/{topic}/schema", asks=Schemas.bind, errors=(InvalidRequest, TopicNotFound, SchemaNotFound))
async def bind_topic(call: Call, body: SchemaBinding) -> None:
    """Say which schema records of the topic must follow from now on, or that they follow none."""
    await call.broker.schemas.bind(call.principal, call.path["topic"], body.schema or None)


@endpoint("DELETE", "/topics/{topic}", asks=Topics.delete, errors=(TopicNotFound,))
async def delete_topic(call: Call) -> None:
    """Delete a topic with its records and the offsets that groups committed in it."""
    await call.broker.topics.delete(call.principal, call.path["topic"])

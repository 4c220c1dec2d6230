"""The options of the source: those of Spark's Kafka connector under their names, and a few of our own.

Parsing needs no Spark and asks no broker; whether a topic or an offset exists is found out when a query is planned. Whatever is wrong is an
InvalidRequest that names the option. Options that only make sense for a stream are refused in a batch, and the other way round, as
Kafka's connector does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.clients.arguments import check_topic
from penstock.errors import InvalidRequest
from penstock.spark.connection import CONNECTION_OPTIONS, ConnectionSettings, connection_settings
from penstock.spark.offsets import EARLIEST, LATEST, OFFSET_KEYS, Epochs, Positions, StreamOffset
from penstock.spark.option_values import INTERNAL_PREFIX, check_names, duration_ms, flag, number, size

PARALLELISM: Final = f"{INTERNAL_PREFIX}parallelism"
"""How many tasks the session's executors run at once: the process that plans sees the processors of the driver."""
POLL_WAIT_MS_DEFAULT: Final = 200
POLL_WAIT_MS_MAX: Final = 500
TRIGGER_DELAY_MS_DEFAULT: Final = 15 * 60_000
GROUP_PREFIX_DEFAULT: Final = "spark"
PARTITION_MAX: Final = (1 << 31) - 1
TIMESTAMP_MS_MAX: Final = (1 << 53) - 1
_GROUP_BYTES_MAX: Final = 200

_SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
_BOTH: Final = (
    *CONNECTION_OPTIONS,
    *_SUBSCRIPTIONS,
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
    "includeHeaders",
    "failOnDataLoss",
    "group",
    "groupIdPrefix",
)
_BATCH_ONLY: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "pollWaitMs",
)
_OF_WRITING: Final = ("topic", "txnAppId", "txnVersion", "txnReplay")
"""They come with a table that is both read and written, and mean nothing here."""
SOURCE_OPTIONS: Final = (*_BOTH, *_BATCH_ONLY, *_STREAM_ONLY)
"""For the sink, which may be handed them with a table that is both read and written."""
_ELSEWHERE: Final = {
    "path": "topics are not paths; call load() without one and set the option subscribe to the topic",
    "topic": "is an option of writing; to read, set the option subscribe to the topic",
}


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which topics and partitions are read."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] | None = None
    """By topic, where partitions were assigned."""

    def covers(self, topic: str) -> bool:
        return topic in self.topics if self.pattern is None else re.fullmatch(self.pattern, topic) is not None

    def __str__(self) -> str:
        return self.pattern if self.pattern is not None else "+".join(self.topics)


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading begins or ends: one of the four, the more exact first."""

    timestamp_ms: int | None = None
    timestamps_ms: Positions | None = None
    offsets: Positions | None = None
    ids: Mapping[str, str] | None = None
    """Of the topics that the offsets belong to, where they came with them."""
    epochs: Epochs | None = None
    """The log epochs that the offsets belong to, where they came with them."""
    edge: int = EARLIEST

    @property
    def reached(self) -> StreamOffset:
        """The offsets that were given, as one of a stream."""
        return StreamOffset(self.offsets or {}, self.ids or {}, epochs=self.epochs or {})


@dataclass(frozen=True, slots=True)
class SourceOptions:
    connection: ConnectionSettings
    subscription: Subscription
    starting: Place
    ending: Place
    no_match: Literal["error", "latest"]
    """What to do where no record is as late as a starting timestamp."""
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    bytes_per_trigger_max: int | None
    trigger_delay_ms_max: int
    poll_wait_ms: int
    tasks_min: int | None
    task_records_max: int | None
    task_bytes_max: int | None
    parallelism: int | None
    include_headers: bool
    fail_on_data_loss: bool
    group: str | None
    """Under which the offsets of a stream are published; None: nowhere."""
    group_is_given: bool
    """If not, the id of the query is added to it."""


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Raises InvalidRequest, which names the option at fault and what to do about it."""
    known = _BOTH + (_STREAM_ONLY if streaming else _BATCH_ONLY)
    elsewhere = dict(_ELSEWHERE)
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        kinds = ("a batch", "a stream") if streaming else ("a stream", "a batch")
        elsewhere[name.lower()] = f"belongs to {kinds[0]} query, and this is {kinds[1]}: remove it"
    given = {name.lower(): value for name, value in options.items()}
    if any(name.lower() in given for name in _SUBSCRIPTIONS):
        known += _OF_WRITING
    check_names(options, known, elsewhere)
    subscription = _subscription(given)
    least, most = number(given, "minOffsetsPerTrigger"), number(given, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise InvalidRequest(
            f"minOffsetsPerTrigger is {least} and maxOffsetsPerTrigger {most}: the least must not be above the most"
        )
    no_match = given.get("startingOffsetsByTimestampStrategy".lower(), "error").strip().lower()
    if no_match not in ("error", "latest"):
        raise InvalidRequest(f"option startingOffsetsByTimestampStrategy is {no_match!r}: use error or latest")
    poll_wait_ms = number(given, "pollWaitMs", least=0, most=POLL_WAIT_MS_MAX)
    return SourceOptions(
        connection=connection_settings(given),
        subscription=subscription,
        starting=_place(given, "starting", edge=LATEST if streaming else EARLIEST, streaming=streaming),
        ending=_place(given, "ending", edge=LATEST, streaming=streaming),
        no_match="latest" if no_match == "latest" else "error",
        offsets_per_trigger_max=most,
        offsets_per_trigger_min=least,
        bytes_per_trigger_max=size(given, "maxBytesPerTrigger"),
        trigger_delay_ms_max=duration_ms(given, "maxTriggerDelay") or TRIGGER_DELAY_MS_DEFAULT,
        poll_wait_ms=POLL_WAIT_MS_DEFAULT if poll_wait_ms is None else poll_wait_ms,
        tasks_min=number(given, "minPartitions"),
        task_records_max=number(given, "maxRecordsPerPartition"),
        task_bytes_max=size(given, "maxBytesPerPartition"),
        parallelism=number(given, PARALLELISM),
        include_headers=flag(given, "includeHeaders", default=False),
        fail_on_data_loss=flag(given, "failOnDataLoss", default=True),
        group=_group(given, subscription),
        group_is_given="group" in given,
    )


# -- what is read -----------------------------------------------------------------------------------------------------------


def _subscription(given: Mapping[str, str]) -> Subscription:
    chosen = [name for name in _SUBSCRIPTIONS if name.lower() in given]
    if len(chosen) != 1:
        found = f"{' and '.join(chosen)} are set" if chosen else "none is set"
        raise InvalidRequest(f"set exactly one of the options subscribe, subscribePattern and assign: {found}")
    [name] = chosen
    text = given[name.lower()]
    if name == "subscribe":
        topics = [topic.strip() for topic in text.split(",") if topic.strip()]
        if not topics:
            raise InvalidRequest("option subscribe is empty: name a topic, or several with commas between them")
        return Subscription(_checked_topics(name, topics))
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidRequest(f"option subscribePattern {text!r} is not a regular expression: {error}") from None
        if not text.strip():
            raise InvalidRequest('option subscribePattern is empty: write a regular expression, as in "orders-.*"')
        return Subscription(pattern=text)
    partitions = _assigned(text)
    return Subscription(_checked_topics(name, sorted(partitions)), partitions=partitions)


def _checked_topics(option: str, topics: list[str]) -> tuple[str, ...]:
    for topic in topics:
        try:
            check_topic(topic)
        except InvalidRequest as error:
            raise InvalidRequest(f"option {option}: {error}") from None
    return tuple(sorted(set(topics)))


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    example = 'write JSON, as in {"orders":[0,1]}'
    found = _json(text, "assign", example)
    partitions: dict[str, tuple[int, ...]] = {}
    for topic, indexes in found.items():
        if not isinstance(indexes, list) or not indexes or not all(_is_index(index) for index in indexes):
            raise InvalidRequest(f"option assign: the partitions of {topic!r} must be a list of numbers; {example}")
        partitions[topic] = tuple(sorted(set(indexes)))
    if not partitions:
        raise InvalidRequest(f"option assign names no topic: {example}")
    return partitions


def _group(given: Mapping[str, str], subscription: Subscription) -> str | None:
    group = given.get("group")
    if group is None:
        prefix = given.get("groupidprefix", GROUP_PREFIX_DEFAULT).strip()
        group = f"{prefix}-{subscription}".encode()[:_GROUP_BYTES_MAX].decode(errors="ignore")
    return group.strip() or None


# -- where it begins and ends -------------------------------------------------------------------------------------------------


def _place(given: Mapping[str, str], side: Literal["starting", "ending"], *, edge: int, streaming: bool) -> Place:
    """The more exact option wins, as with Kafka: one timestamp, timestamps by partition, then offsets."""
    timestamp_ms = number(given, f"{side}Timestamp", least=0, most=TIMESTAMP_MS_MAX)
    if timestamp_ms is not None:
        return Place(timestamp_ms=timestamp_ms)
    by_timestamp = f"{side}OffsetsByTimestamp"
    if by_timestamp.lower() in given:
        example = 'write JSON of milliseconds since 1970, as in {"orders":{"0":1700000000000}}'
        return Place(timestamps_ms=_numbers(given[by_timestamp.lower()], by_timestamp, 0, example))
    name = f"{side}Offsets"
    text = given.get(name.lower())
    if text is None:
        return Place(edge=edge)
    word = text.strip().lower()
    if word == "earliest":
        if side == "ending":
            raise InvalidRequest("option endingOffsets cannot be earliest: use latest or offsets")
        return Place(edge=EARLIEST)
    if word == "latest":
        if side == "starting" and not streaming:
            raise InvalidRequest(
                "option startingOffsets cannot be latest in a batch, which would be empty: use earliest or offsets"
            )
        return Place(edge=LATEST)
    words = "earliest, latest" if streaming else "earliest" if side == "starting" else "latest"
    example = f'use {words} or JSON, as in {{"orders":{{"0":23,"1":-1}}}}'
    offsets = _numbers(text, name, EARLIEST, example)
    refused = {"ending": EARLIEST, "starting": None if streaming else LATEST}[side]
    if any(offset == refused for positions in offsets.values() for offset in positions.values()):
        meaning = "earliest" if refused == EARLIEST else "latest"
        raise InvalidRequest(f"option {name}: {refused} ({meaning}) has no meaning there; {example}")
    found = _json(text, name, example)
    try:
        return Place(offsets=offsets, ids=StreamOffset.ids_in(found), epochs=StreamOffset.epochs_in(found))
    except (AttributeError, TypeError, ValueError):
        raise InvalidRequest(f"option {name}: its log epochs are not those of a stream; {example}") from None


def _numbers(text: str, option: str, least: int, example: str) -> Positions:
    found = _json(text, option, example)
    positions: dict[str, dict[int, int]] = {}
    for topic, numbers in found.items():
        if topic in OFFSET_KEYS:
            continue
        if not isinstance(numbers, dict) or not numbers:
            raise InvalidRequest(f"option {option}: {topic!r} has no partitions; {example}")
        positions[topic] = {}
        for index, value in numbers.items():
            if not (index.isascii() and index.isdigit() and _is_index(int(index))):
                raise InvalidRequest(f"option {option}: {index!r} is not a partition of {topic!r}; {example}")
            if type(value) is not int or not least <= value < 1 << 63:
                raise InvalidRequest(f"option {option}: {value!r} is not a number for {topic}-{index}; {example}")
            positions[topic][int(index)] = value
    if not positions:
        raise InvalidRequest(f"option {option} names no topic: {example}")
    return positions


def _json(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise InvalidRequest(f"option {option} is {text!r}: {example}") from None
    if not isinstance(found, dict):
        raise InvalidRequest(f"option {option} is {text!r}: {example}")
    return found


def _is_index(index: object) -> bool:
    return type(index) is int and 0 <= index <= PARTITION_MAX

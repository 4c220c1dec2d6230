"""What the broker holds of the topics a query reads, where in it the query begins and ends, and whether anything it counts on is gone.

Records count as lost only where a topic was deleted (or deleted and created again), where retention or truncation has removed records
that were not read, or where the log was cut before what was read, as a power cut does to a topic without `fsync`. Gaps that compaction
has left and records that have expired are no loss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.errors import DataLoss, InvalidRequest, PartitionNotFound, TopicNotFound
from penstock.protocols.flymq.operations.blocks import NO_EPOCH, PartitionSpan, Plan, PlannedTopic, TopicSpans
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.offsets import EARLIEST, LATEST, Epochs, Positions, StreamOffset
from penstock.spark.options import Place, SourceOptions, Subscription

_GO_ON = "set the option failOnDataLoss to false to go on with what is left"


class TopicHoldings(NamedTuple):
    """A topic as it is now; the offsets of those of its partitions that are read."""

    id: str
    retained: bool
    """Whether retention removes records."""
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    epochs: Mapping[int, int]
    cuts: Mapping[int, int]
    """Where logs were cut since the epochs that were asked about; those that were not are not among them."""


Holdings = Mapping[str, TopicHoldings]
"""By topic; those that do not exist are not among them."""


def subscribed_topics(client: FlyMQClient, subscription: Subscription) -> list[str]:
    """Their names, sorted. Those that a pattern matches now."""
    if subscription.pattern is None:
        return list(subscription.topics)
    wanted = re.compile(subscription.pattern)
    return [topic for topic in client.topics() if wanted.fullmatch(topic)]


def look(
    client: FlyMQClient,
    subscription: Subscription,
    *,
    reached: StreamOffset | None = None,
    known: Positions | None = None,
    wait_ms: int = 0,
) -> Holdings:
    """What there is now, and where logs were cut since the query planned up to `reached`.

    With `wait_ms`, once there is a record behind what is known, which is what was reached unless more is given; or the time is over.

    Raises PartitionNotFound if a partition was assigned that its topic does not have.
    """
    topics = subscribed_topics(client, subscription)
    reached = reached or StreamOffset({})
    known = reached.positions if known is None else known
    if any(topic not in known for topic in topics):
        wait_ms = 0  # all of it is news
    spans = [
        TopicSpans(
            topic,
            [
                PartitionSpan(
                    index,
                    max(reached.positions.get(topic, {}).get(index, end), 0),
                    max(end, 0),
                    epoch=reached.epochs.get(topic, {}).get(index, NO_EPOCH),
                )
                for index, end in known.get(topic, {}).items()
            ],
        )
        for topic in topics
    ]
    plan = client.blocks.plan(spans, wait_ms=wait_ms)
    return holdings_in(plan, subscription.partitions)


def holdings_in(plan: Plan, assigned: Mapping[str, tuple[int, ...]] | None = None) -> Holdings:
    """What a plan tells of topics, of some of their partitions or of all. Raises PartitionNotFound."""
    return {
        topic.topic: _holdings(topic, None if assigned is None else assigned[topic.topic])
        for topic in plan.topics
        if topic.id
    }


def _holdings(topic: PlannedTopic, wanted: tuple[int, ...] | None) -> TopicHoldings:
    if wanted is not None and wanted[-1] >= len(topic.partitions):
        raise PartitionNotFound(
            f"partition {wanted[-1]} not found: topic {topic.topic} has partitions 0 to {len(topic.partitions) - 1}, "
            "and the option assign names more"
        )
    read = [each for each in topic.partitions if wanted is None or each.partition in wanted]
    return TopicHoldings(
        topic.id,
        topic.retained,
        {each.partition: each.start_offset for each in read},
        {each.partition: each.end_offset for each in read},
        {each.partition: each.epoch for each in read},
        {each.partition: each.cut for each in read if each.cut is not None},
    )


def epochs_of(holdings: Holdings) -> Epochs:
    return {topic: held.epochs for topic, held in holdings.items()}


def check_all_exist(holdings: Holdings, subscription: Subscription) -> None:
    """Raises TopicNotFound if a topic that was named is not there."""
    missing = [topic for topic in subscription.topics if topic not in holdings]
    if missing:
        raise TopicNotFound(
            f"topic not found: {', '.join(missing)} (create it with `penstock topic create`, or write to it, before it is read)"
        )


# -- where a query begins and ends --------------------------------------------------------------------------------------------


def starting_positions(client: FlyMQClient, holdings: Holdings, options: SourceOptions) -> Positions:
    """Raises InvalidRequest, DataLoss."""

    def edge_of(topic: str, index: int, edge: int) -> int:
        held = holdings[topic]
        return held.starts[index] if edge == EARLIEST else held.ends[index]

    def no_match(topic: str, index: int, timestamp_ms: int) -> int:
        if options.no_match == "error":
            raise InvalidRequest(
                f"{topic}-{index} has no record at or after {timestamp_ms} ms: begin earlier, or set the option "
                "startingOffsetsByTimestampStrategy to latest"
            )
        return holdings[topic].ends[index]

    place = options.starting
    positions = _positions(client, holdings, place, "startingOffsets", edge_of, no_match)
    if place.offsets is not None:
        _check_within(holdings, positions, "startingOffsets")
    return without_lost(holdings, positions, place.ids or {}, fail=options.fail_on_data_loss)


def ending_positions(client: FlyMQClient, holdings: Holdings, options: SourceOptions) -> Positions:
    """Raises InvalidRequest."""
    positions = _positions(
        client,
        holdings,
        options.ending,
        "endingOffsets",
        lambda topic, index, edge: holdings[topic].ends[index],
        lambda topic, index, timestamp_ms: holdings[topic].ends[index],
    )
    if options.ending.offsets is not None:
        _check_within(holdings, positions, "endingOffsets")
    return positions


def _positions(
    client: FlyMQClient,
    holdings: Holdings,
    place: Place,
    option: str,
    edge_of: Callable[[str, int, int], int],
    no_match: Callable[[str, int, int], int],
) -> Positions:
    if place.offsets is not None:
        _check_names(holdings, place.offsets, option)
        return {
            topic: {
                index: edge_of(topic, index, offset) if offset in (EARLIEST, LATEST) else offset
                for index, offset in numbers.items()
            }
            for topic, numbers in place.offsets.items()
        }
    if place.timestamp_ms is None and place.timestamps_ms is None:
        return {
            topic: {index: edge_of(topic, index, place.edge) for index in held.ends} for topic, held in holdings.items()
        }
    if place.timestamps_ms is not None:
        _check_names(holdings, place.timestamps_ms, f"{option}ByTimestamp")
    found: dict[str, dict[int, int]] = {}
    for topic, held in holdings.items():
        found[topic] = {}
        for index in held.ends:
            timestamp_ms = place.timestamp_ms if place.timestamps_ms is None else place.timestamps_ms[topic][index]
            assert timestamp_ms is not None
            offset = client.seek_to_time(topic, None, index, timestamp_ms)
            found[topic][index] = no_match(topic, index, timestamp_ms) if offset >= held.ends[index] else offset
    return found


def _check_names(holdings: Holdings, given: Positions, option: str) -> None:
    there = {(topic, index) for topic, held in holdings.items() for index in held.ends}
    named = {(topic, index) for topic, numbers in given.items() for index in numbers}
    unknown, missing = sorted(named - there), sorted(there - named)
    if unknown:
        raise InvalidRequest(f"option {option} names {_list(unknown)}, which the query does not read: remove it")
    if missing:
        raise InvalidRequest(f"option {option} must name every partition that is read: {_list(missing)} is missing")


def _list(partitions: list[tuple[str, int]]) -> str:
    names = [f"{topic}-{index}" for topic, index in partitions[:5]]
    return ", ".join(names) + (f" and {len(partitions) - 5} more" if len(partitions) > 5 else "")


def _check_within(holdings: Holdings, positions: Positions, option: str) -> None:
    for topic, numbers in positions.items():
        for index, offset in numbers.items():
            end = holdings[topic].ends[index]
            if offset > end:
                raise InvalidRequest(
                    f"option {option}: offset {offset} of {topic}-{index} lies beyond its end, which is {end}; use -1 for the end"
                )


# -- what is gone -------------------------------------------------------------------------------------------------------------


def without_lost(holdings: Holdings, positions: Positions, ids: Mapping[str, str], *, fail: bool) -> Positions:
    """Where reading continues: the given positions, moved behind what is gone. Raises DataLoss if that matters and `fail` is set."""
    moved: dict[str, dict[int, int]] = {}
    for topic, numbers in positions.items():
        held = holdings.get(topic)
        if held is None:
            lost(f"topic {topic} was deleted before all of it was read", fail=fail)
            continue
        if ids.get(topic, held.id) != held.id:
            lost(
                f"topic {topic} was deleted and created again, so the offsets read so far mean nothing in it", fail=fail
            )
            moved[topic] = dict(held.starts)
            continue
        moved[topic] = {
            index: reachable(topic, index, offset, held, fail=fail)
            for index, offset in numbers.items()
            if index in held.ends
        }
    return moved


def end_in(held: TopicHoldings, topic: str, index: int, end_offset: int, *, fail: bool) -> int:
    """Return the end of a range that was planned in a partition, or the cut if its log was cut before that: what is there now belongs to a
    later batch. Raises DataLoss if it was cut and `fail` is set."""
    cut = held.cuts.get(index)
    if cut is None or end_offset <= cut:
        return end_offset
    _lost_to_cut(topic, index, end_offset, cut, fail=fail)
    return cut


def reachable(topic: str, index: int, offset: int, held: TopicHoldings, *, fail: bool) -> int:
    """Where reading continues in a partition. Raises DataLoss if records between are lost and `fail` is set."""
    start, end = held.starts[index], held.ends[index]
    cut = held.cuts.get(index)
    if cut is not None and offset > cut:
        _lost_to_cut(topic, index, offset, cut, fail=fail)
        return max(cut, start)
    if offset < start:
        if held.retained:
            lost(
                f"retention or truncation has removed offsets {offset} to {start - 1} of {topic}-{index} before they were read",
                fail=fail,
            )
        return start
    if offset > end:
        lost(
            f"{topic}-{index} ends at offset {end}, and {offset} was read before: the broker has lost its latest records",
            fail=fail,
        )
        return end
    return offset


def _lost_to_cut(topic: str, index: int, offset: int, cut: int, *, fail: bool) -> None:
    """Raises DataLoss if `fail` is set, because a query has planned up to an offset beyond the cut, and warns otherwise."""
    lost(
        f"topic {topic} partition {index} was cut at offset {cut} after the query had planned up to offset {offset}: a crash took records "
        "that were not flushed (its durability is not fsync), or a backup was restored, and other records get their offsets",
        fail=fail,
        advice=f"set the option failOnDataLoss to false to continue at offset {cut}, or begin with a new checkpoint",
    )


def lost(what: str, *, fail: bool, advice: str = _GO_ON) -> None:
    """Raises DataLoss if `fail` is set, and warns otherwise."""
    if fail:
        raise DataLoss(f"{what}; {advice}")
    import structlog  # slow to import, and rarely needed

    structlog.get_logger(__name__).warning("records_lost", reason=what)

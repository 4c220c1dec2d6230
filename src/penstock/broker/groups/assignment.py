"""Dividing the partitions of topics among the members of a consumer group.

Each topic is divided evenly among the members that subscribe to it, so two members differ by one partition of a topic at most. A
partition stays with the member that has it as long as that keeps the division even. Of a topic whose partitions do not divide evenly, the
members with the fewest partitions of all topics so far get one more. The same input gives the same assignment.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int


def assign(
    partitions: Mapping[str, int], subscriptions: Mapping[str, AbstractSet[str]], current: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """Return the member of each partition.

    `partitions` is the number of partitions of each topic, `subscriptions` the topics of each member, `current` the assignment so far.
    A topic without subscribers is left out.
    """
    assignment: dict[TopicPartition, str] = {}
    loads = dict.fromkeys(subscriptions, 0)
    for topic, count in sorted(partitions.items()):
        subscribers = sorted(member for member, topics in subscriptions.items() if topic in topics)
        if subscribers:
            for partition, member in _assign_topic(topic, count, subscribers, current, loads).items():
                assignment[TopicPartition(topic, partition)] = member
                loads[member] += 1
    return assignment


def _assign_topic(
    topic: str,
    count: int,
    subscribers: list[str],
    current: Mapping[TopicPartition, str],
    loads: Mapping[str, int],
) -> dict[int, str]:
    held: dict[str, list[int]] = {member: [] for member in subscribers}
    unassigned: list[int] = []
    for partition in range(count):
        held.get(current.get(TopicPartition(topic, partition), ""), unassigned).append(partition)
    even, remainder = divmod(count, len(subscribers))
    by_load = sorted(subscribers, key=lambda member: (loads[member], -len(held[member])))
    quotas = {member: even + (rank < remainder) for rank, member in enumerate(by_load)}
    kept: dict[int, str] = {}
    for member in subscribers:
        kept |= dict.fromkeys(held[member][: quotas[member]], member)
        unassigned += held[member][quotas[member] :]
    free = iter(sorted(unassigned))
    for member in by_load:
        for _ in range(quotas[member] - len(held[member])):
            kept[next(free)] = member
    return kept

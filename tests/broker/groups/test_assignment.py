"""Dividing partitions among members: evenly, with few moves, and always the same way."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.assignment import TopicPartition, assign


def of(topic: str, *partitions: int) -> set[TopicPartition]:
    return {TopicPartition(topic, each) for each in partitions}


def held(assignment: dict[TopicPartition, str], member: str) -> set[TopicPartition]:
    return {partition for partition, owner in assignment.items() if owner == member}


def test_a_topic_is_divided_evenly_and_a_new_member_takes_only_its_share() -> None:
    both = {"a": {"t"}, "b": {"t"}}
    first = assign({"t": 12}, both, {})
    assert Counter(first.values()) == {"a": 6, "b": 6}
    second = assign({"t": 12}, {**both, "c": {"t"}}, first)
    assert Counter(second.values()) == {"a": 4, "b": 4, "c": 4}
    assert held(second, "a") < held(first, "a")
    assert held(second, "b") < held(first, "b")


def test_what_a_member_leaves_goes_to_the_others_and_nothing_else_moves() -> None:
    first = assign({"t": 12}, {"a": {"t"}, "b": {"t"}, "c": {"t"}}, {})
    second = assign({"t": 12}, {"a": {"t"}, "b": {"t"}}, first)
    assert held(second, "a") > held(first, "a")
    assert held(second, "b") > held(first, "b")


def test_topics_of_one_partition_are_spread_over_the_members() -> None:
    topics = {f"t{number}": 1 for number in range(10)}
    alone = assign(topics, {"a": set(topics)}, {})
    shared = assign(topics, {"a": set(topics), "b": set(topics)}, alone)
    assert Counter(shared.values()) == {"a": 5, "b": 5}
    assert assign(topics, {"a": set(topics), "b": set(topics)}, shared) == shared


def test_a_member_gets_partitions_of_its_own_topics_only() -> None:
    assignment = assign({"t": 2, "u": 2, "nobody": 3}, {"a": {"t"}, "b": {"u"}}, {TopicPartition("u", 0): "a"})
    assert held(assignment, "a") == of("t", 0, 1)
    assert held(assignment, "b") == of("u", 0, 1)
    assert len(assignment) == 4


def test_more_members_than_partitions_leave_some_idle() -> None:
    first = assign({"t": 2}, {"a": {"t"}, "b": {"t"}}, {})
    assert assign({"t": 2}, {"a": {"t"}, "b": {"t"}, "0": {"t"}}, first) == first


def test_new_partitions_are_added_to_those_that_stay() -> None:
    members = {"a": {"t"}, "b": {"t"}}
    first = assign({"t": 4}, members, {})
    second = assign({"t": 6}, members, first)
    assert first.items() <= second.items()
    assert Counter(second.values()) == {"a": 3, "b": 3}


TOPICS = ("t", "u", "v")
SUBSCRIPTIONS = st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from(TOPICS), min_size=1))


@given(st.fixed_dictionaries({each: st.integers(1, 20) for each in TOPICS}), st.lists(SUBSCRIPTIONS, max_size=4))
def test_every_partition_has_one_subscriber_and_no_topic_is_divided_unevenly(
    partitions: dict[str, int], steps: list[dict[str, set[str]]]
) -> None:
    assignment: dict[TopicPartition, str] = {}
    for subscriptions in steps:
        assignment = assign(partitions, subscriptions, assignment)
        for topic, count in partitions.items():
            subscribers = [member for member, topics in subscriptions.items() if topic in topics]
            owners = [owner for (name, _), owner in assignment.items() if name == topic]
            assert len(owners) == (count if subscribers else 0)
            shares = [owners.count(member) for member in subscribers]
            assert sum(shares) == len(owners)
            assert max(shares, default=0) - min(shares, default=0) <= 1
        assert assign(partitions, subscriptions, assignment) == assignment

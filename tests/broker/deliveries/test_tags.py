"""Delivery tags: unique over partitions, and over changes of their number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.deliveries.tags import Tags


def test_the_tags_of_one_partition_count_from_one() -> None:
    tags = Tags([0])
    assert [tags.tag(0, number) for number in range(3)] == [1, 2, 3]
    assert tags.place(3) == (0, 2)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 30)), min_size=1, max_size=5))
def test_every_tag_given_before_and_after_partitions_were_added_has_its_own_place(
    steps: list[tuple[int, int]],
) -> None:
    tags = Tags([0])
    partitions, base, given_tags = 1, 0, dict[int, tuple[int, int]]()
    next_numbers = [0]
    for added, records in steps:
        for number in range(records):
            partition = number % partitions
            tag = tags.tag(partition, next_numbers[partition])
            assert tag not in given_tags
            given_tags[tag] = partition, next_numbers[partition]
            next_numbers[partition] += 1
        assert {tag: tags.place(tag) for tag in given_tags} == given_tags
        base = 1 + base + max(next_numbers)
        partitions += added
        next_numbers += [0] * added
        tags.extend(partitions, base, min(given_tags, default=None))


def test_what_no_delivery_uses_any_more_is_forgotten() -> None:
    tags = Tags([0])
    first = tags.tag(0, 5)
    for partitions in range(2, 50):
        tags.extend(partitions, partitions * 10, first)
    assert len(tags._schemes) == 49
    last = tags.tag(0, 1)
    tags.extend(50, 1000, last)
    assert len(tags._schemes) == 2
    assert tags.place(last) == (0, 1)
    tags.extend(51, 2000, None)
    assert len(tags._schemes) == 1

"""Lag in records and in seconds, and the bounds of a report."""

from __future__ import annotations

import pytest

from penstock.broker.access.checks import ANONYMOUS, SYSTEM
from penstock.broker.broker import Broker
from penstock.broker.groups import lag
from penstock.broker.groups.lag import GroupLag, Lag
from penstock.broker.groups.membership import Heartbeat, Session
from penstock.errors import GroupNotFound, PartitionNotFound
from penstock.log.api import TopicConfig
from penstock.testing.clock import ManualClock
from tests.broker.producing import produce

WHO = ANONYMOUS


@pytest.mark.dense
async def test_lag_is_what_lies_between_the_committed_offset_and_the_end(broker: Broker) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=2))
    await broker.groups.commit(WHO, "t", "g", 0, 0)
    assert await broker.groups.lag(WHO, "t", "g", 0) == Lag(0, 0, 0)
    await produce(broker, "t", [b"a", b"b", b"c"], partition=0)
    assert await broker.groups.lag(WHO, "t", "g", 0) == Lag(0, 3, 3)
    await broker.groups.commit(WHO, "t", "g", 0, 2)
    assert await broker.groups.lag(WHO, "t", "g", 0) == Lag(2, 3, 1)
    await broker.groups.commit(WHO, "t", "g", 0, 100)
    assert await broker.groups.lag(WHO, "t", "g", 0) == Lag(100, 3, 0)


@pytest.mark.dense
async def test_a_group_without_an_offset_is_behind_by_all_there_is(broker: Broker) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=2))
    await broker.groups.commit(WHO, "t", "g", 0, 0)
    await produce(broker, "t", [b"a", b"b"], partition=1)
    assert await broker.groups.lag(WHO, "t", "g", 1) == Lag(None, 2, 2)
    with pytest.raises(GroupNotFound):
        await broker.groups.lag(WHO, "t", "h", 0)
    with pytest.raises(PartitionNotFound):
        await broker.groups.lag(WHO, "t", "g", 2)


@pytest.mark.dense
async def test_a_report_tells_the_age_of_the_first_record_not_committed(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(WHO, "t")
    await produce(broker, "t", [b"a"])
    clock.advance(10)
    await produce(broker, "t", [b"b"])
    clock.advance(5)
    await broker.groups.commit(WHO, "t", "g", 0, 0)
    assert (await broker.groups.lags(SYSTEM)).lags == [GroupLag("t", "g", 0, 2, 15.0)]
    clock.advance(1)
    assert (await broker.groups.lags(SYSTEM)).lags == [GroupLag("t", "g", 0, 2, 16.0)]
    await broker.groups.commit(WHO, "t", "g", 0, 1)
    assert (await broker.groups.lags(SYSTEM)).lags == [GroupLag("t", "g", 0, 1, 6.0)]
    await broker.groups.commit(WHO, "t", "g", 0, 2)
    assert (await broker.groups.lags(SYSTEM)).lags == [GroupLag("t", "g", 0, 0, 0.0)]


@pytest.mark.dense
async def test_a_wall_clock_set_back_gives_no_negative_age(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(WHO, "t")
    await produce(broker, "t", [b"a"])
    await broker.groups.commit(WHO, "t", "g", 0, 0)
    clock.jump(-3600)
    assert (await broker.groups.lags(SYSTEM)).lags == [GroupLag("t", "g", 0, 1, 0.0)]


@pytest.mark.dense
async def test_a_report_forgets_what_it_knew_when_the_topic_is_another(broker: Broker, clock: ManualClock) -> None:
    for _ in range(2):
        await broker.topics.ensure(WHO, "t")
        await produce(broker, "t", [b"a"])
        await broker.groups.commit(WHO, "t", "g", 0, 0)
        clock.advance(3)
        assert (await broker.groups.lags(SYSTEM)).lags == [GroupLag("t", "g", 0, 1, 3.0)]
        await broker.topics.delete(WHO, "t")
    assert (await broker.groups.lags(SYSTEM)).lags == []


async def test_offsets_without_a_topic_have_no_lag(broker: Broker) -> None:
    await broker.groups.commit(WHO, "missing", "g", 0, 3)
    assert (await broker.groups.lags(SYSTEM)).lags == []


@pytest.mark.dense
async def test_a_report_is_bounded_in_rows_and_in_lookups(
    broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "LOOKUPS_MAX", 2)
    await broker.topics.ensure(WHO, "t")
    await produce(broker, "t", [b"a"] * 4)
    for offset, group in enumerate(("a", "b", "c", "d")):
        await broker.groups.commit(WHO, "t", group, 0, offset)
    clock.advance(1)
    report = await broker.groups.lags(SYSTEM, lags_max=3)
    assert ([row.seconds for row in report.lags], report.left_out) == ([1.0, 1.0, None], 1)
    assert [row.records for row in report.lags] == [4, 3, 2]
    # What was looked up before costs no lookup again, so the next report gets further.
    assert [row.seconds for row in (await broker.groups.lags(SYSTEM, lags_max=3)).lags] == [1.0, 1.0, 1.0]


@pytest.mark.dense
async def test_partitions_without_a_commit_count_from_the_log_start(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=4))
    for partition in range(4):
        await produce(broker, "t", [b"x"] * (partition + 1), partition=partition)
    clock.advance(7)
    await broker.groups.commit(WHO, "t", "g", 0, 1)
    report = await broker.groups.lags(SYSTEM)
    assert report.lags == [
        GroupLag("t", "g", 0, 0, 0.0),
        GroupLag("t", "g", 1, 2, 7.0),
        GroupLag("t", "g", 2, 3, 7.0),
        GroupLag("t", "g", 3, 4, 7.0),
    ]


@pytest.mark.dense
async def test_a_group_whose_members_have_read_nothing_is_behind_by_everything(broker: Broker) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=2))
    await produce(broker, "t", [b"x"] * 3, partition=1)
    await broker.coordinator.heartbeat(WHO, "g", ["t"], Heartbeat("m", 0, Session(), {}))
    assert [row.records for row in (await broker.groups.lags(SYSTEM)).lags] == [0, 3]


async def test_a_group_that_does_not_fit_is_counted_as_left_out(broker: Broker) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=4))
    for group in ("a", "b", "c"):
        await broker.groups.commit(WHO, "t", group, 0, 0)
    for lags_max, rows, left_out in ((4, 4, 2), (6, 6, 2), (8, 8, 1), (12, 12, 0), (20, 12, 0)):
        report = await broker.groups.lags(SYSTEM, lags_max)
        assert (len(report.lags), report.left_out) == (rows, left_out)

"""The limits on topics and partitions, while several are made at once."""

from __future__ import annotations

import pytest

from penstock.broker.limits import BrokerLimits
from penstock.broker.topics.quota import TopicQuota
from penstock.errors import LimitExceeded
from penstock.log.api import Engine, TopicConfig


async def test_what_is_being_made_counts_and_what_failed_does_not(engine: Engine) -> None:
    quota = TopicQuota(engine, BrokerLimits(topics_max=3, partitions_max=6, partitions_per_topic_max=5))
    await engine.create_topic("a", TopicConfig(partitions=2))
    with quota.reserved("b", 3):
        with (
            pytest.raises(LimitExceeded, match="2 more partitions do not fit next to the 5 there are"),
            quota.reserved("c", 2),
        ):
            pass
        with quota.reserved("c", 1), pytest.raises(LimitExceeded, match="there are 3 topics"), quota.reserved("d", 1):
            pass
    with quota.reserved("c", 4):
        pass


async def test_a_topic_that_gets_partitions_is_counted_once(engine: Engine) -> None:
    quota = TopicQuota(engine, BrokerLimits(topics_max=1, partitions_max=6, partitions_per_topic_max=6))
    await engine.create_topic("a", TopicConfig(partitions=4))
    with quota.reserved("a", 6):
        await engine.alter_topic("a", TopicConfig(partitions=6))
    with pytest.raises(LimitExceeded, match="there are 1 topics"), quota.reserved("b", 1):
        pass


async def test_internal_topics_do_not_count(engine: Engine) -> None:
    quota = TopicQuota(engine, BrokerLimits(topics_max=1, partitions_max=1, partitions_per_topic_max=1))
    await engine.create_topic("__own", TopicConfig(partitions=3))
    with quota.reserved("a", 1):
        pass

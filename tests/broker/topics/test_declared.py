"""What the configuration file declares, compared with what exists."""

from __future__ import annotations

import pytest

from penstock.broker.topics.declared import Change, Declared, plan
from penstock.errors import ConfigError
from penstock.log.api import TopicConfig

SEVEN_DAYS = TopicConfig(partitions=2, retention_ms=604_800_000)


def test_a_missing_topic_is_created_with_the_defaults() -> None:
    assert plan({}, [Declared("orders", SEVEN_DAYS, {"partitions"})]) == [Change("orders", None, SEVEN_DAYS)]


def test_only_the_settings_that_are_named_change() -> None:
    existing = TopicConfig(partitions=4, compression="zstd")
    (change,) = plan({"orders": existing}, [Declared("orders", SEVEN_DAYS, {"retention_ms"})])
    assert change.after == TopicConfig(partitions=4, compression="zstd", retention_ms=604_800_000)
    assert change.settings == {"retention_ms": ("forever", "604800000")}


def test_a_topic_that_is_as_declared_does_not_change() -> None:
    assert plan({"orders": SEVEN_DAYS}, [Declared("orders", SEVEN_DAYS, {"partitions", "retention_ms"})]) == []
    assert plan({"orders": TopicConfig()}, [Declared("orders", SEVEN_DAYS, ())]) == []


def test_every_topic_with_too_few_partitions_is_named() -> None:
    existing = {"a": TopicConfig(partitions=3), "b": TopicConfig(), "c": TopicConfig(partitions=9)}
    declared = [Declared(name, SEVEN_DAYS, {"partitions"}) for name in "abc"]
    with pytest.raises(ConfigError) as refused:
        plan(existing, declared)
    assert [line.partition(":")[0] for line in str(refused.value).splitlines()] == [
        "topics[0].partitions is 2, and topic a has 3",
        "topics[2].partitions is 2, and topic c has 9",
    ]

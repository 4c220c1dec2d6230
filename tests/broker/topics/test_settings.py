"""Topic settings: what is accepted, and what the refusal says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.topics.settings import (
    check_topic_config,
    format_topic_config,
    parse_topic_config,
)
from penstock.errors import InvalidRequest
from penstock.log.api import Durability, TopicConfig


def test_settings_are_laid_over_the_defaults() -> None:
    defaults = TopicConfig(retention_ms=1000, compression="zstd")
    config = parse_topic_config(
        [("partitions", "3"), ("retention_ms", "7d"), ("segment_bytes", "64 MiB"), ("durability", "interval:50")],
        defaults,
    )
    assert config == TopicConfig(
        partitions=3,
        retention_ms=604_800_000,
        segment_bytes=64 << 20,
        durability=Durability("interval", 50),
        compression="zstd",
    )
    assert parse_topic_config([], defaults) == defaults


def test_forever_lifts_a_retention_that_the_defaults_have() -> None:
    defaults = TopicConfig(retention_ms=1000, retention_bytes=1000)
    config = parse_topic_config([("retention_ms", "forever"), ("retention_bytes", "forever")], defaults)
    assert (config.retention_ms, config.retention_bytes) == (None, None)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ([("colour", "red")], "'colour' is not known: use partitions, durability"),
        ([("partitions", "1"), ("partitions", "1")], "partitions is given twice"),
        ([("partitions", "0")], "partitions is 0: it must be between 1 and 10000"),
        ([("partitions", "-1")], "partitions: '-1' is not a whole number"),
        ([("partitions", "1_0")], "partitions: '1_0' is not a whole number"),
        ([("partitions", "9" * 5000)], "is not a whole number"),
        ([("durability", "maybe")], "durability: durability 'maybe' is not known"),
        ([("retention_ms", "0")], "retention_ms is 0"),
        ([("retention_ms", "soon")], "retention_ms: 'soon' is not a duration"),
        ([("retention_bytes", "-5")], "retention_bytes: '-5' is not a size"),
        ([("cleanup", "burn")], "cleanup: 'burn' is not one of delete, compact"),
        ([("compression", "lz4")], "compression: 'lz4' is not one of none, zstd"),
        ([("segment_bytes", "1")], "segment_bytes is 1: it must be between 65536 and 2147483648"),
        ([("segment_bytes", "3 GiB")], "segment_bytes is 3221225472"),
        ([("segment_ms", "999")], "segment_ms is 999"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings: list[tuple[str, str]], reason: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_topic_config(settings, TopicConfig())
    assert reason in refusal.value.message


def test_bounds_hold_however_the_settings_were_made() -> None:
    with pytest.raises(InvalidRequest, match="partitions is 10001"):
        check_topic_config(replace(TopicConfig(), partitions=10_001))


CONFIGS = st.builds(
    TopicConfig,
    partitions=st.integers(1, 10_000),
    durability=st.sampled_from([Durability("fsync"), Durability("none"), Durability("interval", 100)]),
    retention_ms=st.none() | st.integers(1, 2**63 - 1),
    retention_bytes=st.none() | st.integers(1, 2**63 - 1),
    cleanup=st.sampled_from(["delete", "compact"]),
    compression=st.sampled_from(["none", "zstd"]),
    segment_bytes=st.integers(1 << 16, 1 << 31),
    segment_ms=st.integers(1000, 2**63 - 1),
)


@given(CONFIGS)
def test_settings_survive_the_way_to_text_and_back(config: TopicConfig) -> None:
    assert parse_topic_config(format_topic_config(config), TopicConfig()) == config

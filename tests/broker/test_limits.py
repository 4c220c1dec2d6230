"""Limits that make no sense are refused where they are set."""

from __future__ import annotations

import pytest

from penstock.broker.limits import RECORD_BYTES_CEILING, BrokerLimits
from penstock.errors import ConfigError


def test_the_defaults_make_sense() -> None:
    assert BrokerLimits().record_bytes_max == RECORD_BYTES_CEILING


def test_a_limit_out_of_range_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"limits\.topics_max is 0: it must be between 1 and"):
        BrokerLimits(topics_max=0)
    with pytest.raises(ConfigError, match=r"limits\.record_bytes_max is 33554432: .* 33553408"):
        BrokerLimits(record_bytes_max=32 << 20)
    with pytest.raises(ConfigError, match=r"limits\.partitions_per_topic_max is 10001: .* 10000"):
        BrokerLimits(partitions_per_topic_max=10_001)

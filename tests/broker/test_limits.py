"""Limits that make no sense are refused where they are set."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from penstock.broker.limits import BrokerLimits
from penstock.settings import Reason

LISTED = Reason("one reply of FlyMQ lists no more")


@pytest.mark.parametrize("name", BrokerLimits.model_fields)
def test_no_limit_can_be_zero(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        BrokerLimits(**{name: 0})


@pytest.mark.parametrize(
    ("name", "ceiling"),
    [
        ("record_bytes_max", (32 << 20) - 1024),
        ("partitions_per_topic_max", 10_000),
        ("group_name_bytes_max", 249),
        ("schema_bytes_max", 4 << 20),
        ("roles_per_principal_max", 200),
        ("acl_entries_max", 1_000),
        ("topics_per_member_max", 1_000),
        ("partitions_per_group_max", 65_536),
        ("topics_per_group_max", 65_536),
        *((name, 1 << 20) for name, field in BrokerLimits.model_fields.items() if LISTED in field.metadata),
        ("fetch_bytes_max", 16 << 20),
    ],
)
def test_what_the_log_and_the_frames_hold_is_a_ceiling(name: str, ceiling: int) -> None:
    assert getattr(BrokerLimits(**{name: ceiling}), name) == ceiling
    with pytest.raises(ValidationError, match=name):
        BrokerLimits(**{name: ceiling + 1})


@pytest.mark.parametrize(
    "name", ["topics_max", "groups_max", "users_max", "roles_max", "acls_max", "acl_entries_total_max", "api_keys_max"]
)
def test_what_one_reply_lists_has_the_ceiling_of_its_list(name: str) -> None:
    assert LISTED in BrokerLimits.model_fields[name].metadata


def test_some_session_timeout_of_groups_must_be_possible() -> None:
    with pytest.raises(ValidationError, match="group_session_ms_min = 2000 is more than group_session_ms_max = 1000"):
        BrokerLimits(group_session_ms_min=2000, group_session_ms_max=1000)

"""Names of topics and groups: what is accepted, and what the refusal says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest, InvalidTopicName
from penstock.names import validate_group_name, validate_topic_name


@pytest.mark.parametrize(
    "name", ["a", "orders", "site/hall/sensor", "日本語", "with space", "a.b-c_d:e", "..a", "x" * 249, "__groups"]
)
def test_a_good_name_is_accepted(name: str) -> None:
    validate_topic_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is empty"),
        ("x" * 250, "250 bytes"),
        ("é" * 125, "250 bytes"),
        ("a\nb", "control character"),
        ("a\x00b", "control character"),
        ("a\x7f", "control character"),
        ("a\x85", "control character"),
        ("a\u2028b", "control character"),
        ("..", "level '..'"),
        (".", "level '.'"),
        ("../evil", "level '..'"),
        ("a/../b", "level '..'"),
        ("a/./b", "level '.'"),
        ("/a", "level ''"),
        ("a/", "level ''"),
        ("a//b", "level ''"),
        ("a\\b", "backslash"),
        ("a\ud800", "Unicode"),
    ],
)
def test_a_bad_name_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match=reason):
        validate_topic_name(name)


@given(st.text())
def test_an_accepted_name_leads_to_one_place_below_where_it_starts(name: str) -> None:
    try:
        validate_topic_name(name)
    except InvalidTopicName:
        return
    assert len(name.encode()) <= 249
    assert not {"", ".", ".."} & set(name.split("/"))
    assert "\x00" not in name
    assert "\\" not in name


@pytest.mark.parametrize(("name", "reason"), [("", "0 bytes"), ("g" * 11, "11 bytes"), ("a\tb", "control character")])
def test_a_bad_group_name_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        validate_group_name(name, 10)

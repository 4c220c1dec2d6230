from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.kafka.names import adopted_name, hashed_name, is_kafka_name, kafka_name

topics = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=249)
prefixes = st.from_regex(r"[A-Za-z0-9._-]{0,100}", fullmatch=True)


@given(topics, prefixes)
def test_every_topic_has_a_name_that_kafka_allows(name: str, prefix: str) -> None:
    for made in (kafka_name(name, prefix), hashed_name(name, prefix)):
        assert is_kafka_name(made)
        assert made.startswith(prefix)


@given(st.lists(topics, min_size=2, max_size=2, unique=True))
def test_two_topics_have_two_names(names: list[str]) -> None:
    assert len({hashed_name(name, "") for name in names}) == 2


@pytest.mark.parametrize(
    ("name", "kafka"), [("orders", "p.orders"), ("a.b-c_D9", "p.a.b-c_D9"), ("__groups", "p.__penstock.groups")]
)
def test_a_name_that_kafka_allows_stays_and_is_found_again(name: str, kafka: str) -> None:
    assert kafka_name(name, "p.") == kafka
    assert adopted_name(kafka, "p.") == name


@pytest.mark.parametrize("kafka", ["orders", "p.", "p.__penstock-topics", "p.__consumer_offsets"])
def test_what_is_not_ours_to_serve_has_no_name(kafka: str) -> None:
    assert adopted_name(kafka, "p.") is None

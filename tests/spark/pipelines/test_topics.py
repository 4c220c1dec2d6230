"""Which topics a pipeline reads."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import ConfigError, TopicNotFound
from penstock.spark.pipelines.model import TOPICS_MAX, Pipeline
from penstock.spark.pipelines.topics import chosen_topics, new_topics

EXISTING = ["orders", "orders.dlq", "orders-eu", "orders-us", "orders-per-minute", "payments"]


def pipeline(*topics: str, **settings: Any) -> Pipeline:
    gold = {"name": "g", "sql": "SELECT 1", "topic": "orders-per-minute"}
    values = {"name": "sales", "directory": "tables", "topics": list(topics), "bronze": {}, "gold": [gold], **settings}
    return Pipeline.model_validate(values)


def test_a_name_is_one_topic_and_a_pattern_all_that_it_fits_but_dead_letters_and_results_of_its_own() -> None:
    assert chosen_topics(pipeline("payments", "orders*"), EXISTING) == ["payments", "orders", "orders-eu", "orders-us"]
    assert chosen_topics(pipeline("orders.dlq"), EXISTING) == ["orders.dlq"], "who names it wants it"
    assert chosen_topics(pipeline("orders-eu", "orders-[eu]?"), EXISTING) == ["orders-eu", "orders-us"]


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("gone", "topic not found: gone; create it with: penstock topic create gone"),
        ("gone-*", "no topic fits gone-\\*: create one with penstock topic create NAME, or change the pattern"),
        ("*.dlq", "no topic fits"),
    ],
)
def test_what_stands_for_no_topic_is_refused(topic: str, message: str) -> None:
    with pytest.raises(TopicNotFound, match=message):
        chosen_topics(pipeline("payments", topic), EXISTING)


def test_more_topics_than_a_run_can_read_are_refused() -> None:
    existing = [f"t{number}" for number in range(TOPICS_MAX + 1)]
    assert len(chosen_topics(pipeline("t*"), existing[:-1])) == TOPICS_MAX
    with pytest.raises(
        ConfigError, match=f"stand for {TOPICS_MAX + 1} topics, and a pipeline reads at most {TOPICS_MAX}"
    ):
        chosen_topics(pipeline("t*"), existing)


def test_only_patterns_find_topics_that_appear_later() -> None:
    known = chosen_topics(pipeline("orders", "orders-*"), EXISTING)
    later = [*EXISTING, "orders-fr", "orders-fr.dlq", "refunds"]
    assert new_topics(pipeline("orders", "orders-*", "*-fr"), later, known) == ["orders-fr"]
    assert new_topics(pipeline("orders", "payments"), later, ["orders"]) == []

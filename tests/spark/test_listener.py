"""The listener that publishes offsets, told of batches by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from penstock.spark.listener import OffsetPublisher
from penstock.testing import RunningBroker

END = '{"__ids__": {"a": "1", "b": "2"}, "a": {"0": 7}, "b": {"0": 1, "1": 2}}'


def progress(name: str, *ends: str | None) -> Any:
    """As Spark reports a batch."""
    sources = [SimpleNamespace(endOffset=end) for end in ends]
    return cast("Any", SimpleNamespace(progress=SimpleNamespace(name=name, sources=sources)))


def committed(broker: RunningBroker) -> dict[tuple[str, str], dict[int, int]]:
    return {(each.group, each.topic): dict(each.offsets) for each in broker.connect().groups()}


def test_the_end_of_each_batch_is_published(running: RunningBroker) -> None:
    listener = OffsetPublisher({"penstock.bootstrap": running.address}, group="billing")
    listener.onQueryStarted(cast("Any", None))
    listener.onQueryProgress(progress("q", END))
    listener.onQueryIdle(cast("Any", None))
    listener.onQueryTerminated(cast("Any", None))
    assert committed(running) == {("billing", "a"): {0: 7}, ("billing", "b"): {0: 1, 1: 2}}


def test_the_group_is_the_one_the_query_has_by_itself(running: RunningBroker) -> None:
    OffsetPublisher({"penstock.bootstrap": running.address}).onQueryProgress(progress("q", END))
    assert {group for group, _ in committed(running)} == {"spark-a+b"}


def test_other_sources_and_other_queries_are_left_alone(running: RunningBroker) -> None:
    listener = OffsetPublisher({"penstock.bootstrap": running.address}, group="g", query_name="mine")
    listener.onQueryProgress(progress("other", END))
    for end in (
        None,
        "",
        "null",
        "5",
        "not json",
        '{"logOffset": 3}',
        '{"topic": {"0": 3}}',
        '{"__start__": "options"}',
    ):
        listener.onQueryProgress(progress("mine", end))
    assert committed(running) == {}
    listener.onQueryProgress(progress("mine", "5", END))
    assert ("g", "a") in committed(running)


def test_a_broker_that_is_gone_stops_no_query() -> None:
    OffsetPublisher({"penstock.bootstrap": "127.0.0.1:1"}).onQueryProgress(progress("q", END))

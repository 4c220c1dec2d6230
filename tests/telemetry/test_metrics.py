"""Metrics by OTLP are those of /metrics: the same families with the same series and values."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.resources import Resource
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from penstock.telemetry.metrics import MetricsEncoder
from penstock.testing import RunningBroker
from tests.telemetry.collector import attributes, collecting


@pytest.mark.parametrize("admin", [False, True])
def test_a_broker_exports_every_metric_when_it_stops(admin: bool) -> None:
    with collecting() as collector:
        otel = {"endpoint": collector.url, "service_name": "shop", "headers": {"authorization": "Bearer secret"}}
        with RunningBroker(admin=admin, otel=otel) as broker:
            client = broker.connect()
            client.create_topic("orders", 2)
            client.send_many("orders", [b"one", b"two", b"three"])
        metrics = collector.last_metrics()
        [resource] = collector.metrics[-1].resource_metrics
        assert attributes(resource.resource.attributes)["service.name"] == "shop"
        assert collector.request_headers[-1]["authorization"] == "Bearer secret"
    appended = metrics["penstock_appended_records"]
    assert appended.sum.is_monotonic
    assert appended.sum.data_points[0].as_double >= 3
    ends = {
        point.attributes[1].value.string_value: point.as_double
        for point in metrics["penstock_partition_end_offset"].gauge.data_points
        if attributes(point.attributes)["topic"] == "orders"
    }
    assert sum(ends.values()) == 3
    flushes = metrics["penstock_flush_duration_seconds"]
    [point] = flushes.histogram.data_points
    assert flushes.unit == "s"
    assert sum(point.bucket_counts) == point.count > 0
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert "process_cpu_seconds" in metrics


def test_a_histogram_has_its_buckets_apart_and_no_bound_above_the_last() -> None:
    family = HistogramMetricFamily("penstock_wait_seconds", "Waiting.", labels=["listener"])
    family.add_metric(["flymq"], [("0.1", 2), ("1.0", 5), ("+Inf", 6)], sum_value=7.5)
    family.add_metric(["felix"], [("0.1", 0), ("1.0", 0), ("+Inf", 1)], sum_value=3)
    [resource] = MetricsEncoder(Resource({})).encode([family]).resource_metrics
    [metric] = resource.scope_metrics[0].metrics
    found = [
        (dict(point.attributes or {}), list(point.explicit_bounds), list(point.bucket_counts), point.count, point.sum)  # type: ignore[union-attr]
        for point in metric.data.data_points
    ]
    assert found == [
        ({"listener": "flymq"}, [0.1, 1.0], [2, 3, 1], 6, 7.5),
        ({"listener": "felix"}, [0.1, 1.0], [0, 0, 1], 1, 3),
    ]


def test_a_counter_has_its_name_without_total_and_a_family_without_series_is_left_out() -> None:
    counter = CounterMetricFamily("penstock_things", "Things.", value=4)
    empty = CounterMetricFamily("penstock_none", "None.", labels=["listener"])
    [resource] = MetricsEncoder(Resource({})).encode([counter, empty]).resource_metrics
    assert [metric.name for metric in resource.scope_metrics[0].metrics] == ["penstock_things"]

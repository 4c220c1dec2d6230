"""Figures become Prometheus text, whatever the names in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.admin.figures import (
    CacheFigures,
    DiskFigures,
    Figures,
    PartitionFigures,
    ProducerFigures,
    RequestFigures,
)
from penstock.admin.metrics import families
from penstock.broker.access.audit import AuditStats
from penstock.broker.access.logins import LoginStats
from penstock.broker.cache.cache import CacheStats
from penstock.broker.deliveries.admin import SubscriptionStatus
from penstock.broker.deliveries.deadletters import DeadLetterStats
from penstock.broker.deliveries.restoring import SubscriptionStats
from penstock.broker.groups.lag import GroupLag, LagReport
from penstock.broker.groups.offsets import GroupStats
from penstock.broker.idempotence.producers import ProducerStats
from penstock.broker.pipelines import PipelineInfo, Stage
from penstock.broker.schedule.schedule import ScheduleStats
from penstock.broker.schemas.validation import ValidationStats
from penstock.broker.transactions.tickets import StagingStats
from penstock.broker.transactions.transactions import TransactionStats
from penstock.log.api import EngineStats
from penstock.net.stats import ListenerStats
from penstock.protocols.felix.server.stats import FelixStats
from penstock.stats import DURATION_BOUNDS_S, Histogram

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Scrape:
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> list[Metric]:
        return list(families(self._figures))


def figures(**changes: object) -> Figures:
    nothing = Figures(
        engine=EngineStats(),
        disk=DiskFigures(),
        topics=0,
        partitions=[],
        partitions_left_out=0,
        partitions_failed=0,
        lags=LagReport([], 0),
        group_members=0,
        groups=GroupStats(),
        delayed_pending=0,
        schedule=ScheduleStats(),
        dead_letters=DeadLetterStats(),
        dead_letters_waiting=0,
        subscriptions=0,
        subscription_statuses=[],
        in_flight=0,
        deliveries=SubscriptionStats(),
        cache=CacheFigures(0, 0, CacheStats()),
        validation=ValidationStats(),
        transactions=TransactionStats(),
        staging=StagingStats(),
        producers=ProducerFigures(0, 0, ProducerStats()),
        pipelines=[],
        logins=LoginStats(),
        audit=AuditStats(),
        listeners={},
        addresses={},
        requests={},
        pushes={},
        background_failures={},
        background_failing={},
        loop_tasks=0,
        loop_lag=Histogram(DURATION_BOUNDS_S),
    )
    return replace(nothing, **changes)  # type: ignore[arg-type]


def scraped(figures: Figures) -> Samples:
    text = generate_latest(Scrape(figures)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_name_is_ours_and_every_family_has_a_text() -> None:
    for family in families(figures()):
        assert family.name.startswith("penstock_")
        assert family.documentation.endswith(".")


def test_no_two_families_share_a_name() -> None:
    names = [family.name for family in families(figures())]
    assert len(names) == len(set(names))


def test_positions_that_were_moved_back_are_counted() -> None:
    found = scraped(figures(groups=GroupStats(truncated_offsets=3), deliveries=SubscriptionStats(truncated=2)))
    assert found["penstock_group_offsets_truncated_total", ()] == 3
    assert found["penstock_subscriptions_truncated_total", ()] == 2


def test_what_the_log_counted_is_exported() -> None:
    stats = EngineStats(
        appended_records=7, appended_bytes=700, commits=3, commit_errors=1, corrupt_blocks=2, torn_tails=4
    )
    samples = scraped(figures(engine=stats))
    for name, value in {
        "appended_records_total": 7,
        "appended_bytes_total": 700,
        "commits_total": 3,
        "commit_errors_total": 1,
        "corrupt_blocks_total": 2,
        "torn_tails_total": 4,
    }.items():
        assert samples[f"penstock_{name}", ()] == value


def test_disk_and_listener_addresses_are_exported() -> None:
    samples = scraped(figures(disk=DiskFigures(1000, 400), addresses={"flymq": "127.0.0.1:9092"}))
    assert samples["penstock_disk_size_bytes", ()] == 1000
    assert samples["penstock_disk_free_bytes", ()] == 400
    assert samples["penstock_listener_info", (("address", "127.0.0.1:9092"), ("listener", "flymq"))] == 1
    assert ("penstock_disk_free_bytes", ()) not in scraped(figures())


def test_a_histogram_is_cumulative_and_ends_at_infinity() -> None:
    stats = EngineStats()
    for records in (1, 1, 2, 100_000):
        stats.commit_records.observe(records)
    samples = scraped(figures(engine=stats))
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in samples.items()
        if name == "penstock_commit_records_bucket"
    }
    assert buckets[1.0] == 2
    assert buckets[2.0] == 3
    assert buckets[16384.0] == 3
    assert buckets[float("inf")] == 4
    assert list(buckets.values()) == sorted(buckets.values())
    assert samples["penstock_commit_records_count", ()] == 4
    assert samples["penstock_commit_records_sum", ()] == 100_004


def test_partitions_are_labelled_and_counted() -> None:
    row = PartitionFigures("orders", 2, 10, 25, 4096)
    samples = scraped(figures(topics=1, partitions=[row], partitions_left_out=5, partitions_failed=1))
    labels = (("partition", "2"), ("topic", "orders"))
    assert samples["penstock_partition_start_offset", labels] == 10
    assert samples["penstock_partition_end_offset", labels] == 25
    assert samples["penstock_partition_size_bytes", labels] == 4096
    assert samples["penstock_topics", ()] == 1
    assert samples["penstock_partitions", ()] == 6
    assert samples["penstock_partitions_failed", ()] == 1
    assert samples["penstock_partitions_left_out", ()] == 5


def test_idempotent_producers_are_counted_with_what_was_sent_again() -> None:
    samples = scraped(figures(producers=ProducerFigures(3, 4000, ProducerStats(5, 6, 7, 8))))
    assert samples["penstock_producers", ()] == 3
    assert samples["penstock_producers_answers_bytes", ()] == 4000
    assert samples["penstock_producers_registered_total", ()] == 5
    assert samples["penstock_producer_requests_repeated_total", ()] == 6
    assert samples["penstock_producer_requests_refused_total", ()] == 7
    assert samples["penstock_producers_forgotten_total", ()] == 8


def test_staged_records_are_counted_from_staging_to_publishing() -> None:
    samples = scraped(figures(staging=StagingStats(2, 300, 5, 1, 1000, 3, 4)))
    assert samples["penstock_staged_tickets", ()] == 2
    assert samples["penstock_staged_bytes", ()] == 300
    assert samples["penstock_staged_commits_total", ()] == 5
    assert samples["penstock_staged_commits_repeated_total", ()] == 1
    assert samples["penstock_staged_records_published_total", ()] == 1000
    assert samples["penstock_staged_tickets_dropped_total", (("reason", "aborted"),)] == 3
    assert samples["penstock_staged_tickets_dropped_total", (("reason", "expired"),)] == 4


def test_transactions_are_counted_by_how_they_ended() -> None:
    samples = scraped(figures(transactions=TransactionStats(1, 200, 10, 4, 3, 2)))
    assert samples["penstock_transactions_open", ()] == 1
    assert samples["penstock_transactions_open_bytes", ()] == 200
    assert samples["penstock_transactions_begun_total", ()] == 10
    ended = {labels[0][1]: n for (name, labels), n in samples.items() if name == "penstock_transactions_ended_total"}
    assert ended == {"committed": 4, "rolled_back": 3, "timed_out": 2}


def test_pipelines_are_told_apart_by_their_stages() -> None:
    stages = (
        Stage("bronze/orders", "running", 100, 0, 7, 3, 250),
        Stage("silver/orders", "running", 90, 4, -1, 2, 400, dropped=5, late=6, future=7),
    )
    info = PipelineInfo("ada", "run-1", 1, 2, "running", "", stages, name="sales", stopping=False, alive=True)
    samples = scraped(figures(pipelines=[info]))
    assert samples["penstock_pipeline_up", (("pipeline", "sales"),)] == 1
    silver = (("pipeline", "sales"), ("stage", "silver/orders"))
    assert samples["penstock_pipeline_rows_total", silver] == 90
    assert samples["penstock_pipeline_rejects_total", silver] == 4
    assert samples["penstock_pipeline_batches_total", silver] == 2
    assert [samples[f"penstock_pipeline_{name}_total", silver] for name in ("dropped", "late", "future")] == [5, 6, 7]
    assert samples["penstock_pipeline_batch_seconds", silver] == 0.4
    lags = {labels: lag for (name, labels), lag in samples.items() if name == "penstock_pipeline_lag_records"}
    assert lags == {(("pipeline", "sales"), ("stage", "bronze/orders")): 7}, "left out where it is not known"


def test_pipelines_beyond_the_bound_are_left_out_and_counted() -> None:
    stages = tuple(Stage(f"bronze/{n}", "running", 0, 0, 0, 0, 0) for n in range(200))
    infos = [
        PipelineInfo("", "r", 1, 2, "running", "", stages, name=f"p{n}", stopping=False, alive=True) for n in range(6)
    ]
    samples = scraped(figures(pipelines=infos))
    assert samples["penstock_pipelines_left_out", ()] == 2


def test_logins_and_the_audit_trail_are_counted_by_how_they_ended() -> None:
    samples = scraped(figures(logins=LoginStats(1, 2, 3), audit=AuditStats(4, 5, 6)))
    logins = {labels[0][1]: count for (name, labels), count in samples.items() if name == "penstock_logins_total"}
    events = {labels[0][1]: count for (name, labels), count in samples.items() if name == "penstock_audit_events_total"}
    assert logins == {"succeeded": 1, "failed": 2, "throttled": 3}
    assert events == {"written": 4, "folded": 5, "dropped": 6}


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "new\nline", "größe/日本"])
def test_any_topic_name_survives_the_text_form(name: str) -> None:
    samples = scraped(figures(partitions=[PartitionFigures(name, 0, 0, 1, 1)]))
    assert samples["penstock_partition_end_offset", (("partition", "0"), ("topic", name))] == 1


def test_lag_is_in_records_and_in_seconds_where_the_age_is_known() -> None:
    report = LagReport([GroupLag("orders", "billing", 0, 12, 3.5), GroupLag("orders", "audit", 0, 4, None)], 9)
    samples = scraped(figures(lags=report))
    billing = (("group", "billing"), ("partition", "0"), ("topic", "orders"))
    audit = (("group", "audit"), ("partition", "0"), ("topic", "orders"))
    assert samples["penstock_group_lag_records", billing] == 12
    assert samples["penstock_group_lag_seconds", billing] == 3.5
    assert samples["penstock_group_lag_records", audit] == 4
    assert ("penstock_group_lag_seconds", audit) not in samples
    assert samples["penstock_group_lags_left_out", ()] == 9


def test_checks_against_schemas_are_counted() -> None:
    samples = scraped(figures(validation=ValidationStats(5, 2, 1)))
    assert samples["penstock_schema_checked_records_total", ()] == 5
    assert samples["penstock_schema_refused_writes_total", ()] == 2
    assert samples["penstock_schema_worker_checks_total", ()] == 1


def test_delayed_records_and_dead_letters_are_counted() -> None:
    schedule = ScheduleStats(accepted=9, delivered=5, cancelled=1)
    schedule.lateness_s.observe(0.004)
    samples = scraped(figures(delayed_pending=3, schedule=schedule, dead_letters=DeadLetterStats(7, 2)))
    assert samples["penstock_delayed_pending", ()] == 3
    assert samples["penstock_delayed_accepted_total", ()] == 9
    assert samples["penstock_delayed_delivered_total", ()] == 5
    assert samples["penstock_delayed_cancelled_total", ()] == 1
    assert samples["penstock_delayed_lateness_seconds_bucket", (("le", "0.005"),)] == 1
    assert samples["penstock_dead_letters_sent_total", ()] == 7
    assert samples["penstock_dead_letters_replayed_total", ()] == 2


def test_listeners_are_told_apart() -> None:
    flymq = ListenerStats(
        connections_open=2, connections_total=9, bytes_in=100, bytes_out=200, protocol_errors=1, closed_idle=3
    )
    samples = scraped(figures(listeners={"flymq": flymq, "other": ListenerStats()}))
    for name, value in {
        "connections": 2,
        "connections_opened_total": 9,
        "received_bytes_total": 100,
        "sent_bytes_total": 200,
        "protocol_errors_total": 1,
    }.items():
        assert samples[f"penstock_{name}", (("listener", "flymq"),)] == value
        assert samples[f"penstock_{name}", (("listener", "other"),)] == 0
    assert samples["penstock_connections_cut_total", (("listener", "flymq"), ("reason", "idle"))] == 3


def test_requests_are_counted_by_operation_and_their_errors_by_listener() -> None:
    samples = scraped(figures(requests={"flymq": RequestFigures({"produce": 5, "fetch": 3}, 2, 1, 500, 300)}))
    assert samples["penstock_requests_total", (("listener", "flymq"), ("operation", "produce"))] == 5
    assert samples["penstock_requests_total", (("listener", "flymq"), ("operation", "fetch"))] == 3
    assert samples["penstock_request_errors_total", (("listener", "flymq"),)] == 2
    assert samples["penstock_internal_errors_total", (("listener", "flymq"),)] == 1
    assert samples["penstock_received_records_total", (("listener", "flymq"),)] == 500
    assert samples["penstock_sent_records_total", (("listener", "flymq"),)] == 300


def test_members_and_rebalances_of_groups_are_counted() -> None:
    stats = GroupStats(rebalances=5, expired_sessions=2, fenced_commits=1)
    samples = scraped(figures(group_members=3, groups=stats))
    assert samples["penstock_group_members", ()] == 3
    assert samples["penstock_group_rebalances_total", ()] == 5
    assert samples["penstock_group_sessions_expired_total", ()] == 2
    assert samples["penstock_group_commits_fenced_total", ()] == 1


def test_each_subscription_has_its_lag_and_its_deliveries() -> None:
    jobs = SubscriptionStatus("orders", "jobs", "", 0, 9, 4.5, 2, 7, 3, 0, [])
    unnamed = SubscriptionStatus("orders", "#17", "", 0, 1, None, 0, 0, 0, 0, [])
    samples = scraped(figures(subscriptions=3, subscription_statuses=[jobs, unnamed]))
    labels = (("subscription", "jobs"), ("topic", "orders"))
    names = ("lag_records", "lag_seconds", "in_flight", "redeliveries_total", "dead_letters_total")
    assert [samples[f"penstock_subscription_{name}", labels] for name in names] == [9, 4.5, 2, 7, 3]
    labels = (("subscription", "17"), ("topic", "orders"))
    assert samples["penstock_subscription_lag_records", labels] == 1
    assert ("penstock_subscription_lag_seconds", labels) not in samples
    assert samples["penstock_subscription_lags_left_out", ()] == 1


def test_subscriptions_and_their_deliveries_are_counted() -> None:
    samples = scraped(figures(subscriptions=4, in_flight=3, deliveries=SubscriptionStats(20, 17)))
    assert samples["penstock_subscriptions", ()] == 4
    assert samples["penstock_subscriptions_in_flight", ()] == 3
    assert samples["penstock_subscriptions_delivered_total", ()] == 20
    assert samples["penstock_subscriptions_acknowledged_total", ()] == 17


def test_pushed_events_are_counted_by_what_became_of_them() -> None:
    pushed = FelixStats(
        subscribers=3,
        sent_records=90,
        encoded_events=30,
        dropped_events=7,
        skipped_events=2,
        closed_subscribers=1,
        ping_timeouts=4,
    )
    samples = scraped(figures(pushes={"felix": pushed}))
    felix = ("listener", "felix")
    assert samples["penstock_push_subscribers", (felix,)] == 3
    assert samples["penstock_push_events_total", (felix, ("result", "delivered"))] == 90
    assert samples["penstock_push_events_total", (felix, ("result", "dropped"))] == 7
    assert samples["penstock_push_events_total", (felix, ("result", "oversized"))] == 0
    assert samples["penstock_push_events_total", (felix, ("result", "skipped"))] == 2
    assert samples["penstock_push_encoded_events_total", (felix,)] == 30
    assert samples["penstock_push_subscribers_closed_total", (felix,)] == 1
    assert samples["penstock_ping_timeouts_total", (felix,)] == 4


def test_the_cache_is_counted() -> None:
    samples = scraped(figures(cache=CacheFigures(2, 900, CacheStats(hits=5, misses=4, puts=6, expired=3, evicted=1))))
    assert samples["penstock_cache_entries", ()] == 2
    assert samples["penstock_cache_bytes", ()] == 900
    assert samples["penstock_cache_gets_total", (("result", "hit"),)] == 5
    assert samples["penstock_cache_gets_total", (("result", "miss"),)] == 4
    assert samples["penstock_cache_puts_total", ()] == 6
    assert samples["penstock_cache_removed_total", (("reason", "expired"),)] == 3
    assert samples["penstock_cache_removed_total", (("reason", "evicted"),)] == 1

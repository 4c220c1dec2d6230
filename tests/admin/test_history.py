"""The last hour in samples: bounded, one series for each group and subscription, and when the disk will be full."""

from __future__ import annotations

import pytest

from penstock.admin import history
from penstock.admin.history import History
from penstock.broker.access.checks import SYSTEM
from tests.admin.api.asking import Asking, asking, on_loop


@pytest.fixture
def ask(unsampled: Asking) -> Asking:
    return unsampled


def history_of(ask: Asking) -> History:
    admin = ask.broker.server.admin
    assert admin is not None
    return admin._history


def produce(ask: Asking, topic: str, count: int) -> None:
    ask.ok("POST", f"/topics/{topic}/records", {"records": [{"value": "x"}] * count})


def test_lag_is_kept_for_each_topic_of_a_group_until_it_is_deleted(ask: Asking) -> None:
    for topic in ("orders", "returns"):
        ask.ok("POST", "/topics", {"name": topic, "partitions": 2})
        ask.ok("POST", "/groups/billing/reset", {"topic": topic, "to": "earliest"})
    on_loop(ask.broker, history_of(ask).sample())
    produce(ask, "orders", 6)
    on_loop(ask.broker, history_of(ask).sample())
    ask.ok("POST", "/groups/billing/reset", {"topic": "orders", "to": "offset", "partition": 0, "offset": 2})
    ask.ok("DELETE", "/groups/billing?topic=returns")
    on_loop(ask.broker, history_of(ask).sample())
    [orders] = ask.ok("GET", "/groups/billing/lag-history")
    assert (orders["topic"], orders["lag"]) == ("orders", [0, 6, 4])
    assert orders["at_ms"] == sorted(orders["at_ms"])
    assert orders["lag_s"][0] == 0
    assert ask.ok("GET", "/groups/other/lag-history") == []


def test_a_series_that_began_later_has_the_times_of_its_own_samples(ask: Asking) -> None:
    on_loop(ask.broker, history_of(ask).sample())
    ask.ok("POST", "/topics", {"name": "orders"})
    on_loop(ask.broker, ask.broker.server.broker.subscriptions.subscribe(SYSTEM, "orders", 1, name="mailer"))
    produce(ask, "orders", 3)
    on_loop(ask.broker, history_of(ask).sample())
    samples = ask.ok("GET", "/history")
    [mailer] = ask.ok("GET", "/topics/orders/subscriptions/mailer/lag-history")
    assert (mailer["lag"], mailer["at_ms"]) == ([3], samples["at_ms"][-1:])
    described = ask.ok("GET", "/topics/orders/subscriptions/mailer")
    assert described["partitions"] == [{"partition": 0, "next_offset": 0, "high_watermark": 3}]
    assert ask("GET", "/topics/orders/subscriptions/other").code == "group_not_found"
    assert samples["appended_records"][1] > samples["appended_records"][0]


def test_samples_are_bounded(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SAMPLES_MAX", 3)
    ask.ok("POST", "/topics", {"name": "orders"})
    ask.ok("POST", "/groups/billing/reset", {"topic": "orders", "to": "earliest"})
    for _ in range(5):
        on_loop(ask.broker, history_of(ask).sample())
    assert {len(samples) for samples in ask.ok("GET", "/history").values()} == {3}
    [series] = ask.ok("GET", "/groups/billing/lag-history")
    assert [len(series[name]) for name in ("at_ms", "lag", "lag_s")] == [3, 3, 3]


def test_samples_are_taken_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "FIRST_AFTER_S", 0)
    monkeypatch.setattr(history, "SAMPLE_EVERY_S", 0.01)
    with asking() as ask:
        for _ in range(1000):
            if len(ask.ok("GET", "/history")["at_ms"]) >= 3:
                break
        else:
            pytest.fail("no samples")


@pytest.mark.parametrize(
    ("minutes", "free", "expected_s"),
    [(60, [1000, 900], 9 * 3600.0), (60, [900, 1000], None), (0.5, [1000, 900], None), (60, [-1, -1], None)],
    ids=["filling", "emptying", "too early", "no files"],
)
def test_the_disk_is_full_when_the_last_hour_continues(
    ask: Asking, minutes: float, free: list[int], expected_s: float | None
) -> None:
    kept = history_of(ask)
    kept.times_ms.extend([0, int(minutes * 60_000)])
    kept.disk_free_bytes.extend(free)
    assert kept.disk_full_in_s() == expected_s
    assert ask.ok("GET", "/status")["disk_full_in_s"] == expected_s

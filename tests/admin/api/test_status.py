"""The status of the broker over the API."""

from __future__ import annotations

from penstock.broker.access.checks import SYSTEM
from penstock.broker.pipelines import LAG_UNKNOWN, Report, Stage
from tests.admin.api.asking import asking, on_loop


def test_the_status_counts_what_is_done() -> None:
    with asking() as ask:
        before = ask.ok("GET", "/status")
        assert (before["ready"], before["readiness"]["state"], before["topics"]) == (True, "ready", 0)
        assert before["disk_free_bytes"] <= before["disk_total_bytes"]
        ask.ok("POST", "/topics", {"name": "orders", "partitions": 3})
        ask.ok("POST", "/topics/orders/records", {"records": [{"value": "x"}]})
        after = ask.ok("GET", "/status")
    assert (after["topics"], after["partitions"], after["partitions_failed"]) == (1, 3, 0)
    assert after["appended_records"] > before["appended_records"]
    assert sum(after["flush"]["counts"]) > 0
    assert {each["name"] for each in after["listeners"]} == {"flymq", "blipmq", "rustlog", "fujin", "felix"}


def test_pipelines_are_listed_as_they_reported() -> None:
    report = Report("run", 1, "running", "", [Stage("bronze", "running", 5, 1, LAG_UNKNOWN, 1, 20)])
    with asking() as ask:
        on_loop(ask.broker, ask.broker.server.broker.pipelines.report(SYSTEM, "shop", report))
        [pipeline] = ask.ok("GET", "/pipelines")
    assert (pipeline["name"], pipeline["state"], pipeline["alive"]) == ("shop", "running", True)
    assert pipeline["stages"][0]["lag"] is None

"""The status of the broker over the API."""

from __future__ import annotations

from tests.admin.api.asking import asking


def test_the_status_counts_what_is_done() -> None:
    with asking() as ask:
        before = ask.ok("GET", "/status")
        assert (before["ready"], before["readiness"]["state"], before["topics"]) == (True, "ready", 0)
        assert before["disk_free_bytes"] <= before["disk_total_bytes"]
        ask.ok("POST", "/topics", {"name": "orders", "partitions": 3})
        ask.ok("POST", "/topics/orders/records", {"records": [{"value": "x"}]})
        client = ask.broker.connect()
        client.send_many("orders", [b"one", b"two"])
        assert len(list(client.records("orders"))) == 3
        after = ask.ok("GET", "/status")
    assert (after["topics"], after["partitions"], after["partitions_failed"]) == (1, 3, 0)
    assert after["appended_records"] > before["appended_records"]
    assert sum(after["flush"]["counts"]) > 0
    listeners = {each["name"]: each for each in after["listeners"]}
    assert listeners.keys() == {"flymq", "blipmq", "rustlog", "fujin", "felix"}
    assert (listeners["flymq"]["received_records"], listeners["flymq"]["sent_records"]) == (2, 3)
    assert (listeners["felix"]["received_records"], listeners["felix"]["sent_records"]) == (0, 0)

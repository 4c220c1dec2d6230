"""Topics over the API."""

from __future__ import annotations

import pytest

from penstock.admin.api import topics
from tests.admin.api.asking import Asking


def test_a_topic_is_created_described_altered_and_deleted(ask: Asking) -> None:
    created = ask.ok("POST", "/topics", {"name": "orders", "partitions": 2, "settings": {"retention_ms": "7d"}})
    assert (created["partitions"], created["settings"]["retention_ms"]) == (2, "604800000")
    assert ask("POST", "/topics", {"name": "orders"}).code == "topic_exists"
    altered = ask.ok("PATCH", "/topics/orders", {"settings": {"compression": "zstd"}})
    assert altered["settings"]["compression"] == "zstd"
    assert ask.ok("POST", "/topics/orders/partitions", {"partitions": 3})["partitions"] == 3
    assert ask("POST", "/topics/orders/partitions", {"partitions": 1}).code == "invalid_request"
    found = ask.ok("GET", "/topics/orders")
    assert [each["partition"] for each in found["partitions"]] == [0, 1, 2]
    assert found["id"] == created["id"]
    assert ask("DELETE", "/topics/orders").status == 204
    assert ask("DELETE", "/topics/orders").code == "topic_not_found"


@pytest.mark.parametrize(
    "settings", [{"colour": "red"}, {"retention_ms": "soon"}, {"partitions": "3"}, {"segment_bytes": "1"}]
)
def test_settings_that_are_wrong_are_refused_by_name(ask: Asking, settings: dict[str, str]) -> None:
    answer = ask("POST", "/topics", {"name": "refused", "settings": settings})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert next(iter(settings)) in answer.json["detail"]


def test_topics_are_listed_in_pages_and_searched(ask: Asking) -> None:
    for name in ("page.a", "page.b", "page.c"):
        ask.ok("POST", "/topics", {"name": name})
    first = ask.ok("GET", "/topics?search=PAGE&limit=2")
    assert ([each["name"] for each in first["topics"]], first["more"]) == (["page.a", "page.b"], True)
    rest = ask.ok("GET", "/topics?search=page&after=page.b")
    assert ([each["name"] for each in rest["topics"]], rest["more"]) == (["page.c"], False)


def test_a_page_of_topics_is_bounded_in_partitions(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "PAGE_PARTITIONS_MAX", 3)
    for name in ("many.a", "many.b", "many.c"):
        ask.ok("POST", "/topics", {"name": name, "partitions": 2})
    page = ask.ok("GET", "/topics?search=many")
    assert ([each["name"] for each in page["topics"]], page["more"]) == (["many.a", "many.b"], True)


def test_a_topic_is_truncated(ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "long"})
    ask.ok("POST", "/topics/long/records", {"records": [{"value": str(number)} for number in range(5)]})
    assert ask("POST", "/topics/long/truncation", {"mode": "offset", "position": 3}).status == 204
    [partition] = ask.ok("GET", "/topics/long")["partitions"]
    assert (partition["start_offset"], partition["high_watermark"]) == (3, 5)
    assert ask("POST", "/topics/long/truncation", {"mode": "offset", "position": 9}).code == "offset_out_of_range"
    ask.ok("POST", "/topics/long/truncation", {"mode": "end"})
    [summary] = ask.ok("GET", "/topics?search=long")["topics"]
    assert (summary["records"], summary["end_offsets"]) == (0, 5)


def test_a_topic_is_bound_to_a_schema(ask: Asking) -> None:
    ask.ok("POST", "/schemas/bound", {"type": "json", "definition": '{"type": "object"}'})
    ask.ok("POST", "/topics", {"name": "bound", "schema": "bound"})
    assert ask.ok("GET", "/topics/bound")["schema"] == "bound"
    refused = ask("POST", "/topics/bound/records", {"records": [{"value": "[]"}]})
    assert (refused.status, refused.code) == (422, "validation_failed")
    ask.ok("PUT", "/topics/bound/schema", {"schema": None})
    ask.ok("POST", "/topics/bound/records", {"records": [{"value": "[]"}]})
    assert ask("PUT", "/topics/bound/schema", {"schema": "none"}).code == "schema_not_found"

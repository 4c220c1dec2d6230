"""Dead letters over the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.broker.deliveries.deadletter_entries import FailedRecord
from tests.admin.api.asking import Asking, asking, on_loop


@pytest.fixture
def ask() -> Iterator[Asking]:
    """A broker whose topic orders has three dead letters, two of them for the same reason."""
    with asking() as found:
        found.ok("POST", "/topics", {"name": "orders"})
        dead_letters = found.broker.server.broker.dead_letters
        reasons = ["too late", "too late", "too large"]
        failed = [
            FailedRecord("orders", 0, at, f"v{at}".encode(), b"k", None, reason, 3, 1000, 2000)
            for at, reason in enumerate(reasons)
        ]

        async def failing() -> None:
            await dead_letters.ensure_topics(failed)
            await dead_letters.append(failed)

        on_loop(found.broker, failing())
        yield found


def test_dead_letters_are_listed_with_their_story(ask: Asking) -> None:
    assert ask.ok("GET", "/dead-letters") == [{"topic": "orders", "dead_letter_topic": "orders.dlq", "letters": 3}]
    first, *others = ask.ok("GET", "/topics/orders/dead-letters")
    assert (first["reason"], first["attempts"], first["origin_offset"]) == ("too late", 3, 0)
    assert (first["key"]["text"], first["value"]["text"], first["failed_ms"]) == ("k", "v0", 2000)
    assert len(others) == 2
    assert len(ask.ok("GET", "/topics/orders/dead-letters?limit=1")) == 1
    assert ask.ok("GET", "/topics/none/dead-letters") == []


def test_one_dead_letter_is_replayed_once(ask: Asking) -> None:
    letter = ask.ok("GET", "/topics/orders/dead-letters")[0]
    assert ask.ok("POST", "/topics/orders/dead-letters/replay", {"id": letter["id"]}) == {"count": 1, "applied": True}
    assert ask("POST", "/topics/orders/dead-letters/replay", {"id": letter["id"]}).code == "entry_not_found"
    assert [each["value"]["text"] for each in ask.ok("GET", "/topics/orders/records")["records"]] == ["v0"]
    assert len(ask.ok("GET", "/topics/orders/dead-letters")) == 2
    assert ask("POST", "/topics/orders/dead-letters/replay", {"id": "x", "dry_run": True}).code == "invalid_request"


def test_those_that_match_are_counted_and_then_replayed(ask: Asking) -> None:
    replay = {"filter": "too late"}
    counted = ask.ok("POST", "/topics/orders/dead-letters/replay", {**replay, "dry_run": True})
    assert counted == {"count": 2, "applied": False}
    assert ask.ok("GET", "/topics/orders/records")["records"] == []
    assert ask.ok("POST", "/topics/orders/dead-letters/replay", replay) == {"count": 2, "applied": True}
    assert [each["reason"] for each in ask.ok("GET", "/topics/orders/dead-letters")] == ["too large"]


def test_conditions_are_about_the_record_and_not_about_the_reason(ask: Asking) -> None:
    def count(text: str) -> Any:
        return ask.ok("POST", "/topics/orders/dead-letters/replay", {"filter": text, "dry_run": True})["count"]

    assert [count("$value = v1"), count("$key = k and $value != v1")] == [1, 2]
    assert [count("$value contains late"), count("$key missing")] == [0, 0]


def test_dead_letters_are_purged(ask: Asking) -> None:
    assert ask("DELETE", "/topics/orders/dead-letters").status == 204
    assert ask.ok("GET", "/topics/orders/dead-letters") == []
    assert ask.ok("GET", "/dead-letters") == []


def test_a_dead_letter_is_edited_before_it_is_replayed(ask: Asking) -> None:
    ask.ok("POST", "/topics/orders/partitions", {"partitions": 4})
    first, second, third = ask.ok("GET", "/topics/orders/dead-letters")

    def replay(letter: Any, record: Any) -> Any:
        return ask.ok("POST", "/topics/orders/dead-letters/replay", {"id": letter["id"], "record": record})

    assert replay(first, {"value": "mended", "headers": [{"name": "by", "value_base64": "/w=="}]})["count"] == 1
    replay(second, {"key": "another", "value_base64": "AP8="})
    replay(third, {"value": None})
    records = {each["key"]["text"]: each for each in ask.ok("GET", "/topics/orders/records?partition=0")["records"][:1]}
    mended = records["k"]
    assert (mended["value"]["text"], mended["headers"][0]["name"]) == ("mended", "by")
    assert mended["headers"][0]["value"]["base64"] == "/w=="
    everything = ask.ok("GET", "/topics/orders/records")["records"]
    by_value = {(each["value"] or {}).get("base64"): each for each in everything if each["key"]["text"] == "another"}
    placed = ask.ok("POST", "/topics/orders/records", {"records": [{"key": "another", "value": "x"}]})
    assert by_value["AP8="]["partition"] == placed[0]["partition"]  # that of its new key
    assert [each["value"] for each in everything if each["key"]["text"] == "k"][1:] == [None]
    assert ask.ok("GET", "/topics/orders/dead-letters") == []


def test_an_edit_is_refused_and_the_letter_stays(ask: Asking) -> None:
    ask.ok("POST", "/schemas/order", {"type": "json", "definition": '{"type": "object"}'})
    ask.ok("PUT", "/topics/orders/schema", {"schema": "order"})
    letter = ask.ok("GET", "/topics/orders/dead-letters")[0]
    path = "/topics/orders/dead-letters/replay"
    for record, code in [
        ({"value": "[]"}, "validation_failed"),
        ({"value": "{}", "value_base64": "e30="}, "invalid_request"),
        ({"value_base64": "!"}, "invalid_request"),
    ]:
        assert ask("POST", path, {"id": letter["id"], "record": record}).code == code
    assert ask("POST", path, {"record": {"value": "{}"}}).code == "invalid_request"
    assert len(ask.ok("GET", "/topics/orders/dead-letters")) == 3
    assert ask.ok("POST", path, {"id": letter["id"], "record": {"value": "{}"}})["applied"] is True


def test_one_dead_letter_is_shown_in_full(ask: Asking) -> None:
    letter = ask.ok("GET", "/topics/orders/dead-letters?cell_bytes=1")[0]
    assert letter["value"] == {"size": 2, "text": "v", "base64": None, "truncated": True}
    full = ask.ok("GET", f"/topics/orders/dead-letters/{letter['id']}")
    assert (full["value"]["text"], full["reason"]) == ("v0", "too late")
    assert ask("GET", "/topics/orders/dead-letters/0-99").code == "entry_not_found"
    assert ask("GET", "/topics/none/dead-letters/0-0").code == "topic_not_found"

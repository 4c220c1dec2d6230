"""Dead letters over the API."""

from __future__ import annotations

from collections.abc import Iterator

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


def test_dead_letters_are_purged(ask: Asking) -> None:
    assert ask("DELETE", "/topics/orders/dead-letters").status == 204
    assert ask.ok("GET", "/topics/orders/dead-letters") == []
    assert ask.ok("GET", "/dead-letters") == []

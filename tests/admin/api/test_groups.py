"""Groups and subscriptions over the API: lag, resets with a preview, deletion."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.broker.access.checks import SYSTEM
from penstock.broker.groups.membership import Heartbeat, Session
from tests.admin.api.asking import Asking, asking, on_loop


@pytest.fixture
def ask() -> Iterator[Asking]:
    """A broker with a topic of two partitions, five records in each, and a group that has read two of the first."""
    with asking() as found:
        found.ok("POST", "/topics", {"name": "orders", "partitions": 2})
        for partition in (0, 1):
            records = [{"value": str(number), "partition": partition} for number in range(5)]
            found.ok("POST", "/topics/orders/records", {"records": records})
        commit(found, "billing", 2)
        yield found


def commit(ask: Asking, group: str, offset: int) -> None:
    async def committing() -> None:
        await ask.broker.server.broker.groups.commit(SYSTEM, "orders", group, 0, offset)

    on_loop(ask.broker, committing())


def test_groups_are_listed_with_their_lag(ask: Asking) -> None:
    [group] = ask.ok("GET", "/groups")["groups"]
    assert (group["name"], group["topic"], group["lag"], group["state"]) == ("billing", "orders", 8, "empty")
    assert [(each["committed"], each["lag"]) for each in group["partitions"]] == [(2, 3), (None, 5)]
    assert group["lag_s"] >= 0
    assert ask.ok("GET", "/groups/billing")[0]["lag"] == 8
    assert ask.ok("GET", "/groups?topic=none")["groups"] == []
    assert ask("GET", "/groups/none").code == "group_not_found"


@pytest.mark.parametrize(
    ("reset", "after"),
    [
        ({"to": "earliest"}, [0, 0]),
        ({"to": "latest"}, [5, 5]),
        ({"to": "offset", "partition": 0, "offset": 4}, [4]),
        ({"to": "offset", "partition": 0, "offset": 400}, [5]),
        ({"to": "shift", "shift": -1}, [1, 0]),
        ({"to": "shift", "shift": 2}, [4, 2]),
        ({"to": "time", "time_ms": 0}, [0, 0]),
    ],
)
def test_a_reset_does_what_its_preview_says(ask: Asking, reset: dict[str, object], after: list[int]) -> None:
    preview = ask.ok("POST", "/groups/billing/reset", {"topic": "orders", **reset, "preview": True})
    assert preview["applied"] is False
    assert [each["after"] for each in preview["partitions"]] == after
    assert preview["partitions"][0]["before"] == 2
    assert ask.ok("GET", "/groups/billing")[0]["lag"] == 8
    applied = ask.ok("POST", "/groups/billing/reset", {"topic": "orders", **reset})
    assert (applied["applied"], applied["partitions"]) == (True, preview["partitions"])
    committed = [each["committed"] for each in ask.ok("GET", "/groups/billing")[0]["partitions"]]
    assert committed[: len(after)] == after


@pytest.mark.parametrize(
    "reset",
    [
        {"to": "offset", "offset": 1},
        {"to": "offset", "partition": 0},
        {"to": "time"},
        {"to": "latest", "shift": 1},
        {"to": "nowhere"},
    ],
)
def test_a_reset_that_makes_no_sense_is_refused(ask: Asking, reset: dict[str, object]) -> None:
    assert ask("POST", "/groups/billing/reset", {"topic": "orders", **reset}).code == "invalid_request"


def test_a_group_with_members_is_not_reset_and_its_preview_says_so(ask: Asking) -> None:
    beat = Heartbeat("member", 0, Session("earliest", "", 30_000), {})
    on_loop(ask.broker, ask.broker.server.broker.coordinator.heartbeat(SYSTEM, "billing", ["orders"], beat))
    [member] = ask.ok("GET", "/groups/billing")[0]["members"]
    assert member["id"] == "member"
    for preview in (True, False):
        answer = ask("POST", "/groups/billing/reset", {"topic": "orders", "to": "latest", "preview": preview})
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert "member" in answer.json["detail"]


def test_a_group_is_deleted(ask: Asking) -> None:
    assert ask("DELETE", "/groups/billing?topic=orders").status == 204
    assert ask("DELETE", "/groups/billing").code == "group_not_found"


def test_subscriptions_are_listed_with_what_is_in_flight(ask: Asking) -> None:
    broker = ask.broker.server.broker
    on_loop(ask.broker, broker.subscriptions.subscribe(SYSTEM, "orders", 1, name="shipping"))
    [subscription] = ask.ok("GET", "/subscriptions")["subscriptions"]
    assert (subscription["name"], subscription["topic"], subscription["in_flight"]) == ("shipping", "orders", 0)
    path = "/topics/orders/subscriptions/shipping"
    preview = ask.ok("POST", f"{path}/reset", {"to": "shift", "shift": -2, "preview": True})
    assert preview == {
        "applied": False,
        "partitions": [
            {"partition": each, "before": 5, "after": 3, "start_offset": 0, "high_watermark": 5} for each in (0, 1)
        ],
    }
    assert ask.ok("GET", path)["lag"] == 0
    assert ask.ok("POST", f"{path}/reset", {"to": "shift", "shift": -2})["applied"] is True
    assert ask.ok("GET", path)["lag"] == 4
    assert ask("POST", f"{path}/reset", {"to": "shift"}).code == "invalid_request"
    assert ask("POST", "/topics/orders/subscriptions/none/reset", {"to": "latest"}).code == "group_not_found"
    assert ask("DELETE", "/groups/shipping").status == 204
    assert ask.ok("GET", "/subscriptions")["subscriptions"] == []

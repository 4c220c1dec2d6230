"""The pages of groups and subscriptions, and the Overview, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from penstock.broker.access.checks import SYSTEM
from penstock.broker.deliveries.subscription import Subscription
from tests.admin.api.asking import Asking, on_loop
from tests.admin.console.browsing import at, dialog_of, sample

pytestmark = pytest.mark.timeout(180)


def test_a_group_is_reset_as_its_preview_says(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "invoices"})
    ask.ok("POST", "/topics/invoices/records", {"records": [{"value": str(n)} for n in range(5)]})

    async def committing() -> None:
        await ask.broker.server.broker.groups.commit(SYSTEM, "invoices", "billing", 0, 4)

    on_loop(ask.broker, committing())
    with at(chromium, ask.broker, "/groups") as page:
        page.get_by_role("link", name="billing").click()
        page.get_by_label("Continue at").select_option("time")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("alert")).to_have_text("Give a time.")
        page.get_by_label("Continue at").select_option("shift")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("button", name="Reset the group")).to_be_visible()
        page.get_by_label("Records, negative for back").fill("-3")
        expect(page.get_by_role("button", name="Reset the group")).to_have_count(0)
        page.get_by_role("button", name="Preview").click()
        preview = page.get_by_role("table", name="What the reset would change")
        expect(preview.locator("tbody tr")).to_have_text("041-3")
        assert ask.ok("GET", "/groups/billing")[0]["lag"] == 1
        page.get_by_role("button", name="Reset the group").click()
        expect(page.get_by_role("table", name="Partitions of invoices").locator("tbody tr")).to_contain_text("0154")
    assert ask.ok("GET", "/groups/billing")[0]["lag"] == 4


def test_a_subscription_without_a_name_is_reset_as_its_preview_says_and_deleted(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "parcels"})
    subscription = on_loop(ask.broker, ask.broker.server.broker.subscriptions.subscribe(SYSTEM, "parcels", 1))
    name = f"#{subscription.id}"
    ask.ok("POST", "/topics/parcels/records", {"records": [{"value": str(n)} for n in range(5)]})
    with at(chromium, ask.broker, "/groups") as page:
        page.get_by_role("link", name=name, exact=True).click()
        page.get_by_label("Continue at").select_option("latest")
        page.get_by_role("button", name="Preview").click()
        preview = page.get_by_role("table", name="What the reset would change")
        expect(preview.locator("tbody tr")).to_have_text("005+5")
        assert subscription.lag == 5
        page.get_by_role("button", name="Reset the subscription").click()
        expect(page.get_by_role("table", name="Partitions").locator("tbody tr")).to_have_text("055")
        assert subscription.lag == 0

        stop = on_loop(ask.broker, watching(subscription))
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("alert")).to_contain_text(f"subscription {name} has readers")
        on_loop(ask.broker, stopping(stop))

        page.get_by_role("button", name="Delete", exact=True).click()
        dialog_of(page, "Delete", **{f"Type {name} to confirm": name})
        expect(page).to_have_url(re.compile("/console/groups$"))
        expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    assert subscription.deleted


async def watching(subscription: Subscription) -> Callable[[], None]:
    return subscription.watch(lambda: None)


async def stopping(stop: Callable[[], None]) -> None:
    stop()


def test_lag_is_plotted_for_groups_and_subscriptions(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "plotted"})
    ask.ok("POST", "/groups/slow/reset", {"topic": "plotted", "to": "earliest"})
    on_loop(ask.broker, ask.broker.server.broker.subscriptions.subscribe(SYSTEM, "plotted", 1, name="a/b"))
    for count in (0, 7, 3):
        if count:
            ask.ok("POST", "/topics/plotted/records", {"records": [{"value": "x"}] * count})
        sample(ask)
    ask.ok("POST", "/groups/slow/reset", {"topic": "plotted", "to": "offset", "partition": 0, "offset": 6})
    sample(ask)
    with at(chromium, ask.broker, "/groups/slow") as page:
        lag = page.get_by_role("img", name=re.compile("^Lag: 4 now, at most 10 in the last "))
        expect(lag).to_be_visible()
        assert lag.locator(".line").get_attribute("points").count(",") >= 4  # type: ignore[union-attr]
        expect(page.get_by_role("img", name=re.compile("^Oldest unread: "))).to_be_visible()
        page.get_by_role("link", name="Groups").first.click()
        page.get_by_role("link", name="a/b").click()
        expect(page).to_have_url(re.compile("/console/subscriptions/plotted/a%2Fb$"))
        expect(page.get_by_role("img", name=re.compile("^Lag: 10 now, at most 10 in the last "))).to_be_visible()
        expect(page.get_by_role("table", name="Partitions").locator("tbody tr")).to_have_text("0010")
        page.get_by_role("link", name="plotted").click()
        readers = page.get_by_role("table", name="Readers of this topic").locator("tbody tr")
        expect(readers.filter(has_text="slow")).to_contain_text("4")
        expect(readers.filter(has_text="a/b")).to_contain_text("subscription, 0 in flight10")
        client = ask.broker.connect()
        client.send_many("plotted", [b"in"] * 3)
        assert len(list(client.records("plotted"))) == 13
        page.get_by_role("link", name="Overview").click()
        for title in ("Records in", "Records out", "Bytes in", "Bytes out"):
            expect(page.get_by_role("img", name=re.compile(f"^{title}: "))).to_be_visible()
        flymq = page.get_by_role("table", name="Listeners").get_by_role("row").filter(has_text="flymq")
        counted = next(each for each in ask.ok("GET", "/status")["listeners"] if each["name"] == "flymq")
        assert counted["sent_records"] >= 13
        for column, name in ((8, "received_records"), (9, "sent_records")):
            expect(flymq.get_by_role("cell").nth(column)).to_have_text(str(counted[name]))
        page.get_by_role("link", name="Topics", exact=True).click()
        row = page.get_by_role("row").filter(has_text="plotted")
        expect(row.locator(".sparkline")).to_be_visible()

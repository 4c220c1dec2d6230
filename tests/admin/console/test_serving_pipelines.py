"""Starting and stopping pipelines from the console, in a real browser: one that fails, one that is stopped as it starts, one on Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.admin.api.asking import Asking, asking
from tests.admin.console.browsing import at, dialog_of
from tests.admin.launching import await_end, declared, process_of, silent_server, write_file
from tests.spark.jvm import FAST_MASTER, FAST_SETTINGS

pytestmark = pytest.mark.timeout(180)
SPARK_MS = 150_000
"""Spark starts, and a dozen Python processes with it; on a busy machine that takes most of a minute."""


@dataclass
class Shop:
    """A broker whose configuration declares the pipeline shop, with a file below `directory`."""

    ask: Asking
    directory: Path


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with asking(pipelines=declared(tmp_path, "shop")) as ask:
        yield Shop(ask, tmp_path)


def test_a_start_that_fails_shows_the_reason_and_the_log(chromium: Browser, shop: Shop) -> None:
    with at(chromium, shop.ask.broker, "/pipelines") as page:
        expect(page.get_by_role("row").filter(has_text="shop")).to_contain_text("not started")
        page.get_by_role("link", name="shop").click()
        page.get_by_role("button", name="Start", exact=True).click()
        dialog_of(page, "Start")
        expect(page.locator("dialog .error")).to_contain_text("cannot be read (No such file or directory)")
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)
        write_file(shop.directory, "shop", shop.ask.broker.address)
        expect(page.get_by_role("button", name="Start", exact=True)).to_be_focused()
        page.keyboard.press("Enter")  # all of it by keyboard
        page.get_by_role("dialog").get_by_role("button", name="Start").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").filter(has_text="It failed")).to_contain_text("topic not found: gone")
        expect(page.locator("dl .tag.bad")).to_have_text("failed")
        expect(page.get_by_label("Log", exact=True)).to_contain_text("error: topic not found: gone")
        expect(page.get_by_role("button", name="Start", exact=True)).to_be_focused()
        page.get_by_role("link", name="Pipelines").first.click()
        expect(page.get_by_role("row").filter(has_text="shop")).to_contain_text("failed")


def test_a_pipeline_is_stopped_while_it_starts(chromium: Browser, shop: Shop) -> None:
    with silent_server() as silent, at(chromium, shop.ask.broker, "/pipelines/shop") as page:
        write_file(shop.directory, "shop", silent.address)
        page.get_by_role("button", name="Start", exact=True).click()
        dialog_of(page, "Start")
        expect(page.get_by_role("status").filter(has_text="It is starting")).to_be_visible()
        expect(
            page.get_by_text(re.compile(f"^{process_of(shop.ask.broker, 'shop').pid} on the broker"))
        ).to_be_visible()
        silent.await_connection()
        page.get_by_role("button", name="Stop", exact=True).click()
        dialog_of(page, "Stop", **{"Type shop to confirm": "shop"})
        await_end(shop.ask.broker, "shop")
        expect(page.locator("dl .tag")).to_have_text("stopped")
        expect(page.get_by_role("button", name="Start", exact=True)).to_be_enabled()


@pytest.mark.jvm
@pytest.mark.timeout(400)
def test_a_pipeline_is_started_seen_to_read_and_stopped(chromium: Browser, shop: Shop) -> None:
    ask = shop.ask
    config = ", ".join(f'"{name}" = "{value}"' for name, value in FAST_SETTINGS.items())
    spark = f'{{ master = "{FAST_MASTER}", config = {{ {config} }} }}'
    write_file(shop.directory, "shop", ask.broker.address, "orders", trigger_ms='"1s"', spark=spark)
    with ask.broker.connect() as client:
        client.create_topic("orders", 2)
        client.send_many("orders", [b"%d" % number for number in range(120)])
        with at(chromium, ask.broker, "/pipelines/shop") as page:
            page.get_by_role("button", name="Start", exact=True).click()
            dialog_of(page, "Start")
            expect(page.get_by_role("status").filter(has_text="It is starting")).to_be_visible()
            row = page.get_by_role("table", name="Stages").locator("tbody tr")
            expect(row).to_contain_text("bronze/orders", timeout=SPARK_MS)
            expect(row.locator("td").nth(2)).to_have_text("120", timeout=SPARK_MS)
            expect(page.locator("dl .tag.good")).to_have_text("running")
            client.send_many("orders", [b"%d" % number for number in range(30)])
            expect(row.locator("td").nth(2)).to_have_text("150", timeout=SPARK_MS)
            assert ask("POST", "/pipelines/shop/start").code == "pipeline_running"
            page.get_by_role("button", name="Stop", exact=True).click()
            dialog_of(page, "Stop", **{"Type shop to confirm": "shop"})
            expect(page.locator("dl .tag")).to_have_text("stopped", timeout=SPARK_MS)
            await_end(ask.broker, "shop")
    [pipeline] = ask.ok("GET", "/pipelines")
    assert (pipeline["state"], pipeline["process"]["exit_code"], pipeline["stages"][0]["rows"]) == ("stopped", 0, 150)
    assert (shop.directory / "tables" / "bronze" / "orders" / "_delta_log").is_dir()

"""The console in a real browser: clicks and typing, on a real broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from penstock.admin.console.serving import HEADERS, PREFIX, Console
from penstock.broker.access.checks import SYSTEM
from penstock.broker.deliveries.deadletter_entries import FailedRecord
from penstock.testing.broker import RunningBroker
from scripts.screenshots import browser
from tests.admin.api.asking import LOGIN_REQUIRED, Asking, asking, new_key, on_loop

WAIT_MS = 30_000
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def ask() -> Iterator[Asking]:
    with asking() as found:
        yield found


@contextmanager
def at(chromium: Browser, running: RunningBroker, path: str = "", **options: object) -> Iterator[Page]:
    """A page of the console, whose scripts raise nothing and whose policy is never violated."""
    context: BrowserContext = chromium.new_context(**options)  # type: ignore[arg-type]
    context.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console", lambda message: wrong.append(message.text) if "Content Security Policy" in message.text else None
    )
    page.goto(f"http://{running.addresses['admin']}{PREFIX}{path}")
    yield page
    context.close()
    assert wrong == []


def dialog_of(page: Page, action: str, **values: str) -> None:
    """Fill in the open dialog and confirm it."""
    dialog = page.locator("dialog[open]")
    for label, value in values.items():
        dialog.get_by_label(label.replace("_", " "), exact=True).fill(value)
    dialog.get_by_role("button", name=action, exact=True).click()


def test_a_topic_is_created_written_to_browsed_followed_and_deleted(chromium: Browser, ask: Asking) -> None:
    with at(chromium, ask.broker, "/topics") as page:
        page.get_by_role("button", name="Create topic").click()
        dialog_of(page, "Create", Name="site/hall", Partitions="2", Retention="soon")
        expect(page.locator("dialog .error")).to_contain_text("retention_ms")  # refused in the broker's words
        dialog_of(page, "Create", Retention="7d")
        expect(page.get_by_role("heading", name="site/hall")).to_be_visible()
        expect(page).to_have_url(re.compile("/console/topics/site%2Fhall$"))

        page.get_by_role("button", name="Browse records").click()
        page.get_by_role("button", name="Produce").click()
        dialog_of(
            page, "Produce", Key="k1", Value='{"n": 12345678901234567890, "x": "<b>bold</b>"}', Headers="source=test"
        )
        row = page.get_by_role("row").filter(has_text="k1")
        row.click()
        panel = page.get_by_label("One record")
        expect(panel).to_contain_text("12345678901234567890")  # as it was written, whatever JavaScript makes of it
        expect(panel).to_contain_text("<b>bold</b>")
        expect(panel).to_contain_text("source")
        assert page.locator("#main b").count() == 0

        page.get_by_role("button", name="Live tail").click()
        expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")
        ask.ok("POST", "/topics/site%2Fhall/records", {"records": [{"value": "arrived later"}]})
        expect(page.get_by_role("cell", name="arrived later")).to_be_visible()
        page.get_by_role("button", name="Pause").click()

        page.get_by_label("Filter").fill("later")
        page.get_by_role("button", name="Go").click()
        expect(page.get_by_role("status").filter(has_text="looked at")).to_contain_text("1 records shown, 2 looked at")
        expect(page).to_have_url(re.compile("filter=later"))
        page.reload()  # the address is the view
        expect(page.get_by_role("cell", name="arrived later")).to_be_visible()
        expect(page.get_by_role("cell", name="k1")).to_have_count(0)

        page.goto(
            f"http://{ask.broker.addresses['admin']}{PREFIX}/topics/site%2Fhall/records?at=offset&partition=0&offset=99"
        )
        expect(page.locator(".empty")).to_be_visible()
        page.get_by_label("Begin at").first.select_option("time")
        page.get_by_label("Time", exact=True).fill("2020-01-01T00:00")
        page.get_by_label("Partition").select_option("")
        page.get_by_role("button", name="Go").click()
        expect(page.get_by_role("row")).to_have_count(3)

        page.get_by_role("link", name="site/hall").click()
        page.get_by_role("button", name="Delete", exact=True).click()
        dialog_of(page, "Delete the topic", **{"Type site/hall to confirm": "hall"})
        expect(page.locator("dialog .error")).to_contain_text("That is not site/hall")
        dialog_of(page, "Delete the topic", **{"Type site/hall to confirm": "site/hall"})
        expect(page.locator(".toast").last).to_contain_text("deleted")
    assert ask("GET", "/topics/site%2Fhall").status == 404


def test_a_group_is_reset_as_its_preview_says(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "invoices"})
    ask.ok("POST", "/topics/invoices/records", {"records": [{"value": str(n)} for n in range(5)]})

    async def committing() -> None:
        await ask.broker.server.broker.commit_offset(SYSTEM, "invoices", "billing", 0, 4)

    on_loop(ask.broker, committing())
    with at(chromium, ask.broker, "/groups") as page:
        page.get_by_role("link", name="billing").click()
        page.get_by_label("Continue at").select_option("shift")
        page.get_by_label("Records, negative for back").fill("-3")
        page.get_by_role("button", name="Preview").click()
        preview = page.get_by_role("table", name="What the reset would change")
        expect(preview.locator("tbody tr")).to_have_text("041-3")
        assert ask.ok("GET", "/groups/billing")[0]["lag"] == 1
        page.get_by_role("button", name="Reset the group").click()
        expect(page.get_by_role("table", name="Partitions of invoices").locator("tbody tr")).to_contain_text("0154")
    assert ask.ok("GET", "/groups/billing")[0]["lag"] == 4


def test_dead_letters_are_inspected_and_replayed(chromium: Browser, ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "returns"})
    dead_letters = ask.broker.server.broker.dead_letters
    failed = [
        FailedRecord("returns", 0, n, b"v%d" % n, None, None, reason, 3, 1, 2)
        for n, reason in enumerate(["too late", "too late", "too large"])
    ]

    async def failing() -> None:
        await dead_letters.ensure_topics(failed)
        await dead_letters.append(failed)

    on_loop(ask.broker, failing())
    with at(chromium, ask.broker, "/dead-letters") as page:
        page.get_by_role("link", name="returns", exact=True).click()
        expect(page.get_by_text("too late: 2")).to_be_visible()
        page.get_by_role("row").filter(has_text="too large").click()
        expect(page.get_by_label("One dead letter")).to_contain_text("v2")
        page.get_by_label("One dead letter").get_by_role("button", name="Replay").click()
        expect(page.get_by_role("row").filter(has_text="too large")).to_have_count(0)
        page.get_by_label("Replay those that match").fill("too late")
        page.get_by_role("button", name="Dry run").click()
        expect(page.get_by_text("2 dead letters would be written")).to_be_visible()
        page.get_by_role("button", name="Replay them").click()
        expect(page.get_by_text("Every dead letter was replayed.")).to_be_visible()
    values = {each["value"]["text"] for each in ask.ok("GET", "/topics/returns/records")["records"]}
    assert values == {"v0", "v1", "v2"}


def test_an_incompatible_schema_is_refused_and_the_reason_is_shown(chromium: Browser, ask: Asking) -> None:
    with at(chromium, ask.broker, "/schemas") as page:
        page.get_by_role("button", name="Register schema").click()
        dialog_of(
            page, "Register", Name="order", Definition='{"type": "object", "properties": {"id": {"type": "integer"}}}'
        )
        draft = page.get_by_label("Draft of the next version")
        draft.fill('{"type": "object", "properties": {"id": {"type": "string"}}}')
        page.get_by_role("button", name="Check").click()
        expect(page.get_by_text("It cannot be the next version:")).to_be_visible()
        expect(page.locator("li")).to_contain_text("id")
        page.get_by_role("button", name="Register", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("id")
        draft.fill('{"type": "object", "properties": {"id": {"type": ["integer", "null"]}}}')
        page.get_by_role("button", name="Register", exact=True).click()
        expect(page.locator(".diff .add").first).to_be_visible()
        page.get_by_label("A value to try").fill('{"id": "x"}')
        page.get_by_role("button", name="Try").click()
        expect(page.locator("ul.bad li")).to_contain_text("x")
    assert [each["version"] for each in ask.ok("GET", "/schemas/order")] == [1, 2]


def test_a_login_shows_rights_and_ends_with_its_key(chromium: Browser) -> None:
    with asking(listeners=LOGIN_REQUIRED) as ask:
        key = new_key(ask.broker, "mine", "admin")
        with at(chromium, ask.broker, "/access/keys") as page:
            page.get_by_label("User", exact=True).fill("nobody")
            page.get_by_label("Password").fill("guess")
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("alert")).to_contain_text("invalid username or password")
            page.get_by_label("or an API key").fill(key)
            page.get_by_role("button", name="Log in").click()
            expect(page.locator(".who")).to_have_text("key:mine")

            page.get_by_role("link", name="rights", exact=True).click()
            expect(page.get_by_role("table", name="Rights").get_by_role("row").nth(1)).to_contain_text("role admin")
            page.get_by_role("link", name="API keys").click()
            page.get_by_role("button", name="Create key").click()
            dialog_of(page, "Create", Name="<img src=x>", Roles="consumer")
            expect(page.get_by_label("API key", exact=True)).to_contain_text("pk_")
            dialog_of(page, "Done")
            expect(page.get_by_role("cell", name="<img src=x>")).to_be_visible()
            page.get_by_role("row", name=re.compile("^mine ")).get_by_role("button", name="Revoke").click()
            dialog_of(page, "Revoke", **{"Type mine to confirm": "mine"})
            expect(page.get_by_role("heading", name="Log in")).to_be_visible()
            expect(page.get_by_role("alert")).to_contain_text("logged out")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_reached_by_keyboard_on_a_narrow_screen(chromium: Browser, ask: Asking, scheme: str) -> None:
    pages = {"o": "Overview", "t": "Topics", "g": "Groups and subscriptions", "d": "Dead letters", "s": "Schemas"}
    pages |= {"a": "Access", "c": "Configuration"}
    size = {"width": 400, "height": 800}
    with at(chromium, ask.broker, "/topics", color_scheme=scheme, viewport=size) as page:
        expect(page.get_by_role("heading", name="Topics")).to_be_visible()
        for key, heading in pages.items():
            page.keyboard.press("g")
            page.keyboard.press(key)
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]  # only tables scroll sideways
        page.keyboard.press("/")
        page.keyboard.type("flymq")
        expect(page).to_have_url(re.compile("search=flymq"))
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(16, 21, 28)") is (scheme == "dark")


def test_its_files_have_a_strict_policy_and_are_not_sent_twice(ask: Asking) -> None:
    page = Asking(ask.broker, prefix=PREFIX, opened=ask.opened)
    first = page("GET", "/assets/app.js")
    assert first.headers["content-type"].startswith("text/javascript")
    assert "script-src 'self'" in first.headers["content-security-policy"]
    assert "unsafe" not in HEADERS["content-security-policy"]
    assert page("GET", "/assets/app.js", if_none_match=first.headers["etag"]).status == 304
    assert page("GET", "/topics/x").headers["content-type"].startswith("text/html")
    assert page("GET", "/assets/none.js").status == 404
    assert page("GET", "/assets/../__init__.py").status == 404
    assert page("POST", "").status == 405
    assert page("GET", "x").status == 404


def test_no_file_of_it_refers_to_another_place_or_makes_markup_of_data() -> None:
    for name, response in Console()._files.items():
        text = bytes(response.body).decode()
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            name
        )

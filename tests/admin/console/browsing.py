"""Pages of the console in a real browser, and what their tests do to them and to the broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, Page, expect

from penstock.admin.console.serving import PREFIX
from penstock.testing.broker import RunningBroker
from tests.admin.api.asking import Asking, on_loop

WAIT_MS = 30_000


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
    try:
        yield page
    finally:
        context.close()
    assert wrong == []


def dialog_of(page: Page, action: str, **values: str) -> None:
    """Fill in the open dialog and confirm it."""
    dialog = page.locator("dialog[open]")
    for label, value in values.items():
        dialog.get_by_label(label.replace("_", " "), exact=True).fill(value)
    dialog.get_by_role("button", name=action, exact=True).click()


def sample(ask: Asking) -> None:
    admin = ask.broker.server.admin
    assert admin is not None
    on_loop(ask.broker, admin._history.sample())

"""Pictures of every page of the console, wide and narrow, light and dark: `make screenshots` writes them to build/screenshots.

A real browser (Debian's Chromium, through Playwright) shows a real broker with some data in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from penstock.broker.access.checks import SYSTEM
from penstock.broker.deliveries.deadletter_entries import FailedRecord
from penstock.clients.loop_thread import LoopThread
from penstock.clock import SystemClock
from penstock.log.api import TopicConfig
from penstock.testing.broker import RunningBroker

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
"""The first of them that is installed shows the pages; `scripts/install-browser` installs one."""
FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TARGET: Final = Path("build/screenshots")
SIZES: Final = {"wide": (1360, 850), "narrow": (400, 800)}
PAGES: Final = {
    "overview": "",
    "topics": "/topics",
    "topic": "/topics/orders",
    "records": "/topics/orders/records",
    "groups": "/groups",
    "group": "/groups/billing",
    "dead-letters": "/dead-letters/orders",
    "schemas": "/schemas",
    "schema": "/schemas/order",
    "users": "/access/users",
    "audit": "/access/audit",
    "rights": "/access/rights?principal=ann&topic=orders",
    "configuration": "/configuration",
}
PROPERTIES: Final = {"order": {"type": "integer"}, "customer": {"type": "string"}}
FIRST: Final = {"type": "object", "properties": PROPERTIES}
SECOND: Final = {"type": "object", "properties": {**PROPERTIES, "total": {"type": "number"}}}


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            raise SystemExit("there is no Chromium: install it with scripts/install-browser")
        found = playwright.chromium.launch(executable_path=program, args=FLAGS, headless=True)
        try:
            yield found
        finally:
            found.close()


def fill(running: RunningBroker) -> None:
    """Put topics, records, groups, dead letters, schemas and users into a broker."""
    broker, thread = running.server.broker, running._thread  # noqa: SLF001  what clients cannot do, the broker does itself
    assert isinstance(thread, LoopThread)

    async def filling() -> None:
        for name, partitions in (("orders", 3), ("payments", 1), ("site/hall/sensors", 4), ("audit.events", 1)):
            await broker.create_topic(SYSTEM, name, TopicConfig(partitions=partitions))
        for definition in (FIRST, SECOND):
            await broker.schemas.register(SYSTEM, "order", "json", json.dumps(definition), "none")
        await broker.schemas.bind(SYSTEM, "orders", "order")
        await broker.users.create_user(SYSTEM, "ann", "secret", ["consumer"])
        await broker.users.create_user(SYSTEM, "root", "secret", ["admin"])
        await broker.acls.set_acl(SYSTEM, "orders", users=["ann:write"])
        failed = [
            FailedRecord("orders", 0, at, b'{"order": %d}' % at, b"k", None, reason, 3, 1, 1_790_000_000_000)
            for at, reason in enumerate(["no such customer", "no such customer", "total is negative"])
        ]
        await broker.dead_letters.ensure_topics(failed)
        await broker.dead_letters.append(failed)
        await broker.commit_offset(SYSTEM, "orders", "billing", 0, 40)
        await broker.commit_offset(SYSTEM, "orders", "shipping", 1, 7)
        await broker.subscriptions.subscribe(SYSTEM, "orders", 1, name="mailer")

    thread.run(filling())
    client = running.connect()
    for n in range(300):
        order = {"order": n, "customer": f"customer-{n % 17}", "total": n * 1.25}
        client.send("orders", json.dumps(order).encode(), key=f"customer-{n % 17}".encode())
    client.send_many("site/hall/sensors", [bytes([n, 255, 0]) for n in range(64)])


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    with RunningBroker(admin=True, clock=SystemClock()) as running, browser() as found:
        fill(running)
        address = f"http://{running.addresses['admin']}/console"
        for scheme in ("light", "dark"):
            for size, (width, height) in SIZES.items():
                context = found.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
                page = context.new_page()
                for name, path in PAGES.items():
                    page.goto(address + path)
                    page.wait_for_selector("h1")
                    page.screenshot(path=TARGET / f"{name}-{size}-{scheme}.png")
                context.close()
    print(f"{len(PAGES) * 4} pictures in {TARGET}")


if __name__ == "__main__":
    main()

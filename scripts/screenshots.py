"""Pictures of every page of the console, wide and narrow, light and dark: `make screenshots` writes them to build/screenshots.

A real browser (Debian's Chromium, through Playwright) shows a real broker with some data in it.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from penstock.broker.access.checks import SYSTEM
from penstock.broker.deliveries.deadletter_entries import FailedRecord
from penstock.broker.pipelines import Report, Stage
from penstock.clients.loop_thread import LoopThread
from penstock.clock import SystemClock
from penstock.log.api import TopicConfig
from penstock.server import Server
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
    "record": "/topics/orders/records?filter=%24.total+%3E+100+and+%24header.source+%3D+web&record=0:90",
    "groups": "/groups",
    "group": "/groups/billing",
    "subscription": "/subscriptions/orders/mailer",
    "dead-letter-topics": "/dead-letters",
    "dead-letters": "/dead-letters/orders",
    "schemas": "/schemas",
    "schema": "/schemas/order",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/shop",
    "pipeline-failed": "/pipelines/returns",
    "inspector": "/inspector",
    "users": "/access/users",
    "roles": "/access/roles",
    "acls": "/access/acls",
    "keys": "/access/keys",
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
            await broker.topics.create(SYSTEM, name, TopicConfig(partitions=partitions))
        for definition in (FIRST, SECOND):
            await broker.schemas.register(SYSTEM, "order", "json", json.dumps(definition), "none")
        await broker.schemas.bind(SYSTEM, "orders", "order")
        await broker.users.create_user(SYSTEM, "ann", "secret", ["consumer"])
        await broker.users.create_user(SYSTEM, "root", "secret", ["admin"])
        await broker.api_keys.create(SYSTEM, "worker", ["producer"])
        await broker.acls.set_acl(SYSTEM, "orders", users=["ann:write"])
        failed = [
            FailedRecord("orders", 0, at, b'{"order": %d}' % at, b"k", None, reason, 3, 1, 1_790_000_000_000)
            for at, reason in enumerate(["no such customer", "no such customer", "total is negative"])
        ]
        await broker.dead_letters.ensure_topics(failed)
        await broker.dead_letters.append(failed)
        await broker.groups.commit(SYSTEM, "orders", "billing", 0, 40)
        await broker.groups.commit(SYSTEM, "orders", "shipping", 1, 7)
        await broker.subscriptions.subscribe(SYSTEM, "orders", 1, name="mailer")
        stages = [
            Stage("bronze.orders", "running", 48_211, 0, 260, 92, 840),
            Stage("silver.orders", "running", 48_190, 21, 281, 92, 910),
        ]
        now_ms = SystemClock().now_ms()
        await broker.pipelines.report(SYSTEM, "shop", Report("8f2c", now_ms - 1_800_000, "running", "", stages))

    thread.run(filling())
    thread.run(fail_to_start(running.server, "returns"))
    client = running.connect()
    for n in range(300):
        order = {"order": n, "customer": f"customer-{n % 17}", "total": n * 1.25}
        headers = [("source", b"web" if n % 3 else b"shop")]
        client.send("orders", json.dumps(order).encode(), key=f"customer-{n % 17}".encode(), headers=headers)
    client.send_many("site/hall/sensors", [bytes([n, 255, 0]) for n in range(64)])
    thread.run(invent_history(running))


async def fail_to_start(server: Server, pipeline: str) -> None:
    """Start a pipeline whose topic is not there, and wait until it has found out."""
    launcher = server.launcher
    declared = launcher.declared[pipeline]
    declared.file.write_text(
        f'name = "{pipeline}"\nbootstrap = "{server.addresses["flymq"]}"\ntopics = ["{pipeline}"]\ndirectory = "tables"\n[bronze]\n'
    )
    await launcher.start(pipeline)
    await launcher._watching[pipeline]  # noqa: SLF001


async def invent_history(running: RunningBroker) -> None:
    """Give the plots half an hour to show."""
    admin = running.server.admin
    assert admin is not None
    history = admin._history  # noqa: SLF001
    await history.sample()
    running.server.engine.stats.corrupt_blocks += 1  # so that something is wrong
    await history.sample()
    now_ms = SystemClock().now_ms()
    for column in (
        history.appended_records,
        history.appended_bytes,
        history.received_bytes,
        history.sent_bytes,
        history.received_records,
        history.sent_records,
    ):
        column[:] = array("q", (int(column[-1] + n * 9000 + 60_000 * math.sin(n / 9)) for n in range(180)))
    history.times_ms[:] = array("q", (now_ms - (179 - n) * 10_000 for n in range(180)))
    history.disk_free_bytes[:] = array("q", (history.disk_free_bytes[-1] + (179 - n) * 400_000 for n in range(180)))
    for series in history._lags.values():  # noqa: SLF001
        series.records[:] = array("q", (int(series.records[-1] * (1 + math.sin(n / 38)) / 2) for n in range(180)))
        series.seconds[:] = array(
            "d", (math.nan if 60 < n < 80 else records / 3 for n, records in enumerate(series.records))
        )
    for stage in history._stages.values():  # noqa: SLF001
        stage.rows[:] = array(
            "q",
            (stage.rows[-1] - (179 - n) * 260 + int(900 * (math.sin(n / 7) - math.sin(179 / 7))) for n in range(180)),
        )
        stage.rejects[:] = array("q", (n // 9 for n in range(180)))
        stage.lag[:] = array("q", (int(140 * (1 + math.sin(n / 7))) for n in range(180)))
        stage.batch_ms[:] = array("q", (800 + int(140 * math.sin(n / 5)) for n in range(180)))


def inspect(running: RunningBroker) -> str:
    """Have the protocol inspector note what a client says; returns the inspection."""
    admin, thread = running.server.admin, running._thread  # noqa: SLF001
    assert admin is not None
    assert isinstance(thread, LoopThread)

    async def inspecting() -> str:
        return admin._inspector.start("flymq", "", payloads=True).id  # noqa: SLF001

    inspection: str = thread.run(inspecting())
    with running.connect() as client:
        client.send("payments", b'{"payment": 1}', key=b"customer-1")
        client.fetch("orders", 0, 0, max_records=5)
    return inspection


def declared_in(directory: Path) -> list[dict[str, str]]:
    """Pipelines that the broker may start."""
    return [{"name": name, "file": str(directory / f"{name}.toml")} for name in ("nightly", "returns", "shop")]


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        RunningBroker(admin=True, clock=SystemClock(), pipelines=declared_in(Path(directory))) as running,
        browser() as found,
    ):
        fill(running)
        pages = {**PAGES, "inspection": f"/inspector/{inspect(running)}"}
        address = f"http://{running.addresses['admin']}/console"
        for scheme in ("light", "dark"):
            for size, (width, height) in SIZES.items():
                context = found.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
                page = context.new_page()
                for name, path in pages.items():
                    page.goto(address + path)
                    page.wait_for_selector("h1")
                    page.screenshot(path=TARGET / f"{name}-{size}-{scheme}.png")
                page.goto(f"{address}/topics/orders/records")
                page.get_by_role("button", name="Add condition").click()
                page.screenshot(path=TARGET / f"condition-{size}-{scheme}.png")
                page.goto(f"{address}/pipelines/nightly")
                page.get_by_role("button", name="Start").click()
                page.screenshot(path=TARGET / f"pipeline-start-{size}-{scheme}.png")
                context.close()
    print(f"{(len(pages) + 2) * 4} pictures in {TARGET}")


if __name__ == "__main__":
    main()

"""What the demo is made of. The demo itself checks, when it runs, that what comes out is what went in."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import jsonschema_rs
from rich.console import Console
from rich.text import Text

from penstock.testing.process import BrokerProcess
from scripts.demo import plot
from scripts.demo.__main__ import leave_open
from scripts.demo.narration import Narrator
from scripts.demo.orders import CHANNELS, MALFORMED_EVERY, OPENS, SCHEMA, WITH_REFUNDS, orders_of, window_of
from scripts.demo.speakers import configuration


def parsed(value: bytes) -> object:
    try:
        return json.loads(value.decode())
    except ValueError:
        return None


def test_a_channel_sends_the_same_in_every_run() -> None:
    assert orders_of("web", 500, 0) == orders_of("web", 500, 0)
    assert orders_of("web", 500, 0).records != orders_of("till", 500, 0).records


def test_orders_follow_the_schema_and_what_is_malformed_does_not() -> None:
    sent = orders_of("web", 10 * MALFORMED_EVERY, 7_000)
    fits = jsonschema_rs.validator_for(SCHEMA)
    good = [each for each in (parsed(value) for _, value in sent.records) if fits.is_valid(each)]
    assert (len(good), len(sent.records) - len(good)) == (sent.orders, sent.malformed)
    assert sent.malformed == 10
    takes_refunds = jsonschema_rs.validator_for(WITH_REFUNDS)
    taken = sum(takes_refunds.is_valid(each) for each in (parsed(value) for _, value in sent.records))
    assert (taken, sent.refunds) == (sent.orders + 2, 2)
    identities = [each["order_id"] for each in good if isinstance(each, dict)]
    assert len(set(identities)) == len(identities)
    assert min(identities) == 7_000


def test_the_expected_turnover_is_that_of_the_orders_in_each_window() -> None:
    sent = orders_of("web", 1_000, 0)
    assert min(sent.turnover_by_window) >= OPENS
    assert window_of(datetime(2026, 3, 2, 8, 59, 59, 1, UTC)) == datetime(2026, 3, 2, 8, 30, tzinfo=UTC)
    amounts = [
        order["amount"]
        for order in (parsed(value) for _, value in sent.records)
        if isinstance(order, dict) and jsonschema_rs.is_valid(SCHEMA, order)
    ]
    assert round(sum(sent.turnover_by_window.values()), 2) == round(sum(amounts), 2)


def test_the_plot_has_a_bar_for_each_window_and_a_colour_for_each_channel(tmp_path: Path) -> None:
    turnover = {
        OPENS: {"web": 100.0, "till": 100.0},
        OPENS.replace(hour=9): {"web": 50.0},
    }
    console = Console(file=io.StringIO(), width=100)
    plot.in_terminal(console, turnover, ["web", "till"])
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert lines[0] == "  08:00 " + "█" * 30 + "▒" * 30 + " 200", "without colours, shades"
    assert lines[1] == "  09:00 " + "█" * 15 + " 50"
    assert lines[2].split() == ["█", "web", "▒", "till"]
    coloured = Console(width=100, color_system="truecolor", force_terminal=True)
    with coloured.capture() as captured:
        plot.in_terminal(coloured, turnover, ["web", "till"])
    assert Text.from_ansi(captured.get()).plain.startswith("  08:00 " + "█" * 60 + " 200")
    plot.as_png(tmp_path / "plot.png", turnover, ["web", "till"], "title")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert len(plot.COLOURS) == len(plot.SHADES) >= len(CHANNELS)


def test_tables_set_numbers_to_the_right() -> None:
    narrator = Narrator(Console(file=io.StringIO(), width=60))
    narrator.step("A title", "what it shows")
    narrator.table("t", ("name", "count"), [("a", 1), ("b", 20_000)])
    assert isinstance(narrator.console.file, io.StringIO)
    text = narrator.console.file.getvalue()
    assert "1. A title" in text
    assert "│ a    │      1 │" in text
    assert "│ b    │ 20,000 │" in text


def test_the_console_stays_open_on_the_data_until_enter(tmp_path: Path) -> None:
    said = io.StringIO()
    with BrokerProcess(tmp_path / "data", config=configuration()) as broker:
        with broker.connect() as client:
            client.send("orders", b"one")
        address = broker.addresses["admin"]
        answers: list[bytes] = []

        def look() -> None:
            for path in ("/console", "/api/v1/topics"):
                with urlopen(f"http://{address}{path}", timeout=30) as answer:
                    answers.append(answer.read())

        leave_open(Narrator(Console(file=said, width=200)), address, look)
    assert f"http://{address}/console" in said.getvalue()
    assert b"Penstock" in answers[0]
    assert b'"orders"' in answers[1]

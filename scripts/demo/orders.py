"""The orders of a shop on one day, the same in every run: five channels, a rush at noon, and now and then a record that is no order.

Each channel has its own way into the broker, and so its own protocol. What is broken is broken in ways that real senders find: cut off,
in the wrong encoding, with a field missing or of another type.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

CHANNELS: Final = {"FlyMQ": "web", "BlipMQ": "kiosk", "RustLog": "partner", "Fujin": "app", "Felix": "till"}
"""Which part of the shop speaks which protocol."""
ITEMS: Final = {"anvil": 189.0, "bellows": 64.5, "crucible": 38.0, "hammer": 27.5, "tongs": 19.9}
OPENS: Final = datetime(2026, 3, 2, 8, tzinfo=UTC)
MORNING_HOURS: Final = 6
EVENING: Final = OPENS.replace(hour=18)
EVENING_ORDERS: Final = 20
"""Of each channel: few, but much later than all the others, so that nobody waits for a morning's order any more."""
WINDOW_MINUTES: Final = 30
MALFORMED_EVERY: Final = 200
WAYS_TO_BREAK: Final = 5
REFUND: Final = 3
"""Which of them is no error of the sender, as the shop finds out later."""

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "order_id": {"type": "integer"},
        "placed_at": {"type": "string", "format": "date-time"},
        "channel": {"type": "string"},
        "customer": {"type": "string"},
        "item": {"enum": sorted(ITEMS)},
        "quantity": {"type": "integer", "minimum": 1},
        "amount": {"type": "number", "exclusiveMinimum": 0},
    },
    "required": ["order_id", "placed_at", "channel", "customer", "item", "quantity", "amount"],
}
"""What an order looks like, as a JSON schema."""
WITH_REFUNDS: Final = {**SCHEMA, "properties": {**SCHEMA["properties"], "amount": {"type": "number"}}}  # type: ignore[dict-item]
"""The same with refunds: amounts may be negative."""


@dataclass(slots=True)
class Sent:
    """What one channel sends, and what must come out of it at the far end."""

    records: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Key and value."""
    orders: int = 0
    malformed: int = 0
    refunds: int = 0
    """Among the malformed: orders of a negative amount."""
    turnover_by_window: dict[datetime, float] = field(default_factory=dict)


def orders_of(channel: str, count: int, first_id: int) -> Sent:
    """Orders of one channel in the order in which they were placed, with the malformed among them."""
    chance = random.Random(f"{channel} {first_id}")  # noqa: S311 - sample data
    sent = Sent()
    moments = sorted(_morning(chance) for _ in range(count - EVENING_ORDERS))
    moments += [EVENING + timedelta(seconds=10 * number) for number in range(EVENING_ORDERS)]
    for number, at in enumerate(moments):
        customer = f"customer-{chance.randrange(400)}"
        item = chance.choices(list(ITEMS), weights=(1, 2, 4, 8, 6))[0]
        quantity = chance.choices((1, 2, 3, 10), weights=(70, 20, 8, 2))[0]
        order = {
            "order_id": first_id + number,
            "placed_at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "channel": channel,
            "customer": customer,
            "item": item,
            "quantity": quantity,
            "amount": round(ITEMS[item] * quantity, 2),
        }
        if number % MALFORMED_EVERY == MALFORMED_EVERY - 1:
            sent.records.append((customer.encode(), _broken(order, sent.malformed)))
            sent.refunds += sent.malformed % WAYS_TO_BREAK == REFUND
            sent.malformed += 1
            continue
        sent.records.append((customer.encode(), json.dumps(order).encode()))
        sent.orders += 1
        window = window_of(at)
        sent.turnover_by_window[window] = sent.turnover_by_window.get(window, 0.0) + float(str(order["amount"]))
    return sent


def window_of(at: datetime) -> datetime:
    """The start of the window that a moment is in."""
    return at - timedelta(minutes=at.minute % WINDOW_MINUTES, seconds=at.second, microseconds=at.microsecond)


def _morning(chance: random.Random) -> datetime:
    """When somebody orders: any time, but mostly around noon."""
    while True:
        hours = chance.uniform(0, MORNING_HOURS)
        if chance.random() < 0.25 + 0.75 * math.exp(-(((hours - 4) / 1.1) ** 2)):
            return OPENS + timedelta(milliseconds=int(hours * 3_600_000))


def _broken(order: dict[str, object], number: int) -> bytes:
    """An order that a sender spoilt, in one way after another."""
    whole = json.dumps(order).encode()
    match number % WAYS_TO_BREAK:
        case 0:
            return whole[: len(whole) // 2]
        case 1:
            return json.dumps({name: each for name, each in order.items() if name != "amount"}).encode()
        case 2:
            return json.dumps({**order, "quantity": "two"}).encode()
        case 3:  # REFUND
            return json.dumps({**order, "amount": -1}).encode()
        case _:
            return b"\xff\xfe" + whole

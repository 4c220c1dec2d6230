"""A day of orders comes in over every protocol, the broker is killed, and nothing is missing."""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.testing.process import BrokerProcess
from scripts.demo.narration import DemoFailed, Narrator
from scripts.demo.orders import CHANNELS, Sent, orders_of
from scripts.demo.speakers import Speaker

TOPIC = "orders"
PARTITIONS = 2
ORDERS_PER_CHANNEL = 8_000
CHUNK = 1_000


def send_orders(narrator: Narrator, speakers: Sequence[Speaker]) -> dict[str, Sent]:
    """By channel, what was sent. The channels take turns, as they would if the day passed more slowly."""
    everything = {
        CHANNELS[speaker.name]: orders_of(CHANNELS[speaker.name], ORDERS_PER_CHANNEL, number * ORDERS_PER_CHANNEL)
        for number, speaker in enumerate(speakers)
    }
    seconds = dict.fromkeys(everything, 0.0)
    for first in range(0, ORDERS_PER_CHANNEL, CHUNK):
        for speaker in speakers:
            channel = CHANNELS[speaker.name]
            at = time.monotonic()
            speaker.send(TOPIC, everything[channel].records[first : first + CHUNK])
            seconds[channel] += time.monotonic() - at
    narrator.table(
        "what each channel sent; every record was on disk before it was acknowledged",
        ("channel", "protocol", "manner", "orders", "malformed", "records/s"),
        (
            (
                channel,
                speaker.name,
                speaker.manner,
                sent.orders,
                sent.malformed,
                int(len(sent.records) / seconds[channel]),
            )
            for speaker, (channel, sent) in zip(speakers, everything.items(), strict=True)
        ),
    )
    return everything


def crash(narrator: Narrator, broker: BrokerProcess, everything: dict[str, Sent]) -> None:
    expected = sum(len(sent.records) for sent in everything.values())
    broker.kill9()
    at = time.monotonic()
    broker.start()
    seconds = time.monotonic() - at
    with broker.connect() as client:
        held = sum(each.next_offset - each.start_offset for each in client.describe_topic(TOPIC).partitions)
    if held != expected:
        raise DemoFailed(f"{expected} orders were acknowledged before the crash, {held} are there after it")
    narrator.say(
        f"killed with kill -9, back after {seconds:.2f} s, [green]all {held:,} acknowledged records are there[/green]"
    )

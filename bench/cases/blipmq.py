"""BlipMQ: clients that wait for every message as deployed ones do, and publish-to-delivery over pairs that pipeline.

A lost message fails the run. QoS 1 is committed (fdatasync) before it is delivered, and its acknowledgements are on disk before the
next batch is asked for.
"""

from __future__ import annotations

from bench.blipmq_load import poll_and_acknowledge, publish_to_delivery
from bench.processes import HOST, Broker
from bench.rounds import Plan, Row, alone

KEY = "bench-key"
PAIRS = (1, 4, 16)
PAYLOAD_BYTES = 256
DEPLOYED_AIM = 5_000


def measure(plan: Plan) -> list[Row]:
    # A reader that asks for 256 at a time may take longer than the 100 ms after which deliveries are repeated by default.
    config = f'[listeners.blipmq]\nbind = "{HOST}:0"\napi_keys = ["{KEY}"]\n[subscriptions]\nbackoff_ms = "1m"\n'
    with Broker(plan.directory / "blipmq", config=config) as broker:
        return [_deployed(plan, broker), *(_pairs(plan, broker, qos, pairs) for qos in (0, 1) for pairs in PAIRS)]


def _deployed(plan: Plan, broker: Broker) -> Row:
    messages = plan.volume(10_000, 1_000)
    plan.say(f"blipmq: {messages} messages polled and acknowledged one by one")
    seconds = [
        poll_and_acknowledge(HOST, broker.ports["blipmq"], KEY, messages, PAYLOAD_BYTES) for _ in range(plan.rounds)
    ]
    return alone(
        "blipmq poll and ack",
        f"fsync, QoS 1, {PAYLOAD_BYTES} B, 1 connection, ACK and POLL as two writes",
        "messages/s",
        [messages / each for each in seconds],
        at_least=DEPLOYED_AIM,
    )


def _pairs(plan: Plan, broker: Broker, qos: int, pairs: int) -> Row:
    messages = plan.volume(100_000, 4_000)
    plan.say(f"blipmq: QoS {qos}, {pairs} pairs")
    seconds = [
        publish_to_delivery(
            HOST, broker.ports["blipmq"], KEY, pairs=pairs, messages=messages, qos=qos, payload_bytes=PAYLOAD_BYTES
        )
        for _ in range(plan.rounds)
    ]
    rates = [messages // pairs * pairs / each for each in seconds]
    return alone("blipmq delivery", f"fsync, QoS {qos}, {PAYLOAD_BYTES} B, {pairs} pairs", "messages/s", rates)

"""BlipMQ: clients that wait for every message as deployed ones do, and publish-to-delivery over pairs that pipeline.

A lost message fails the run. QoS 1 is committed (fdatasync) before it is delivered, and its acknowledgements are on disk before the
next batch is asked for.
"""

from __future__ import annotations

from bench.blipmq_load import POLLS_IN_FLIGHT, Pairs, poll_and_acknowledge, publish_to_delivery
from bench.processes import HOST, Broker
from bench.rounds import Measured, Plan, Row, alone, cpu_note, cpu_us_each

KEY = "bench-key"
# A reader that asks for 256 at a time may take longer than the 100 ms after which deliveries are repeated by default.
CONFIG = f'[listeners.blipmq]\nbind = "{HOST}:0"\napi_keys = ["{KEY}"]\n[subscriptions]\nbackoff_ms = "1m"\n'
PAIRS = (1, 4, 16)
PAYLOAD_BYTES = 256
DEPLOYED_AIM = 5_000
DELIVERY_AIMS = {(0, 1): 120_000.0, (1, 1): 90_000.0}
"""By QoS and pairs, messages a second."""


def measure(plan: Plan) -> list[Row]:
    with Broker(plan.directory / "blipmq", config=CONFIG) as broker:
        return [_deployed(plan, broker), *(_pairs(plan, broker, qos, pairs) for qos in (0, 1) for pairs in PAIRS)]


def _deployed(plan: Plan, broker: Broker) -> Row:
    messages = plan.volume(10_000, 1_000)
    plan.say(f"blipmq: {messages} messages polled and acknowledged one by one")
    results = [
        poll_and_acknowledge(
            HOST,
            broker.ports["blipmq"],
            KEY,
            messages=messages,
            payload_bytes=PAYLOAD_BYTES,
            server_pid=broker.pid,
        )
        for _ in range(plan.rounds)
    ]
    return alone(
        "blipmq poll and ack",
        f"fsync, QoS 1, {PAYLOAD_BYTES} B, 1 connection, ACK and POLL as two writes",
        "messages/s",
        [result.rate for result in results],
        at_least=DEPLOYED_AIM,
        note=cpu_note(results),
        cpu_us=cpu_us_each(results),
    )


def _pairs(plan: Plan, broker: Broker, qos: int, pairs: int) -> Row:
    results = deliver(plan, broker, qos, pairs)
    return alone(
        "blipmq delivery",
        f"fsync, QoS {qos}, {PAYLOAD_BYTES} B, {pairs} pair{'s' * (pairs > 1)}",
        "messages/s",
        [result.rate for result in results],
        at_least=DELIVERY_AIMS.get((qos, pairs)),
        note=cpu_note(results),
        cpu_us=cpu_us_each(results),
    )


def deliver(
    plan: Plan, broker: Broker, qos: int, pairs: int, polls_in_flight: int = POLLS_IN_FLIGHT, prefix: str = "pair"
) -> list[Measured]:
    """All rounds from the first publish to the last delivery."""
    messages = plan.volume(100_000, 4_000) if polls_in_flight > 1 else plan.volume(10_000, 1_000)
    plan.say(f"blipmq: QoS {qos}, {pairs} pairs, {polls_in_flight} polls in flight")
    job = Pairs(
        host=HOST,
        port=broker.ports["blipmq"],
        key=KEY,
        server_pid=broker.pid,
        pairs=pairs,
        messages=messages // pairs,
        qos=qos,
        payload_bytes=PAYLOAD_BYTES,
        polls_in_flight=polls_in_flight,
        prefix=prefix,
    )
    return [publish_to_delivery(job) for _ in range(plan.rounds)]

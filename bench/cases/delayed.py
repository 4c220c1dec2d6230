"""A million delayed records that wait: what they take in memory, how late others are beside them, and what a restart makes of them."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator

from bench.dialects import RecordLost
from bench.processes import HOST, Broker
from bench.rounds import Plan, Row, alone
from penstock.protocols.flymq.codec.frames import ReplyDecoder
from penstock.protocols.flymq.operations.operation import decode_reply, encode_request
from penstock.protocols.flymq.operations.records import ProduceDelayed
from penstock.protocols.flymq.sync import FlyMQClient

PENDING = 1_000_000
PENDING_QUICK = 20_000
SAMPLE = 2_000
SAMPLE_MS = (1_000, 6_000)
BURST = 100_000
BURST_QUICK = 5_000
BURST_AHEAD_S = 30
PAYLOAD_BYTES = 100
IN_FLIGHT = 2_000
HOUR_MS = 3_600_000
LATENESS_MS_MAX = 50.0
BYTES_EACH_MAX = 100.0


def measure(plan: Plan) -> list[Row]:
    pending = plan.volume(PENDING, PENDING_QUICK)
    burst = plan.volume(BURST, BURST_QUICK)
    chance = random.Random(1)
    with Broker(plan.directory / "delayed") as broker:
        _schedule(broker, "warm-up", [10 * HOUR_MS] * IN_FLIGHT)
        before_bytes = broker.resident_bytes()
        plan.say(f"delayed: {pending:,} records due in 1 to 20 hours")
        seconds, _ = _schedule(broker, "waiting", [chance.randint(HOUR_MS, 20 * HOUR_MS) for _ in range(pending)])
        grown_bytes = broker.resident_bytes() - before_bytes
        plan.say(f"delayed: {SAMPLE:,} records due in the next seconds")
        late_ms = _lateness(broker, "sample", [chance.randint(*SAMPLE_MS) for _ in range(SAMPLE)])
        plan.say(f"delayed: {burst:,} records due at once")
        at_ms = time.time_ns() // 1_000_000 + BURST_AHEAD_S * 1000
        burst_late_ms = _lateness(broker, "burst", [at_ms] * burst, absolute=True)
        plan.say("delayed: kill -9")
        broker.kill()
        restart_s = broker.start()
        held = broker.metrics()["penstock_delayed_pending"]
        if held != pending + IN_FLIGHT:
            raise RecordLost(f"{held:,.0f} of {pending + IN_FLIGHT:,} delayed records wait after the restart")
    setting = f"{pending:,} pending, {PAYLOAD_BYTES} bytes, fsync"
    late_ms.sort()
    return [
        alone(
            "delayed: memory",
            setting,
            "bytes each",
            [grown_bytes / pending],
            below=None if plan.quick else BYTES_EACH_MAX,
            note=f"resident memory grew by {grown_bytes / 1e6:.0f} MB, with what the log keeps for readers",
        ),
        alone("delayed: accepting", f"{setting}, {IN_FLIGHT:,} in flight", "records/s", [pending / seconds]),
        alone(
            "delayed: lateness, 99th percentile",
            f"{SAMPLE:,} records over {(SAMPLE_MS[1] - SAMPLE_MS[0]) / 1000:.0f} s beside {pending:,} pending",
            "ms",
            [late_ms[len(late_ms) * 99 // 100]],
            below=LATENESS_MS_MAX,
            note=f"until a reader has it; median {late_ms[len(late_ms) // 2]:.1f} ms, latest {late_ms[-1]:.1f} ms",
        ),
        alone(
            "delayed: all at once",
            f"{burst:,} records due within a few milliseconds, beside {pending:,} pending",
            "records/s",
            [burst / max(burst_late_ms) * 1000],
            note=f"the last one is readable after {max(burst_late_ms):,.0f} ms",
        ),
        alone("delayed: start after kill -9", setting, "s", [restart_s]),
    ]


def _schedule(broker: Broker, topic: str, delays_ms: list[int], *, absolute: bool = False) -> tuple[float, list[int]]:
    """Send records with these delays, or for these times, so many in flight; returns how long it took and when each is due."""
    with broker.client() as client:
        client.create_topic(topic)
    dues_ms: list[int] = []
    decoder = ReplyDecoder()
    started = time.perf_counter()
    with socket.create_connection((HOST, broker.port)) as connection:
        for frames, count in _chunks(topic, delays_ms, absolute=absolute):
            connection.sendall(frames)
            wanted = len(dues_ms) + count
            while len(dues_ms) < wanted:
                for reply in decoder.feed(connection.recv(1 << 18)):
                    if getattr(reply, "opcode", None) != ProduceDelayed.opcode:
                        raise RecordLost(f"a delayed record was refused: {reply}")
                    dues_ms.append(decode_reply(ProduceDelayed, reply.payload).timestamp_ms)  # type: ignore[union-attr]
    return time.perf_counter() - started, dues_ms


def _chunks(topic: str, delays_ms: list[int], *, absolute: bool) -> Iterator[tuple[bytes, int]]:
    for first in range(0, len(delays_ms), IN_FLIGHT):
        now_ms = time.time_ns() // 1_000_000 if absolute else 0
        part = [delay_ms - now_ms for delay_ms in delays_ms[first : first + IN_FLIGHT]]
        frames = [
            encode_request(ProduceDelayed(topic, (b"%d" % (first + row)).ljust(PAYLOAD_BYTES, b" "), delay_ms))
            for row, delay_ms in enumerate(part)
        ]
        yield b"".join(frames), len(part)


def _lateness(broker: Broker, topic: str, delays_ms: list[int], *, absolute: bool = False) -> list[float]:
    """How long after its time each record could be read, in milliseconds."""
    _, dues_ms = _schedule(broker, topic, delays_ms, absolute=absolute)
    late_ms: dict[int, float] = {}
    with broker.client() as client:
        offset = 0
        while len(late_ms) < len(delays_ms):
            offset = _read(client, topic, offset, dues_ms, late_ms)
    if min(late_ms.values()) < 0:
        raise RecordLost("a delayed record was readable before its time")
    return list(late_ms.values())


def _read(client: FlyMQClient, topic: str, offset: int, dues_ms: list[int], late_ms: dict[int, float]) -> int:
    result = client.fetch(topic, 0, offset, 10_000)
    now_ms = time.time_ns() / 1e6
    for record in result.records:
        row = int(record.value or b"")
        if row in late_ms:
            raise RecordLost(f"delayed record {row} came twice")
        late_ms[row] = now_ms - dues_ms[row]
    if not result.records:
        time.sleep(0.001)
    return result.next_offset

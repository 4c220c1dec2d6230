"""What a flood of wrong passwords does to everybody else: latency of single writes, while nobody guesses and while many do."""

from __future__ import annotations

import socket
import time

from bench.flood import Flood, FloodResult
from bench.processes import HOST, Broker, finish_program, start_program
from bench.rounds import Plan, Row, compared, interleave
from penstock.protocols.flymq.codec.record_layouts import encode_produce
from penstock.protocols.flymq.operations.access import Auth
from penstock.protocols.flymq.operations.operation import encode_request

CONNECTIONS = 1_000
"""Each with ten guesses in flight: ten thousand wrong passwords at any time."""
BESIDE_S = 2.0
"""By how much the flood outlasts the measurement."""
RATIO_MAX = 2.0
REPLY_BYTES_MAX = 1 << 16
# Beside the flush, which is the same either way, what is left is what the flood takes of the processors.
DURABILITIES = ("fsync", "none")


def measure(plan: Plan) -> list[Row]:
    rows = []
    flags = ("--dev", "--set", "listeners.flymq.auth=required")
    with Broker(plan.directory / "logins", *flags) as broker:
        for durability in DURABILITIES:
            plan.say(f"logins: p99 of writes, {durability}, {CONNECTIONS} connections that guess")
            rows.append(_compare(plan, broker, durability))
    return rows


def _compare(plan: Plan, broker: Broker, durability: str) -> Row:
    floods: list[FloodResult] = []

    def calm(number: int) -> float:
        _wait_until_checked(broker, f"nobody-{durability}-{number}", f"127.250.250.{number + 1}")
        return _p99_ms(broker, durability, plan.seconds)

    def flooded(number: int) -> float:
        flood = start_program("bench.flood", Flood(HOST, broker.port, CONNECTIONS, plan.seconds + BESIDE_S))
        assert flood.stdout is not None
        flood.stdout.readline()
        p99_ms = _p99_ms(broker, durability, plan.seconds)
        if flood.poll() is not None:
            raise RuntimeError("the flood was over before the measurement")
        floods.append(finish_program(flood, FloodResult))
        return p99_ms

    results = interleave({"flooded": flooded, "calm": calm}, plan.rounds)
    rate = sum(flood.answered for flood in floods) / sum(flood.seconds for flood in floods)
    most = max(flood.attempts for flood in floods)
    return compared(
        "wrong passwords",
        f"{durability}, p99 of single writes during up to {most:,} wrong logins",
        "ms",
        results["flooded"],
        "the same without them",
        results["calm"],
        ratio_max=RATIO_MAX,
        note=f"{rate:,.0f} logins/s were answered",
    )


def _wait_until_checked(broker: Broker, user: str, address: str) -> None:
    """Passwords that wait are checked in turn, also those of connections that are gone: one that is looked at has waited for them."""
    reply = b""
    while b"invalid username or password" not in reply:
        with socket.create_connection((HOST, broker.port), source_address=(address, 0)) as connection:
            reply = _ask(connection, encode_request(Auth(user, "nothing")))


def _p99_ms(broker: Broker, durability: str, seconds: float) -> float:
    topic = f"logins-{durability}"
    latencies = []
    with socket.create_connection((HOST, broker.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _ask(connection, encode_request(Auth("admin", "admin")))
        with broker.client("admin:admin@") as client:
            client.create_topic(topic, durability=durability)
        request = encode_produce(topic, b"x" * 100)
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            _ask(connection, request)
            latencies.append(time.perf_counter() - began)
    latencies.sort()
    return latencies[len(latencies) * 99 // 100] * 1000


def _ask(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    reply = connection.recv(REPLY_BYTES_MAX)
    if not reply:
        raise ConnectionError("the broker closed the connection")
    return reply

"""The bare QUIC transport: one stream of one connection, in both directions, at three sizes of datagrams."""

from __future__ import annotations

import signal

from bench.processes import end, run_program, start_program
from bench.quic_load import QuicJob, QuicResult
from bench.quic_sink import SinkJob
from bench.rounds import Plan, Row, alone, cpu_note, cpu_us_each

AIMS = {1_200: 58.0, 1_452: 92.0, 8_900: 160.0}
"""MB/s by datagram size: what the library reached with its own endpoint on both sides when it was chosen (the first at 1280 bytes)."""


def measure(plan: Plan) -> list[Row]:
    rows = []
    for datagram_bytes, aim in AIMS.items():
        for to_server in (True, False):
            direction = "to the server" if to_server else "from the server"
            plan.say(f"quic: {direction} in datagrams of {datagram_bytes} bytes")
            results = [_round(plan, datagram_bytes, to_server) for _ in range(plan.rounds)]
            rows.append(_row(f"{direction}, datagrams of {datagram_bytes:,} B, 1 stream", results, aim))
    return rows


def _round(plan: Plan, datagram_bytes: int, to_server: bool) -> QuicResult:
    server = start_program("bench.quic_sink", SinkJob(str(plan.directory), datagram_bytes))
    try:
        assert server.stdout is not None
        port, certificate = server.stdout.readline().decode().split()
        job = QuicJob(
            port=int(port),
            certificate=certificate,
            datagram_bytes=datagram_bytes,
            to_server=to_server,
            megabytes=plan.volume(400, 40),
            server_pid=server.pid,
        )
        return run_program("bench.quic_load", job, QuicResult)
    finally:
        end(server, signal.SIGTERM)


def _row(setting: str, results: list[QuicResult], aim: float) -> Row:
    rates = [result.rate for result in results]
    cpu_us = cpu_us_each(results)
    return alone("quic transport", setting, "MB/s", rates, at_least=aim, note=cpu_note(results), cpu_us=cpu_us)

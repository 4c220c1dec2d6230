"""What a connection costs that does nothing."""

from __future__ import annotations

import contextlib
import resource
import socket

from bench.processes import HOST, Broker
from bench.rounds import Plan, Row, alone
from penstock.protocols.flymq.operations.operation import encode_request
from penstock.protocols.flymq.operations.topics import ListTopics

CONNECTIONS = 5_000
CONNECTIONS_QUICK = 500
DESCRIPTORS_BESIDE = 200


def measure(plan: Plan) -> list[Row]:
    connections = plan.volume(CONNECTIONS, CONNECTIONS_QUICK)
    plan.say(f"idle: {connections} connections")
    _allow_descriptors(connections + DESCRIPTORS_BESIDE)
    with Broker(plan.directory / "idle") as broker, contextlib.ExitStack() as opened:
        _talk(opened, broker.port, DESCRIPTORS_BESIDE // 2)  # warm-up: buffers that are made once
        before = broker.resident_bytes()
        _talk(opened, broker.port, connections)
        per_connection = (broker.resident_bytes() - before) / connections / 1000
    return [
        alone(
            "idle connections",
            f"{connections:,} connections, each after one request",
            "KB each",
            [per_connection],
            below=20.0,
            note="resident memory of the broker; the kernel's own is not in it",
        )
    ]


def _talk(opened: contextlib.ExitStack, port: int, count: int) -> None:
    """Open connections, have each answered once, and leave them open."""
    for _ in range(count):
        connection = opened.enter_context(socket.create_connection((HOST, port)))
        connection.sendall(encode_request(ListTopics()))
        if not connection.recv(4096):
            raise ConnectionError("the broker closed an idle connection")


def _allow_descriptors(wanted: int) -> None:
    """For this process and the broker it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))

"""A flood of wrong passwords from many addresses. Run by the benchmarks as `python -m bench.flood`.

A job comes as JSON on standard input; a line on standard output says when the flood runs, and one at its end what became of it. Every
connection comes from an address of its own (all of 127/8 is this machine) and guesses at users of its own, so that neither the delay by
user nor the one by address spares the broker the work.
"""

from __future__ import annotations

import select
import socket
import time

import msgspec

from bench.jobs import answer_job
from penstock.protocols.flymq.operations.access import Auth
from penstock.protocols.flymq.operations.operation import encode_request

GUESSES_PER_ADDRESS = 10
"""As many as an address has before it is made to wait; all of them are in flight at once."""
REPLY_HEAD_BYTES = 8


class Flood(msgspec.Struct, frozen=True):
    host: str
    port: int
    connections: int
    """At any time; each guesses as often as an address may before it has to wait, then another takes its place."""
    seconds: float


class FloodResult(msgspec.Struct, frozen=True):
    attempts: int
    answered: int
    seconds: float


class _Guesser:
    """One connection, and how many answers it still waits for."""

    def __init__(self, job: Flood, number: int) -> None:
        address = f"127.{1 + number // 62_500 % 250}.{1 + number // 250 % 250}.{1 + number % 250}"
        self.socket = socket.create_connection((job.host, job.port), source_address=(address, 0))
        self.socket.setblocking(False)
        self.owed = GUESSES_PER_ADDRESS
        self._buffer = b""
        guesses = [
            encode_request(Auth(f"user-{number}-{guess}", f"guess {guess}")) for guess in range(GUESSES_PER_ADDRESS)
        ]
        self.socket.sendall(b"".join(guesses))

    def receive(self) -> int:
        """How many answers came."""
        self._buffer += self.socket.recv(1 << 16)
        came = 0
        while len(self._buffer) >= REPLY_HEAD_BYTES:
            end = REPLY_HEAD_BYTES + int.from_bytes(self._buffer[4:8])
            if len(self._buffer) < end:
                break
            self._buffer = self._buffer[end:]
            came += 1
        self.owed -= came
        return came


def run(job: Flood) -> FloodResult:
    poll = select.epoll()
    guessers: dict[int, _Guesser] = {}
    opened = answered = 0

    def open_one() -> None:
        nonlocal opened
        guesser = _Guesser(job, opened)
        opened += 1
        guessers[guesser.socket.fileno()] = guesser
        poll.register(guesser.socket, select.EPOLLIN)

    for _ in range(job.connections):
        open_one()
    print("running", flush=True)
    started = time.perf_counter()
    while time.perf_counter() - started < job.seconds:
        for descriptor, _ in poll.poll(0.1):
            guesser = guessers[descriptor]
            answered += guesser.receive()
            if not guesser.owed:
                poll.unregister(descriptor)
                guesser.socket.close()
                del guessers[descriptor]
                open_one()
    for guesser in guessers.values():
        guesser.socket.close()
    return FloodResult(opened * GUESSES_PER_ADDRESS, answered, time.perf_counter() - started)


if __name__ == "__main__":
    answer_job(Flood, run)

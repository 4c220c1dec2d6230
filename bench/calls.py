"""`python -m bench.calls`: how long the path of one request is, in calls and files of the broker.

Counted are the broker's own functions ("Python"), with those that are generated for its dataclasses and named tuples, and the functions in
C that they call ("C"): those of the interpreter, of `struct`, of sockets and of the QUIC library, but neither classes nor the event loop's
own methods. Counts are of one request on a warm connection, with flushes so quick that the event loop makes them; the smallest of several,
as a timer that fires in between only adds. What the client does is not counted. `--trace NAME` prints the calls of one request, in order.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, Self
from unittest import mock

from rich.console import Console
from rich.table import Table

import penstock
from penstock.clock import SystemClock
from penstock.testing import RunningBroker

ROUNDS: Final = 15
ROUNDS_MAX: Final = 50
"""The most times that a request is recorded: the records it takes are limited."""
QUIET_S: Final = 0.06
"""After the reply: acknowledgements of QUIC belong to the request, too. Shorter than what the broker does ten times a second."""
PACKAGE: Final = f"{Path(penstock.__file__).parent}/"
NOT_COUNTED: Final = ("net/deadlines.py", "background.py", "admin/", "testing/")
"""What runs by the clock and not for a request, and the disk of tests, which stands before the real one."""
GENERATED: Final = "<string>"
"""The file of functions that dataclasses and named tuples generate: they count for the function that calls them."""
LOOP_THREAD: Final = "penstock broker"
CLIENT_THREADS: Final = "penstock client"
PASS: Final = ("quic/connection.py", "Connection.run")
TIMER: Final = ("quic/core.py", "QuicCore.handle_timer")
"""A pass because a timer is due is not one for the request: on a busy machine one may be before the reply is there."""
PATIENT: Final = {"backoff_ms": 3_600_000}
"""What is polled is acknowledged before it is due again, however busy the machine is."""
VALUE: Final = b"x" * 100

Requests = dict[str, Callable[[], object]]


class Call(NamedTuple):
    thread: str
    file: str
    """Of the broker; where a function in C was called from."""
    function: str
    in_c: bool


class Recorder:
    """Notes the calls in threads that are started while it is entered: those of a broker, if that is started then."""

    def __init__(self) -> None:
        self._on = False
        self._calls: list[Call] = []

    def __enter__(self) -> Self:
        threading.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)

    def record(self, request: Callable[[], object]) -> list[Call]:
        self._calls, self._on = [], True
        request()
        time.sleep(QUIET_S)
        self._on = False
        return self._calls

    def _profile(self, frame: FrameType, event: str, function: Any) -> None:
        if not self._on or event not in ("call", "c_call"):
            return
        code = frame.f_code
        if code.co_filename == GENERATED and frame.f_back is not None:
            code = frame.f_back.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        file = code.co_filename[len(PACKAGE) :]
        thread = threading.current_thread().name
        if not file.startswith(NOT_COUNTED) and not thread.startswith(CLIENT_THREADS):
            in_c = event == "c_call"
            self._calls.append(Call(thread, file, function.__qualname__ if in_c else code.co_qualname, in_c))


class Counts(NamedTuple):
    """How many calls one request takes."""

    python: int
    """Of the broker's functions, on the event loop."""
    c: int
    """Of functions in C by these."""
    elsewhere: int
    """Both, in other threads."""
    files: int
    passes: int
    """Through a QUIC connection."""

    @property
    def on_the_loop(self) -> int:
        return self.python + self.c


def counts_of(calls: Sequence[Call]) -> Counts:
    on_loop = [call for call in calls if call.thread == LOOP_THREAD]
    in_c = sum(call.in_c for call in on_loop)
    functions = [(call.file, call.function) for call in on_loop]
    return Counts(
        python=len(on_loop) - in_c,
        c=in_c,
        elsewhere=len(calls) - len(on_loop),
        files=len({call.file for call in calls}),
        passes=functions.count(PASS) - functions.count(TIMER),
    )


def shortest(recorder: Recorder, request: Callable[[], object], rounds: int = ROUNDS) -> list[Call]:
    """Return the calls of a request in the round with the fewest, after one that is not counted."""
    request()
    return min((recorder.record(request) for _ in range(rounds)), key=len)


@contextmanager
def requests() -> Iterator[tuple[Recorder, Requests]]:
    """One request of each kind, on connections that are open and warm."""
    recorder = Recorder()
    # What is counted must not depend on the disk: a flush takes no time, and none is measured.
    with (
        mock.patch.object(os, "fdatasync", os.fstat),
        recorder,
        RunningBroker(clock=SystemClock(), subscriptions=PATIENT) as broker,
    ):
        broker.disk.now_s = lambda: 0.0
        with (
            penstock.connect(f"{broker.url}?idempotent=false") as flymq,
            broker.connect() as idempotent,
            penstock.connect(broker.blipmq_url) as blipmq,
            penstock.connect(broker.rustlog_url) as rustlog,
            penstock.connect(broker.fujin_url) as fujin,
            penstock.connect(broker.felix_url) as felix,
        ):
            flymq.create_topic("orders", 1)
            rustlog.send_many("orders", [VALUE] * 1000)  # one batch, and so one block
            queue = blipmq.subscribe("orders")
            felix.cache_put("key", VALUE)
            blipmq.send_many("orders", [VALUE] * 2 * ROUNDS_MAX)

            def poll_and_ack() -> None:
                blipmq.ack(queue, *(message.tag for message in blipmq.poll(queue)))

            yield (
                recorder,
                {
                    "FlyMQ PRODUCE": lambda: flymq.send("orders", VALUE),
                    "FlyMQ PRODUCE_ONCE": lambda: idempotent.send("orders", VALUE),
                    "FlyMQ FETCH of 1": lambda: flymq.fetch("orders", 0, 0, max_records=1),
                    "FlyMQ FETCH of 1,000": lambda: flymq.fetch("orders", 0, 0, max_records=1000),
                    "BlipMQ PUBLISH": lambda: blipmq.send("orders", VALUE),
                    "BlipMQ POLL and ACK": poll_and_ack,
                    "RustLog PRODUCE": lambda: rustlog.send("orders", VALUE),
                    "Fujin WRITE": lambda: fujin.send("orders", VALUE),
                    "Felix publish": lambda: felix.send("orders", VALUE),
                    "Felix cache get": lambda: felix.cache_get("key"),
                },
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.calls", description=__doc__.splitlines()[0])
    parser.add_argument("--trace", metavar="NAME", help="print the calls of the request with this name, in order")
    trace = parser.parse_args().trace
    console = Console()
    table = Table(
        "request",
        "Python",
        "C",
        "together",
        "in other threads",
        "files",
        "passes through QUIC",
        title="Calls on the event loop for one request",
    )
    with requests() as (recorder, by_name):
        if trace is not None and trace not in by_name:
            parser.error(f"no such request: {trace}; there are {', '.join(by_name)}")
        for name, request in by_name.items():
            if trace in (None, name):
                calls = shortest(recorder, request)
                counts = counts_of(calls)
                figures = (counts.python, counts.c, counts.on_the_loop, counts.elsewhere, counts.files)
                table.add_row(name, *map(str, figures), str(counts.passes or ""))
                for call in calls if trace else ():
                    what = f"    in C: {call.function}" if call.in_c else call.function
                    console.print(f"{call.thread:24} {call.file:44} {what}", highlight=False, soft_wrap=True)
    console.print(table)


if __name__ == "__main__":
    main()

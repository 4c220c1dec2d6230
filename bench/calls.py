"""`python -m bench.calls`: how long the path of one request is, in Python calls and files of the broker.

Counts are of one request on a warm connection, all threads of the broker together, the smallest of several: a timer that fires in between
only adds. What the client does is not counted. `--trace NAME` prints the calls of one request, in order.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

import penstock
from penstock.clock import SystemClock
from penstock.testing import RunningBroker

ROUNDS: Final = 15
QUIET_S: Final = 0.06
"""After the reply: acknowledgements of QUIC belong to the request, too. Shorter than what the broker does ten times a second."""
PACKAGE: Final = "/penstock/"
NOT_COUNTED: Final = ("net/deadlines.py", "background.py", "admin/", "testing/")
"""What runs by the clock and not for a request, and the disk of tests, which stands before the real one."""
LOOP_THREAD: Final = "penstock broker"
VALUE: Final = b"x" * 100


class Call(NamedTuple):
    thread: str
    file: str
    function: str


class Recorder:
    """Notes the calls in the broker's threads: install it before the broker starts."""

    def __init__(self) -> None:
        self._on = False
        self._calls: list[Call] = []
        threading.setprofile(self._profile)

    def record(self, request: Callable[[], object]) -> list[Call]:
        self._calls, self._on = [], True
        request()
        time.sleep(QUIET_S)
        self._on = False
        return self._calls

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if self._on and event == "call":
            code = frame.f_code
            _, found, file = code.co_filename.rpartition(PACKAGE)
            thread = threading.current_thread().name
            if found and not file.startswith(NOT_COUNTED) and not thread.startswith("penstock client"):
                self._calls.append(Call(thread, file, code.co_qualname))


@contextmanager
def requests() -> Iterator[tuple[Recorder, dict[str, Callable[[], object]]]]:
    """One request of each kind, on connections that are open and warm."""
    recorder = Recorder()
    with RunningBroker(clock=SystemClock()) as broker:
        with (
            penstock.connect(f"{broker.url}?idempotent=false") as flymq,
            broker.connect() as idempotent,
            penstock.connect(broker.blipmq_url) as blipmq,
            penstock.connect(broker.rustlog_url) as rustlog,
            penstock.connect(broker.fujin_url) as fujin,
            penstock.connect(broker.felix_url) as felix,
        ):
            flymq.create_topic("orders", 1)
            flymq.send_many("orders", [VALUE] * 1000)
            queue = blipmq.subscribe("orders")
            felix.cache_put("key", VALUE)

            blipmq.send_many("orders", [VALUE] * 2 * ROUNDS)

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
    threading.setprofile(None)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.calls", description=__doc__.splitlines()[0])
    parser.add_argument("--trace", metavar="NAME", help="print the calls of the request with this name, in order")
    trace = parser.parse_args().trace
    console = Console()
    table = Table("request", "calls", "on the loop", "files", title="Python calls in the broker for one request")
    with requests() as (recorder, by_name):
        if trace is not None and trace not in by_name:
            parser.error(f"no such request: {trace}; there are {', '.join(by_name)}")
        for name, request in by_name.items():
            if trace in (None, name):
                request()
                calls = min((recorder.record(request) for _ in range(ROUNDS)), key=len)
                on_loop = sum(call.thread == LOOP_THREAD for call in calls)
                table.add_row(name, str(len(calls)), str(on_loop), str(len({call.file for call in calls})))
                for call in calls if trace else ():
                    console.print(f"{call.thread:24} {call.file:44} {call.function}", highlight=False, soft_wrap=True)
    console.print(table)


if __name__ == "__main__":
    main()

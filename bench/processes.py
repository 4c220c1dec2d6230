"""The processes a benchmark starts: a broker, a Redis, and programs of this package. Each is ended by its own id."""

from __future__ import annotations

import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from bench.dialects import RecordLost, resp_command
from bench.load import Job, LoadResult
from penstock.protocols.flymq.sync import FlyMQClient

HOST: Final = "127.0.0.1"
START_S_MAX: Final = 120.0
STOP_S_MAX: Final = 60.0
PORTS: Final = range(10_000, 32_768)
"""For programs that are told where to listen. Linux gives the ports above to clients, one of which could get it before the program does."""
PORTS_TRIED: Final = 100

_Result = TypeVar("_Result")


class Stoppable(ABC):
    """What is stopped when the context is left."""

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Program(Stoppable):
    """A process that is ours: ended when the context is left, once, and not again."""

    _process: subprocess.Popen[str] | subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process, how)

    def _raise_if_ended(self, name: str, log: Path | None = None) -> None:
        """Raise RuntimeError, with the end of the log, if it has ended by itself."""
        assert self._process is not None
        if self._process.poll() is not None:
            last = f":\n{log.read_text()[-2000:]}" if log is not None else ""
            raise RuntimeError(f"{name} ended with status {self._process.returncode}{last}")


class Broker(Program):
    """`penstock serve` on a data directory; started anew by `start` after it was stopped or killed."""

    def __init__(self, data_dir: Path, *flags: str, config: str = "") -> None:
        """`config` is TOML that is added to the file: other listeners, say."""
        # With a file, only the listeners that it names are on.
        self.data_dir = data_dir
        file = data_dir.with_suffix(".toml")
        file.write_text(f'{config}\n\n[listeners.flymq]\nbind = "{HOST}:0"\n\n[admin]\nbind = "{HOST}:0"\n')
        self._flags = ("--config", str(file), "--data-dir", str(data_dir), *flags)
        self._log = data_dir.with_suffix(".log")
        self.ports: dict[str, int] = {}
        """By listener, once it runs."""

    def start(self) -> float:
        """Returns the seconds until it said `ready`."""
        with self._log.open("a") as log:
            started = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "serve", *self._flags], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert process.stdout is not None
        self._process = process
        for line in process.stdout:
            address = re.search(r"(\w+)\W.*?:(\d+)\b", line)
            if line.strip() == "ready":
                return time.perf_counter() - started
            if address:
                self.ports[address[1]] = int(address[2])
        raise RuntimeError(f"the broker did not start:\n{self._log.read_text()[-2000:]}")

    @property
    def port(self) -> int:
        """FlyMQ's."""
        return self.ports["flymq"]

    @property
    def url(self) -> str:
        return f"flymq://{HOST}:{self.port}"

    def client(self, who: str = "") -> FlyMQClient:
        return FlyMQClient(f"flymq://{who}{HOST}:{self.port}")

    def metrics(self) -> dict[str, float]:
        """The figures by name, with labels as they are written."""
        with urllib.request.urlopen(f"http://{HOST}:{self.ports['admin']}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line[:1] not in {"#", ""})
        return {name: float(value) for name, value in pairs}

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def __enter__(self) -> Self:
        self.start()
        return self


class Redis(Program):
    """A Redis of our own, with its append-only file in a directory of ours and nothing in it rewritten behind our back."""

    def __init__(self, directory: Path, appendfsync: str) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise RuntimeError("redis-server is not installed: run scripts/install-debian-packages redis-server")
        directory.mkdir(parents=True)
        self.port = free_port()
        settings = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(directory),
            "appendonly": "yes",
            "appendfsync": appendfsync,
            "auto-aof-rewrite-percentage": "0",
            "save": "",
            "logfile": str(directory / "redis.log"),
        }
        flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen([program, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._wait_until_ready()

    def command(self, *words: str) -> bytes:
        """Run a command whose reply is one line; returns that line."""
        with socket.create_connection((HOST, self.port), timeout=STOP_S_MAX) as connection:
            connection.sendall(resp_command(*(word.encode() for word in words)))
            with connection.makefile("rb") as replies:
                return replies.readline().strip()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            try:
                if self.command("PING") == b"+PONG":
                    return
            except OSError:
                pass
            self._raise_if_ended("redis-server")
            time.sleep(0.02)
        raise RuntimeError("redis-server did not get ready")


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes], how: signal.Signals) -> None:
    process.send_signal(how)
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def start_program(module: str, job: msgspec.Struct) -> subprocess.Popen[bytes]:
    """Start a program of this package and hand it its job."""
    process = subprocess.Popen([sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(job))
    process.stdin.close()
    return process


def finish_program(process: subprocess.Popen[bytes], result: type[_Result]) -> _Result:
    assert process.stdout is not None
    output = process.stdout.read()
    process.stdout.close()
    if process.wait() != 0:
        raise RuntimeError("a program of the benchmark failed; its error is above")
    return msgspec.json.decode(output, type=result)


def run_program(module: str, job: msgspec.Struct, result: type[_Result]) -> _Result:
    return finish_program(start_program(module, job), result)


def run_load(job: Job) -> LoadResult:
    return run_program("bench.load", job, LoadResult)


def check_held(broker: Broker, topic: str, acknowledged: dict[int, int]) -> None:
    """The broker must hold every record it acknowledged."""
    with broker.client() as client:
        held = {each.partition: each.next_offset for each in client.describe_topic(topic).partitions}
    short = {partition: count for partition, count in acknowledged.items() if held.get(partition, 0) < count}
    if short:
        raise RecordLost(f"topic {topic}: acknowledged {short}, held {held}")


def free_port() -> int:
    """Return a port on which nobody listens. Raises RuntimeError if there seems to be none."""
    for port in random.SystemRandom().sample(PORTS, PORTS_TRIED):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise RuntimeError(f"{PORTS_TRIED} ports between {PORTS.start} and {PORTS.stop} are taken: end what listens there")

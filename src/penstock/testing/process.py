"""`penstock serve` as a child process, for tests that end it the hard way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from penstock.clients.options import ClientOptions
from penstock.net.certificates import CERTIFICATE_FILE
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing.diskfaults import DiskFault
from penstock.testing.forkserver import ForkedProcess, ForkServer

OUTPUT_LINES_MAX = 500
READY = "ready"
PRELOAD = ("penstock.cli.main", "penstock.serving", "penstock.testing.diskfaults")
"""The modules of a broker process, for a fork server."""
_LISTENING = re.compile(r"(\w+) on ((?:\d{1,3}\.){3}\d{1,3}:\d+)(?:/udp)?")


class BrokerProcessFailed(RuntimeError):
    """The child did not do what was waited for; the message has what it printed."""


class BrokerProcess:
    """A broker in a process of its own, started and ended as often as a test likes, always on one directory.

    ```python
    with BrokerProcess(tmp_path / "data") as broker:
        broker.connect().send("orders", b"one")
        broker.kill9()
        broker.start()
    ```
    `config` is TOML that is added to the configuration file (without `data_dir` and `[listeners.flymq]`, which are set here).
    Every start listens on the port of the first, so that clients connect again. Another program may have taken it meanwhile, which ends
    the start: with `keep_port=False` every start takes a free one. `bind` is the address of the first start.
    `launcher` is a command that is given the broker's own as its last arguments, as in `("nice", "-n", "10")`.
    """

    fork_server: ClassVar[ForkServer | None] = None
    """What starts the brokers that have no launcher, in a suite with hundreds of them: `ForkServer(PRELOAD)`. With None each start is
    that of an interpreter, which takes about ten times as long."""

    def __init__(
        self,
        data_dir: Path | str,
        *,
        config: str = "",
        environment: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (),
        keep_port: bool = True,
        bind: str = "127.0.0.1:0",
        start_s_max: float = 30.0,
        stop_s_max: float = 30.0,
    ) -> None:
        self.data_dir = Path(data_dir)
        self._config = config
        self._environment = dict(environment or {})
        self._launcher = tuple(launcher)
        self._keep_port = keep_port
        self._start_s_max = start_s_max
        self._stop_s_max = stop_s_max
        self._bind = bind
        self._process: subprocess.Popen[str] | ForkedProcess | None = None
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES_MAX)
        self._said_ready = threading.Event()
        self.addresses: dict[str, str] = {}
        """host:port of what it listens on since the last start, by protocol."""

    # -- life ------------------------------------------------------------------------------------------------------------

    def start(self, *, disk: DiskFault | None = None, wait: bool = True) -> Self:
        """Start and wait until it is ready. `disk` is a fault of this run, as in `Crash("commit write segment:3:half")`.

        With `wait=False` it returns at once, for a broker that is meant to die on the way up.
        """
        if self.running:
            raise BrokerProcessFailed("the broker process is running; end it before you start it again")
        self._reap()
        self._lines.clear()
        self._said_ready.clear()
        self._process = self._launch([*self._program(disk), "--config", str(self.write_config())])
        self._reader = threading.Thread(target=self._read_output, args=(self._process,), daemon=True)
        self._reader.start()
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until the process prints `ready`; raises with its output if it ends first or takes too long."""
        deadline_s = time.monotonic() + self._start_s_max
        while not self._said_ready.wait(0.005):
            if not self.running:
                self._reader.join()
                raise BrokerProcessFailed(f"the broker ended with {self.exit_code} before it was ready:\n{self.output}")
            if time.monotonic() > deadline_s:
                raise BrokerProcessFailed(f"the broker was not ready within {self._start_s_max:g} s:\n{self.output}")
        if not self.address:
            raise BrokerProcessFailed(f"the broker is ready but named no FlyMQ address:\n{self.output}")
        if self._keep_port:
            self._bind = self.address

    def kill9(self) -> None:
        """End it as a crash would, now."""
        self._signal(signal.SIGKILL)
        self.wait_exit()

    def terminate(self) -> int:
        """Ask it to stop cleanly; returns its exit code."""
        self._signal(signal.SIGTERM)
        return self.wait_exit()

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP), without ending it."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def wait_exit(self) -> int:
        """Wait until it has ended by itself or was ended; returns its exit code (negative: the signal)."""
        process = self._started()
        try:
            code = process.wait(self._stop_s_max)
        except subprocess.TimeoutExpired:
            raise BrokerProcessFailed(f"the broker did not end within {self._stop_s_max:g} s:\n{self.output}") from None
        self._reader.join()
        return code

    def close(self) -> None:
        """End it if it runs."""
        if self.running:
            self.kill9()
        self._reap()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- use -------------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def output(self) -> str:
        """The last lines it printed, stdout and stderr together."""
        return "\n".join(self._lines)

    @property
    def address(self) -> str:
        """host:port of the FlyMQ listener."""
        return self.addresses.get("flymq", "")

    @property
    def certificate(self) -> Path:
        """What clients of the QUIC listeners must trust, where those were given no certificate of their own."""
        return self.data_dir / CERTIFICATE_FILE

    @property
    def url(self) -> str:
        return f"flymq://{self.address}"

    def connect(self, options: ClientOptions | None = None) -> FlyMQClient:
        """A new sync client; the caller closes it."""
        return FlyMQClient(self.url, options=options)

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _launch(self, command: list[str]) -> subprocess.Popen[str] | ForkedProcess:
        environment = {**_without_settings(os.environ), **self._environment, "PYTHONUNBUFFERED": "1"}
        if self.fork_server is not None and not self._launcher:
            return self.fork_server.start(command, environment)
        return subprocess.Popen(  # noqa: S603 - the program is this interpreter
            # -P: what lies in the current directory is not for the broker to import.
            [*self._launcher, sys.executable, "-P", "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    @staticmethod
    def _program(disk: DiskFault | None) -> list[str]:
        if disk is None:
            return ["penstock", "serve"]
        return ["penstock.testing.serving", "--disk", msgspec.json.encode(disk).decode()]

    @property
    def config_file(self) -> Path:
        """The configuration of the last start."""
        return self.data_dir.with_name(self.data_dir.name + ".toml")

    def write_config(self) -> Path:
        """Write the configuration, as every start does, and return where it is."""
        path = self.config_file
        path.parent.mkdir(parents=True, exist_ok=True)
        data_dir = msgspec.json.encode(str(self.data_dir)).decode()  # which is a string of TOML, too
        path.write_text(f'data_dir = {data_dir}\n{self._config}\n[listeners.flymq]\nbind = "{self._bind}"\n')
        return path

    def _read_output(self, process: subprocess.Popen[str] | ForkedProcess) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            line = line.rstrip("\n")
            self._lines.append(line)
            if self._said_ready.is_set():
                continue
            listening = _LISTENING.fullmatch(line.strip())
            if listening:
                self.addresses[listening[1]] = listening[2]
            elif line.strip() == READY:
                self._said_ready.set()

    def _signal(self, number: int) -> None:
        self._started().send_signal(number)

    def _started(self) -> subprocess.Popen[str] | ForkedProcess:
        if self._process is None:
            raise BrokerProcessFailed("the broker process was not started")
        return self._process

    def _reap(self) -> None:
        if self._process is not None:
            self._reader.join()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None


def _without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without settings of other brokers, which would count for more than the configuration file."""
    return {name: value for name, value in environment.items() if not name.startswith("PENSTOCK_")}

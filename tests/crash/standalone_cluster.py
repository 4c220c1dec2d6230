"""A standalone cluster of Spark on this machine: a master and two workers, each a process of its own, as on three machines.

Each has an address of its own on the loopback network. Workers, and the executors that they start, run in a mount namespace in which one
directory is empty; what lies in it is on another machine as far as they can tell.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.spark.java import find_java
from tests.crash.process_tree import command_of, kill, kill_with_descendants, parent_of

WORKERS: Final = 2
WAIT_S_MAX: Final = 120.0
LOOK_S: Final = 0.05
ANCESTORS_MAX: Final = 20
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
DAEMON_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_LISTENING: Final = "Starting Spark master at spark://"
_REGISTERED: Final = "Successfully registered with master"


class Stuck(Exception):
    """Something that was waited for did not happen."""


def wait_for(what: str, condition: Callable[[], bool], wait_s: float = WAIT_S_MAX) -> None:
    until_s = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > until_s:
            raise Stuck(f"{what} took more than {wait_s:g} s")
        time.sleep(LOOK_S)


def can_hide(directory: Path) -> bool:
    """Whether this machine lets a process have mounts of its own, which takes the rights of root."""
    done = subprocess.run([*hiding(directory), "true"], capture_output=True, check=False)
    return done.returncode == 0


def hiding(directory: Path) -> list[str]:
    """A command that runs the command after it with an empty directory in place of this one."""
    return ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(directory)]


class Cluster:
    """`launcher` is a command that is given the workers' own as its last arguments. Logs are files of `directory`."""

    def __init__(self, directory: Path, launcher: list[str]) -> None:
        import pyspark

        self._spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        self._directory = directory
        self._launcher = launcher
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.master = ""
        """As a session takes it."""

    def __enter__(self) -> Self:
        log = self._start([self._spark_class, MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"])
        wait_for("starting the master", lambda: _after(log, _LISTENING) != "")
        self.master = f"spark://{_after(log, _LISTENING)}"
        for _ in range(WORKERS):
            self.start_worker()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            kill_with_descendants(process)

    def start_worker(self) -> None:
        """Start a worker with one core, and wait until the master knows it."""
        host = f"127.0.0.{self._started + 1}"
        command = [self._spark_class, WORKER, "--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0"]
        log = self._start([*self._launcher, *command, self.master])
        wait_for("starting a worker", lambda: _REGISTERED in log.read_text())

    def kill_executor_of(self, pid: int) -> None:
        """Kill the executor that has started a Python process."""
        kill(_ancestor(pid, EXECUTOR))

    def kill_worker_of(self, pid: int) -> None:
        """Kill the worker whose executor has started a Python process. The executor ends when it finds itself alone."""
        kill(_ancestor(pid, WORKER))

    def _start(self, command: list[str]) -> Path:
        self._started += 1
        log = self._directory / f"process-{self._started}.log"
        own = self._directory / f"process-{self._started}"
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java(os.environ)),
            "SPARK_WORKER_DIR": str(own),
            "SPARK_LOCAL_DIRS": str(own),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": DAEMON_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
        }
        with log.open("wb") as output:
            self._processes.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))
        return log


def _ancestor(pid: int, word: str) -> int:
    for _ in range(ANCESTORS_MAX):
        if word in command_of(pid):
            return pid
        pid = parent_of(pid)
    raise Stuck(f"there is no {word} above the process any more")


def _after(log: Path, word: str) -> str:
    """Return what a log says after a word, up to the end of the line."""
    _, found, rest = log.read_text().partition(word)
    return rest.split("\n")[0].strip() if found and "\n" in rest else ""

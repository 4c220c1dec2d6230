"""Starts pipelines that the configuration declares, each as a process of its own on this machine, and tells how they are.

A request gives the name of a pipeline and nothing else: the command is always `penstock pipeline run FILE` with the file of the
declaration. What a process does and when it stops is between the pipeline and the broker (`broker/pipelines.py`): it reports itself, and
the answer to a report asks it to stop. Known here is what a report cannot tell: that a process has been started and has not reported yet,
and how and why it ended.

A process is in a session of its own, so that Ctrl-C at the broker's terminal does not reach it. The broker goes first when processors or
memory are short. The environment has none of the broker's settings, which may be secrets. The output is a file in the data directory,
which the process writes to itself, so that it needs no broker for that; a file that is too long loses its older half.

A broker that stops ends its pipelines first, while it can still take what they commit, and kills those that take too long: the next run
repeats their batches, and no row is lost or doubled. Pipelines of a broker that was killed continue: they reconnect, report themselves
to the next one, and hold the lock of their directory, so that there are never two.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

import msgspec
import structlog

from penstock.admin.declarations import DeclaredPipeline
from penstock.background import Background, Loop, run_to_completion
from penstock.broker.access.checks import SYSTEM
from penstock.broker.pipelines import ACTIVE_STATES, MESSAGE_BYTES_MAX, RUN_VARIABLE, PipelineInfo, Pipelines
from penstock.clock import Clock
from penstock.errors import ConfigError, EntryNotFound, LimitExceeded, PenstockError, PipelineRunning, ShuttingDown

DECLARED: Final = "declared"
"""The state of a pipeline that has never run."""
END_S_MAX: Final = 30.0
"""How long processes may take to finish their batches when the broker stops."""
KILLED_S_MAX: Final = 5.0
LOG_BYTES_MAX: Final = 1 << 20
"""A longer log loses its older half. There is the log of the last start, and that of the one before."""
LOG_CHECK_S: Final = 30.0
LOG_TAIL_BYTES_MAX: Final = 64 << 10
FILE_BYTES_MAX: Final = 1 << 20
NICENESS: Final = 10
OOM_SCORE: Final = 500
"""Of 1000: if memory runs out, the kernel ends a pipeline before the broker."""
SETTINGS_PREFIX: Final = "PENSTOCK_"
PASSWORD_VARIABLE: Final = "PENSTOCK_PASSWORD"  # noqa: S105 - the name of a variable
ERROR_LABEL: Final = "error: "
"""What the last words of a command that fails begin with."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Process:
    """The last process that was started for a pipeline."""

    pid: int
    run: str
    """What the id of its run ends with."""
    started_ms: int
    ended_ms: int | None = None
    exit_code: int | None = None
    """Negative: the signal that ended it."""
    reason: str = ""
    """Why it failed."""
    stop_asked: bool = False

    @property
    def runs(self) -> bool:
        return self.ended_ms is None

    @property
    def outcome(self) -> str:
        return "failed" if self.reason else "stopped" if self.stop_asked else "finished"

    def has_reported(self, info: PipelineInfo) -> bool:
        """Whether the last report of the pipeline is of this process."""
        return info.run.endswith(f".{self.run}")


class View(NamedTuple):
    """A pipeline as its reports and its process tell."""

    info: PipelineInfo
    declared: bool
    process: Process | None


class Launcher:
    def __init__(
        self,
        declared: Iterable[DeclaredPipeline],
        directory: Path,
        *,
        processes_max: int,
        pipelines: Pipelines,
        background: Background,
        clock: Clock,
    ) -> None:
        """`directory` is for the logs. `pipelines` knows what they say of themselves."""
        self.declared = {each.name: each for each in declared}
        self.background = background
        self._directory = directory
        self._processes_max = processes_max
        self._pipelines = pipelines
        self._clock = clock
        self._processes: dict[str, Process] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(processes_max + 1, "penstock-pipeline")
        """One waits for each process, one starts another."""
        self._starting = asyncio.Lock()
        self._state: Literal["new", "open", "closed"] = "new"
        self._trimming: Loop | None = None

    async def open(self) -> None:
        """Start the pipelines that start with the broker, once. One that cannot be started is logged."""
        if not self.declared or self._state != "new":
            return
        self._state = "open"
        self._trimming = self.background.loop("trim pipeline logs", self._trim_logs)
        for name, each in self.declared.items():
            if each.autostart:
                try:
                    await self.start(name)
                except PenstockError as error:
                    log.warning("pipeline_not_started", pipeline=name, error=str(error))

    async def close(self) -> None:
        """End every process, kill those that take too long, and start no more."""
        self._state = "closed"
        async with self._starting:
            watching = list(self._watching.values())
        for name, process in self._processes.items():
            if process.runs:
                log.info("pipeline_ending", pipeline=name, pid=process.pid, reason="the broker stops")
                self._terminate(process)
        if watching:
            _, late = await asyncio.wait(watching, timeout=END_S_MAX)
            for name, process in self._processes.items():
                if process.runs:
                    log.warning("pipeline_killed", pipeline=name, pid=process.pid, after_s=END_S_MAX)
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
            if late:
                await asyncio.wait(late, timeout=KILLED_S_MAX)
        if self._trimming is not None:
            await self._trimming.stop()
        self._threads.shutdown(wait=False)

    # -- one pipeline -----------------------------------------------------------------------------------------------------

    def views(self) -> list[View]:
        """Every pipeline that is declared or has reported, by name."""
        known = {each.name: each for each in self._pipelines.infos()}
        for name in self.declared:
            known.setdefault(name, PipelineInfo("", "", 0, 0, DECLARED, "", (), name=name, stopping=False, alive=False))
        return [self._view(each) for _, each in sorted(known.items())]

    def view(self, name: str) -> View:
        """Raises EntryNotFound."""
        found = next((each for each in self.views() if each.info.name == name), None)
        if found is None:
            raise EntryNotFound(f"no pipeline {name} has reported, and none is declared under [[pipelines]]")
        return found

    @run_to_completion
    async def start(self, name: str) -> View:
        """Start a pipeline that does not run. Raises EntryNotFound, PipelineRunning, LimitExceeded, ConfigError, ShuttingDown."""
        declaration = self._declaration(name)
        async with self._starting:
            if self._state != "open":
                raise ShuttingDown("the broker is starting or shutting down: start the pipeline when it is ready")
            if self.view(name).info.alive:
                raise PipelineRunning(f"pipeline {name} is running already: stop it before you start it again")
            running = sum(each.runs for each in self._processes.values())
            if running >= self._processes_max:
                raise LimitExceeded(
                    f"{running} pipelines run on this machine, and limits.pipeline_processes_max is {self._processes_max}: stop one, or "
                    "raise the limit"
                )
            loop = asyncio.get_running_loop()
            run, started_ms = uuid.uuid4().hex, self._clock.now_ms()
            child = await loop.run_in_executor(self._threads, self._spawn, name, declaration, run)
            process = self._processes[name] = Process(child.pid, run, started_ms)
            self._watching[name] = loop.create_task(self._watch(name, process, child))
        log.info("pipeline_started", pipeline=name, pid=process.pid, file=str(declaration.file))
        if self._trimming is not None:
            self._trimming.wake()
        return self.view(name)

    def is_starting(self, name: str) -> bool:
        """Whether a process runs that has not reported yet, and so cannot be stopped by the answer to a report."""
        process = self._processes.get(name)
        return process is not None and process.runs and not process.has_reported(self.view(name).info)

    def stop_starting(self, name: str) -> None:
        """Stop a process that has not reported yet."""
        self._terminate(self._processes[name])

    async def log_tail(self, name: str) -> str:
        """Return the end of what the last process has printed. Raises EntryNotFound."""
        self._declaration(name)
        return await asyncio.get_running_loop().run_in_executor(None, _tail, self._log(name))

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _declaration(self, name: str) -> DeclaredPipeline:
        declaration = self.declared.get(name)
        if declaration is None:
            raise EntryNotFound(
                f"pipeline {name} is not declared, and only declared pipelines are started: add its name and file to the configuration "
                "of the broker, under [[pipelines]]"
            )
        return declaration

    def _view(self, info: PipelineInfo) -> View:
        declared, process = info.name in self.declared, self._processes.get(info.name)
        if process is None:
            return View(info, declared, None)
        is_own, is_active = process.has_reported(info), info.state in ACTIVE_STATES
        if process.ended_ms is None:
            if is_own and is_active:
                info = msgspec.structs.replace(info, alive=True)  # also if it has been silent
            elif is_own or not info.alive:
                # It has told its end and is not gone yet, or has not reported yet.
                is_ending = is_own or process.stop_asked
                state, message = ("stopping", info.message) if is_ending else ("starting", "")
                info = msgspec.structs.replace(info, state=state, message=message, alive=True, stopping=is_ending)
        elif is_active if is_own else info.updated_ms <= process.started_ms:
            # It has ended without a last report, or before its first: a report of the millisecond it started in is of the run before.
            info = msgspec.structs.replace(
                info, state=process.outcome, message=process.reason, alive=False, stopping=False
            )
        return View(info, declared, process)

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _spawn(self, name: str, declaration: DeclaredPipeline, run: str) -> subprocess.Popen[bytes]:
        """Start the process of a pipeline; on a thread of its own, because it touches files. Raises ConfigError."""
        _check_file(name, declaration.file)
        environment = {key: value for key, value in os.environ.items() if not key.upper().startswith(SETTINGS_PREFIX)}
        environment[RUN_VARIABLE] = run
        if declaration.password_file is not None:
            environment[PASSWORD_VARIABLE] = _read(declaration.password_file).decode(errors="replace").rstrip("\r\n")
        # -P: modules are never taken from the directory of the file.
        command = [sys.executable, "-P", "-m", "penstock", "pipeline", "run", str(declaration.file.absolute())]
        try:
            with self._new_log(name) as output:
                child = subprocess.Popen(  # noqa: S603  nothing of the command comes from a request
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=declaration.file.parent,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise ConfigError(f"pipeline {name} cannot be started: {error}") from error
        with suppress(OSError):  # it may have ended
            os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
        with suppress(OSError):
            Path(f"/proc/{child.pid}/oom_score_adj").write_text(str(OOM_SCORE))
        return child

    def _new_log(self, name: str) -> IO[bytes]:
        """Open an empty log to append to, and keep the one before."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._log(name)
        with suppress(FileNotFoundError):
            path.replace(path.with_suffix(".log.1"))
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")

    async def _watch(self, name: str, process: Process, child: subprocess.Popen[bytes]) -> None:
        code = await asyncio.get_running_loop().run_in_executor(self._threads, child.wait)
        if code != 0 and not process.stop_asked:
            process.reason = _reason(code, await self.log_tail(name))
        process.exit_code = code
        process.ended_ms = self._clock.now_ms()
        log.info("pipeline_ended", pipeline=name, pid=process.pid, exit_code=code, reason=process.reason)
        info = self.view(name).info
        try:
            if process.has_reported(info):
                await self._pipelines.note_end(SYSTEM, name, info.run, process.outcome, process.reason)
        except PenstockError as error:
            log.warning("pipeline_end_not_recorded", pipeline=name, error=str(error))
        finally:
            if self._processes[name] is process:
                del self._watching[name]

    def _terminate(self, process: Process) -> None:
        """Ask a process to stop. It alone, and not its group: it needs its Java to finish batches that have begun."""
        process.stop_asked = True
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)

    async def _trim_logs(self) -> float | None:
        for name in self.declared:
            await asyncio.get_running_loop().run_in_executor(None, _trim, self._log(name))
        return LOG_CHECK_S if self._watching else None


def _check_file(name: str, file: Path) -> None:
    """Raises ConfigError if the file does not describe the pipeline: what is wrong in the rest of it, the run itself tells."""
    try:
        found = tomllib.loads(_read(file).decode()).get("name")
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    if found != name:
        raise ConfigError(
            f"{file} describes pipeline {str(found)[:200]!r}, and the configuration declares it as {name!r}: make the names equal"
        )


def _read(file: Path) -> bytes:
    """Raises ConfigError."""
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): correct its path under [[pipelines]]") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{file} is larger than {FILE_BYTES_MAX} bytes: name another file under [[pipelines]]")
    return data


def _tail(path: Path) -> str:
    """Return the last lines of a file, all whole; nothing if it cannot be read."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            begin = max(0, size - LOG_TAIL_BYTES_MAX)
            stream.seek(begin)
            data = stream.read(LOG_TAIL_BYTES_MAX)
    except OSError:
        return ""
    if begin:
        data = data[data.find(b"\n") + 1 :]
    return data.decode(errors="replace")


def _trim(path: Path) -> None:
    """Take the older half from a file that is too long. A line that is appended at that very moment may be lost; later ones are not."""
    try:
        if path.stat().st_size <= LOG_BYTES_MAX:
            return
        with path.open("rb") as stream:
            stream.seek(-LOG_BYTES_MAX // 2, os.SEEK_END)
            kept = stream.read()
        os.truncate(path, 0)
        with path.open("ab") as stream:
            stream.write(kept[kept.find(b"\n") + 1 :])
    except FileNotFoundError:
        return


def _reason(code: int, printed: str) -> str:
    """Return why a process failed: its errors if it has told any, else its last line."""
    if code < 0:
        number = -code
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"it was ended by {name}" + (": memory may have run out" if number == signal.SIGKILL else "")
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line.removeprefix(ERROR_LABEL) for line in lines if line.startswith(ERROR_LABEL)]
    told = "; ".join(errors) or (lines[-1] if lines else f"it ended with code {code} and has printed nothing")
    return told.encode()[:MESSAGE_BYTES_MAX].decode(errors="ignore")

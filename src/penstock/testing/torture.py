"""Faults against a real broker on a real disk, round after round, and a check of every promise after each.

A round starts `penstock serve`, runs the `Workload` on it, brings about one fault, starts the broker again without it, and checks what
it holds against the journal of the clients. The scenarios:
- `kill`: SIGKILL at a random moment;
- `powercut`: at a random operation the process ends, and the next one finds a directory that lost some of what was not flushed, sectors
  and names, at a random rate from 1 to 99 %. What a file system may lose is simulated: only a machine of its own can be switched off;
- `fsync`: some flushes fail with EIO, and what they should have written is gone;
- `full-disk`: the space runs out (a quota on the directory), and returns.

A few rounds in turn share a directory, so that recovery also meets what recoveries left. All choices come from the seed. The first
round that breaks a promise is the last one, and its directory stays.
"""

from __future__ import annotations

import random
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self, get_args

from penstock.errors import CorruptBlock, PenstockError
from penstock.testing.checker import Report
from penstock.testing.crashing import CRASHED
from penstock.testing.diskfaults import FlushErrors, PowerCut, Quota, WriteBehind
from penstock.testing.load import ProducerLoad
from penstock.testing.process import BrokerProcessFailed
from penstock.testing.workload import VALUE_BYTES, Workload

Scenario = Literal["kill", "powercut", "fsync", "full-disk"]
SCENARIOS: Final[tuple[Scenario, ...]] = get_args(Scenario)

ROUNDS_PER_DIRECTORY: Final = 3
FREE_BYTES_MIN: Final = 512 << 20
"""More than one directory takes, with its journal."""

PROBLEM_LINES_MAX: Final = 40

_LOAD_S: Final = (0.05, 0.6)
_FAULT_S_MAX: Final = 60.0
_CUT_AT: Final = (1, 1500)
_LOSS: Final = (0.01, 0.99)
_FAILING_FLUSHES: Final = (1, 120)
_SILENT_FLUSHES: Final = 1000
_FULL_VALUE_BYTES: Final = 2000
_FULL_AFTER_BYTES: Final = (6 << 20, 12 << 20)
_BALLAST_BYTES: Final = 4 << 20
_WRITE_BEHIND_S: Final = 0.3


@dataclass(slots=True)
class Result:
    """What came of the rounds of one scenario."""

    scenario: Scenario
    rounds: int = 0
    sent: int = 0
    acked: int = 0
    refused: int = 0
    unknown: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong_data_served: int = 0
    stuck: int = 0
    """How often the broker did not start, did not answer or ended by itself, or could not read its log. If it does not start, or finds its
    log damaged, all that it acknowledged counts as lost."""
    restart_s_max: float = 0.0

    @property
    def ok(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong_data_served or self.stuck)


@dataclass(slots=True)
class Findings:
    """What a run has found so far."""

    results: list[Result]
    problems: list[str] = field(default_factory=list)
    """The broken promises of the last round, in words."""
    kept: Path | None = None
    """The directory of the round that broke a promise."""

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)


class Torture:
    """Run rounds of these scenarios in turn, in `directory`, which must be empty.

    `on_round` is called after each round. With `keep` the last directory stays, whatever was found. With `flushes_broken` the disk
    acknowledges what it has not stored, so a run must find losses: the test of this test.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        scenarios: Sequence[Scenario] = SCENARIOS,
        keep: bool = False,
        flushes_broken: bool = False,
        on_round: Callable[[Findings], None] = lambda _: None,
    ) -> None:
        self._directory = directory
        self._seed = seed
        self._keep = keep
        self._flushes_broken = flushes_broken
        self._on_round = on_round
        self._finished: Path | None = None
        self.findings = Findings([Result(scenario) for scenario in scenarios])

    def run(self, seconds: float) -> Findings:
        """Run until the time is over or a promise is broken; at least one round of each scenario."""
        deadline_s = time.monotonic() + seconds
        number = 0
        while self.findings.ok and (number < len(self.findings.results) or time.monotonic() < deadline_s):
            result = self.findings.results[number % len(self.findings.results)]
            self._run_directory(number, result, deadline_s)
            number += 1
        return self.findings

    def _run_directory(self, number: int, result: Result, deadline_s: float) -> None:
        if self._finished is not None:
            shutil.rmtree(self._finished)
        directory = self._directory / f"{number:04d}-{result.scenario}"
        directory.mkdir()
        chance = random.Random(f"{self._seed}/{number}")  # noqa: S311 - guards no secret
        rounds = _ROUNDS[result.scenario](Workload(directory), chance, self._flushes_broken)
        before = Result(result.scenario, result.rounds, result.sent, result.acked, result.refused, result.unknown)
        with rounds:
            for at in range(ROUNDS_PER_DIRECTORY):
                if at and time.monotonic() > deadline_s:
                    break
                try:
                    report, restart_s = rounds.run()
                except (BrokerProcessFailed, PenstockError, AssertionError) as error:
                    result.stuck += 1
                    sent = rounds.workload.sent()
                    _add(result, before, sent, 0.0)
                    if isinstance(error, _NotRestarted | CorruptBlock):
                        result.lost = sent.acked
                    self.findings.problems += _shortened(str(error).splitlines())
                else:
                    _add(result, before, report, restart_s)
                    if not report.ok:
                        self.findings.problems += str(report).splitlines()
                if not result.ok:
                    self.findings.kept = directory
                self._on_round(self.findings)
                if not result.ok:
                    return
        self._finished = directory
        if not self._keep:
            shutil.rmtree(directory)
            self._finished = None


def _shortened(lines: list[str]) -> list[str]:
    """The first line of an error, followed by the last ones of the broker's output."""
    return lines if len(lines) <= PROBLEM_LINES_MAX else [lines[0], "...", *lines[2 - PROBLEM_LINES_MAX :]]


def _add(result: Result, before: Result, report: Report, restart_s: float) -> None:
    """Take over a report, which covers all rounds of its directory, on top of what there was before that directory."""
    result.rounds += 1
    result.sent = before.sent + report.sent
    result.acked = before.acked + report.acked
    result.refused = before.refused + report.failed
    result.unknown = before.unknown + report.unknown
    result.lost, result.duplicated = report.lost, report.duplicated
    result.wrong_data_served = report.wrong
    result.restart_s_max = max(result.restart_s_max, restart_s)


class _NotRestarted(BrokerProcessFailed):
    """The broker did not start after a fault."""


class _Rounds(ABC):
    """The rounds of one directory. Subclasses bring about the fault."""

    def __init__(self, workload: Workload, chance: random.Random, flushes_broken: bool) -> None:
        self.workload = workload
        self.broker = workload.broker
        self.chance = chance
        self.flushes_broken = flushes_broken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.workload.close()

    def run(self) -> tuple[Report, float]:
        """Run one round; returns the verdict and the seconds that the start after the fault took. Raises BrokerProcessFailed."""
        self.disturb()
        started_s = time.monotonic()
        try:
            self.broker.start()
        except BrokerProcessFailed as error:
            raise _NotRestarted(str(error)) from error
        restart_s = time.monotonic() - started_s
        report = self.workload.check()
        # The next round recovers from a clean stop or from a kill of a broker that was only read from.
        if self.chance.random() < 0.5:
            self.kill()
        elif (code := self.broker.terminate()) != 0:
            raise BrokerProcessFailed(f"the broker ended with {code} when it was asked to stop:\n{self.broker.output}")
        return report, restart_s

    @abstractmethod
    def disturb(self) -> None:
        """Start the broker, and end it after a fault under load."""

    @contextmanager
    def load(self, value_bytes: int = VALUE_BYTES) -> Iterator[ProducerLoad]:
        with self.workload.running(value_bytes) as load:
            load.wait_until_answered(1)
            yield load

    def pause(self) -> None:
        time.sleep(self.chance.uniform(*_LOAD_S))

    def kill(self) -> None:
        """Kill the broker, which must still be there: no fault is a reason to end by itself."""
        if not self.broker.running:
            raise BrokerProcessFailed(f"the broker ended with {self.broker.exit_code} by itself:\n{self.broker.output}")
        self.broker.kill9()


class _Kill(_Rounds):
    def disturb(self) -> None:
        self.broker.start(disk=WriteBehind(_WRITE_BEHIND_S) if self.flushes_broken else None)
        with self.load():
            self.pause()
            self.kill()


class _PowerCut(_Rounds):
    def disturb(self) -> None:
        image = self.broker.data_dir.with_name("image")
        fault = PowerCut(
            cut_at=self.chance.randint(*_CUT_AT),
            image=str(image),
            loss=self.chance.uniform(*_LOSS),
            seed=self.chance.randrange(1 << 32),
            flushes_ignored=self.flushes_broken,
        )
        try:
            # The power may go while it starts, so it may never be ready.
            self.broker.start(disk=fault)
            with self.load() as load:
                load.wait_until_over(_FAULT_S_MAX)
        except (BrokerProcessFailed, PenstockError):
            if self.broker.running:
                raise
        if self.broker.wait_exit() != CRASHED:
            raise BrokerProcessFailed(
                f"the broker ended with {self.broker.exit_code} before the power cut:\n{self.broker.output}"
            )
        shutil.rmtree(self.broker.data_dir)
        image.rename(self.broker.data_dir)


class _Fsync(_Rounds):
    def disturb(self) -> None:
        failing = [self.chance.randint(*_FAILING_FLUSHES) for _ in range(self.chance.randint(1, 3))]
        if self.flushes_broken:
            failing = list(range(min(failing), min(failing) + _SILENT_FLUSHES))
        try:
            self.broker.start(disk=FlushErrors(failing, silent=self.flushes_broken))
        except BrokerProcessFailed:
            if self.broker.running:
                raise
            return  # a flush failed while it started, which ends the start
        with self.load():
            self.pause()
            self.pause()
            self.kill()


class _FullDisk(_Rounds):
    def disturb(self) -> None:
        data_dir = self.broker.data_dir
        data_dir.mkdir(exist_ok=True)
        used = sum(path.stat().st_size for path in data_dir.rglob("*") if path.is_file())
        ballast = data_dir / "ballast"
        ballast.write_bytes(bytes(_BALLAST_BYTES))
        quota_bytes = used + _BALLAST_BYTES + self.chance.randint(*_FULL_AFTER_BYTES)
        self.broker.start(disk=Quota(quota_bytes))
        with self.load(_FULL_VALUE_BYTES) as load:
            load.wait_until_refused(20, _FAULT_S_MAX)
            self.pause()
            ballast.unlink()
            load.wait_until_acked(load.summary.acked + 20, _FAULT_S_MAX)
            self.kill()


_ROUNDS: Final[dict[Scenario, type[_Rounds]]] = {
    "kill": _Kill,
    "powercut": _PowerCut,
    "fsync": _Fsync,
    "full-disk": _FullDisk,
}

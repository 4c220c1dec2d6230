"""`penstock torture`: does a broker keep its promises on this machine and this disk?"""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.options import wants_json

if TYPE_CHECKING:
    from penstock.testing.torture import Findings, Scenario

EXIT_BROKEN = 1
EXIT_INTERRUPTED = 130
MINUTES_MAX = 7 * 24 * 60
SEED_MAX = (1 << 32) - 1
# What an engine leaves in its directory; a directory with one of them belongs to a broker.
BROKER_FILES = ("LOCK", "topics", "journal", "clean-shutdown")


class ScenarioChoice(StrEnum):
    KILL = "kill"
    POWERCUT = "powercut"
    FSYNC = "fsync"
    FULL_DISK = "full-disk"
    ALL = "all"


def torture(
    context: typer.Context,
    minutes: Annotated[
        float, typer.Option("--minutes", "-m", metavar="N", min=0.0, max=MINUTES_MAX, help="How long to run.")
    ] = 2.0,
    scenario: Annotated[
        ScenarioChoice, typer.Option("--scenario", help="Faults to inject.", case_sensitive=False)
    ] = ScenarioChoice.ALL,
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir",
            "-d",
            metavar="DIR",
            help="A directory on the disk to test; everything happens in a new directory below it.",
            show_default="the current directory",
        ),
    ] = Path(),
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            max=SEED_MAX,
            help="Repeat the random choices of another run.",
            show_default="random",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the last directory even if no guarantee was violated.")
    ] = False,
    flushes_broken: Annotated[bool, typer.Option("--break-flushes", hidden=True)] = False,
) -> None:
    """Run brokers under faults on this disk and check that no acknowledged record is lost.

    Each round starts a broker, writes to it over several protocols, injects a
    fault (kill -9, a simulated power cut, failing flushes, a full disk), starts
    it again, and compares what it holds with what it acknowledged. Exits with 1
    as soon as a guarantee is violated. Other brokers and existing data are not
    touched.

    Examples:
    $ penstock torture --minutes 10 --data-dir /var/lib
    $ penstock torture --scenario powercut --seed 7
    """
    import random

    from penstock.testing.torture import SCENARIOS, Torture

    _check_directory(data_dir)
    seed = random.SystemRandom().randint(0, SEED_MAX) if seed is None else seed
    scenarios: list[Scenario] = [each for each in SCENARIOS if scenario in (ScenarioChoice.ALL, each)]
    directory = Path(tempfile.mkdtemp(prefix="penstock-torture-", dir=data_dir.resolve()))
    interrupted = False
    started_s = time.monotonic()
    try:
        with _progress(minutes * 60) as show, _interruptible():
            run = Torture(
                directory, seed=seed, scenarios=scenarios, keep=keep, flushes_broken=flushes_broken, on_round=show
            )
            try:
                run.run(minutes * 60)
            except KeyboardInterrupt:
                interrupted = True
        findings = run.findings
        kept = directory if keep else findings.kept
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    if kept is None:
        shutil.rmtree(directory)
    command = ["penstock", "torture", "--seed", str(seed), "--scenario", scenario, "--minutes", f"{minutes:g}"]
    if wants_json(context):
        terminal.print_json(_as_json(findings, seed, time.monotonic() - started_s, kept, interrupted=interrupted))
    else:
        _print(findings, shlex.join(command), kept, interrupted=interrupted)
    if not findings.ok:
        raise typer.Exit(EXIT_BROKEN)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _check_directory(data_dir: Path) -> None:
    """Raise InvalidRequest if there is no room for a run in this directory, or if it is a broker's own."""
    from penstock.errors import InvalidRequest
    from penstock.testing.torture import FREE_BYTES_MIN
    from penstock.units import format_size

    if not data_dir.is_dir():
        raise InvalidRequest(f"--data-dir {data_dir}: there is no such directory; name one on the disk to test")
    found = [name for name in BROKER_FILES if (data_dir / name).exists()]
    if found:
        raise InvalidRequest(
            f"--data-dir {data_dir}: this is the data directory of a broker (it has {found[0]}); name another directory on that disk, "
            "such as the one it is in"
        )
    free_bytes = shutil.disk_usage(data_dir).free
    if free_bytes < FREE_BYTES_MIN:
        raise InvalidRequest(
            f"--data-dir {data_dir}: only {free_bytes >> 20} MiB are free, and this needs {format_size(FREE_BYTES_MIN)}"
        )


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does, and let nothing interrupt what follows: no process and no directory is left behind."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def interrupt(*_: object) -> None:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(seconds: float) -> Iterator[Callable[[Findings], None]]:
    """A live line on standard error if a person watches; gives what is to be called after each round."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn())
    with Progress(*columns, console=terminal.console(stderr=True), transient=True) as bar:
        task = bar.add_task("torture: first round", total=seconds or None)
        started_s = time.monotonic()

        def show(findings: Findings) -> None:
            rounds, acked, lost = (
                sum(getattr(each, name) for each in findings.results) for name in ("rounds", "acked", "lost")
            )
            text = f"torture: {rounds} rounds, {acked:,} acknowledged, {lost} lost"
            bar.update(task, completed=min(seconds, time.monotonic() - started_s), description=text)

        yield show


def _print(findings: Findings, command: str, kept: Path | None, *, interrupted: bool) -> None:
    results = findings.results
    lines: dict[str, list[str]] = {
        "rounds": [f"{each.rounds:,}" for each in results],
        "records sent": [f"{each.sent:,}" for each in results],
        "acknowledged": [f"{each.acked:,}" for each in results],
        "refused": [f"{each.refused:,}" for each in results],
        "unknown": [f"{each.unknown:,}" for each in results],
        "lost": [f"{each.lost:,}" for each in results],
        "duplicated": [f"{each.duplicated:,}" for each in results],
        "wrong data served": [f"{each.wrong_data_served:,}" for each in results],
        "stuck": [f"{each.stuck:,}" for each in results],
        "restart, s": [f"{each.restart_s_max:.1f}" for each in results],
    }
    scenarios = [each.scenario for each in results]
    terminal.print_table(["", *scenarios], [[name, *cells] for name, cells in lines.items()], right=scenarios)
    print()
    for line in findings.problems:
        print(terminal.visible(line))
    verdict = "every promise was kept" if findings.ok else "A PROMISE WAS BROKEN"
    print(f"{'interrupted; so far ' if interrupted else ''}{verdict}")
    print(f"reproduce with: {command}")
    if kept is not None:
        print(f"kept: {terminal.visible(str(kept))}")


def _as_json(findings: Findings, seed: int, seconds: float, kept: Path | None, *, interrupted: bool) -> dict[str, Any]:
    return {
        "ok": findings.ok,
        "interrupted": interrupted,
        "seed": seed,
        "seconds": seconds,
        "scenarios": [asdict(each) for each in findings.results],
        "problems": findings.problems,
        "kept": None if kept is None else str(kept),
    }

"""The command around the rounds: what it prints, how it ends, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import torture
from penstock.testing.torture import SCENARIOS
from tests.cli.conftest import Run


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    directory = tmp_path / "disk"
    directory.mkdir()
    return directory


@pytest.mark.timeout(120)
def test_a_run_that_finds_nothing_ends_with_0_and_leaves_nothing(run: Run, disk: Path) -> None:
    result = run("torture", "--minutes", "0", "--scenario", "kill", "--seed", "5", "--data-dir", str(disk))
    assert result.code == 0, result.text
    heading, *lines = result.text.splitlines()
    assert heading.split() == ["kill"]
    figures = {
        name.strip(): int(figure.replace(",", "")) for line in lines[:9] for name, figure in [line.rsplit(None, 1)]
    }
    assert (figures["rounds"], figures["lost"], figures["duplicated"]) == (1, 0, 0)
    assert (figures["wrong data served"], figures["stuck"]) == (0, 0)
    assert figures["records sent"] >= figures["acknowledged"] > 0
    assert lines[10:] == [
        "",
        "every promise was kept",
        "reproduce with: penstock torture --seed 5 --scenario kill --minutes 0",
    ]
    assert list(disk.iterdir()) == []


@pytest.mark.timeout(120)
def test_a_loss_is_reported_and_ends_with_1_and_the_directory_stays(run: Run, disk: Path) -> None:
    result = run(
        "torture", "--minutes", "1", "--scenario", "kill", "--data-dir", str(disk), "--break-flushes", "--json"
    )
    assert result.code == 1
    found = json.loads(result.text)
    assert not found["ok"]
    (scenario,) = found["scenarios"]
    assert scenario["lost"] > 0
    assert scenario["wrong_data_served"] == 0
    assert found["problems"]
    kept = Path(found["kept"])
    assert kept.is_relative_to(disk)
    assert (kept / "data" / "topics").is_dir()


@pytest.mark.timeout(120)
def test_the_directory_stays_when_that_is_asked_for(run: Run, disk: Path) -> None:
    result = run("torture", "--minutes", "0", "--scenario", "kill", "--data-dir", str(disk), "--keep")
    assert result.code == 0
    (kept,) = disk.iterdir()
    assert result.text.endswith(f"kept: {kept}\n")


def test_every_scenario_can_be_chosen() -> None:
    assert {*torture.ScenarioChoice} == {*SCENARIOS, "all"}


@pytest.mark.parametrize("name", torture.BROKER_FILES)
def test_the_directory_of_a_broker_is_refused(run: Run, disk: Path, name: str) -> None:
    (disk / name).mkdir()
    result = run("torture", "--data-dir", str(disk))
    assert result.code == 1
    assert f"this is the data directory of a broker (it has {name})" in result.err
    assert [path.name for path in disk.iterdir()] == [name]


def test_a_directory_that_is_not_there_is_refused(run: Run, disk: Path) -> None:
    result = run("torture", "--data-dir", str(disk / "nothing"))
    assert result.code == 1
    assert "there is no such directory" in result.err


def test_a_disk_with_too_little_space_is_refused(run: Run, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.testing.torture.FREE_BYTES_MIN", 1 << 60)
    result = run("torture", "--data-dir", str(disk))
    assert result.code == 1
    assert "MiB are free, and this needs 1048576 TiB" in result.err
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [["--minutes", "-1"], ["--minutes", "nan"], ["--scenario", "flood"], ["--seed", "-1"], ["--seed", "x"]],
    ids=" ".join,
)
def test_a_wrong_option_is_an_error_of_the_command_line(run: Run, disk: Path, args: list[str]) -> None:
    assert run("torture", "--data-dir", str(disk), *args).code == 2
    assert list(disk.iterdir()) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_an_interrupted_run_tells_what_it_found_and_leaves_nothing(disk: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "torture", "--minutes", "60", "--data-dir", str(disk), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        broker = wait_for_child(process, disk)
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["ok"]
    assert found["interrupted"]
    assert list(disk.iterdir()) == []
    assert not Path(f"/proc/{broker}").exists()


def wait_for_child(process: subprocess.Popen[str], disk: Path) -> int:
    """Wait until a broker has its data directory open; returns its process id."""
    while process.poll() is None:
        if any(disk.rglob("LOCK")):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            if children:
                return int(children[0])
    raise AssertionError(process.communicate()[1])

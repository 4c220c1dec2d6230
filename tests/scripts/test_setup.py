"""The first command on a fresh machine works, or says what is missing. The machine's own programs are played by scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# What the scripts call besides the programs that a test plays.
REAL_PROGRAMS = ("bash", "dirname", "env", "id")


class Machine:
    """A PATH with nothing in it but a shell's basics and what `program` adds."""

    def __init__(self, directory: Path) -> None:
        self._bin = directory
        for name in REAL_PROGRAMS:
            self.real(name)

    def real(self, name: str) -> None:
        """Add a program of this machine as it is."""
        program = shutil.which(name)
        assert program is not None
        (self._bin / name).symlink_to(program)

    def program(self, name: str, script: str) -> None:
        path = self._bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{script}\n")
        path.chmod(0o755)

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "scripts" / script, *arguments],
            env={"PATH": str(self._bin), **variables},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ('[ "$1" = --version ] && echo "Python 3.9.18"; exit 1', "is Python 3.9.18"),
        ("exit 127", "is not there"),
    ],
)
def test_setup_without_a_new_enough_python_says_which_one_it_needs(machine: Machine, script: str, told: str) -> None:
    machine.program("python3", script)
    result = machine.run("setup")
    assert result.returncode == 1
    assert "needs Python 3.11 or newer, and python3 " + told in result.stderr
    assert "make setup PYTHON=" in result.stderr


def test_packages_that_are_installed_cost_nothing(machine: Machine) -> None:
    machine.program("dpkg-query", "echo -n installed")
    result = machine.run("install-debian-packages", "redis-server", "strace")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_without_apt_the_missing_packages_are_named(machine: Machine) -> None:
    machine.program("dpkg-query", '[ "${!#}" = strace ] && echo -n installed || exit 1')
    result = machine.run("install-debian-packages", "redis-server", "strace")
    assert result.returncode == 1
    assert "not installed: redis-server (Debian package names)" in result.stderr


def test_without_the_right_to_install_the_command_to_run_is_named(machine: Machine) -> None:
    machine.program("dpkg-query", "exit 1")
    machine.program("apt-get", "exit 1")
    machine.program("id", "echo 1000")
    result = machine.run("install-debian-packages", "redis-server")
    assert result.returncode == 1
    assert "Run: sudo apt-get install redis-server" in result.stderr


def test_missing_packages_are_installed_after_fetching_lists_once(machine: Machine, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    machine.program("dpkg-query", "exit 1")
    machine.program("id", "echo 0")
    # The first attempt fails as it does in a container without package lists.
    machine.program(
        "apt-get", f'echo "$1" >> {calls}; if [ "$1" = update ]; then : > {calls}.lists; else [ -e {calls}.lists ]; fi'
    )
    result = machine.run("install-debian-packages", "redis-server")
    assert result.returncode == 0, result.stderr
    assert calls.read_text().split() == ["install", "update", "install"]


def test_a_java_that_is_there_is_left_alone(machine: Machine) -> None:
    machine.program("python", "exit 0")
    result = machine.run("install-java", PYTHON="python")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_without_java_and_without_the_right_to_install_it_setup_continues_and_says_what_to_do(machine: Machine) -> None:
    machine.program("python", "exit 1")
    machine.program("dpkg-query", "exit 1")
    machine.program("apt-get", "exit 1")
    machine.program("id", "echo 1000")
    result = machine.run("install-java", PYTHON="python")
    assert result.returncode == 0
    assert "sudo apt-get install openjdk-17-jre-headless" in result.stderr


def test_java_is_installed_where_it_may_be(machine: Machine, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    machine.program("python", f"[ -e {installed} ]")
    machine.program("dpkg-query", "exit 1")
    machine.program("id", "echo 0")
    machine.program("apt-get", f'[[ "$*" == *openjdk-17-jre-headless* ]] && : > {installed}')
    result = machine.run("install-java", PYTHON="python")
    assert (result.returncode, result.stderr) == (0, "")
    assert installed.exists()


def test_make_without_a_target_lists_every_target() -> None:
    listed = subprocess.run(
        ["make"], cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"MAKEFLAGS": ""}
    )
    for target in ("setup", "run", "demo", "test", "lint", "format", "bench", "clean"):
        assert f"make {target} " in listed.stdout

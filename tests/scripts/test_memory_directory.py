"""Tests have their files in memory only where that has room for them; the machine's `df` is played by a script."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MEMORY = Path("/dev/shm")
MEMORY_KIB_MIN = 8 << 20


def directory(free_kib: str, tmp_path: Path) -> str:
    """What the script prints where `df` says so."""
    df = tmp_path / "df"
    df.write_text(f"#!/bin/sh\necho Avail\necho '{free_kib}'\n")
    df.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [ROOT / "scripts" / "memory-directory"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("free_kib", ["65536", "-", ""])
def test_files_stay_on_disk_where_memory_has_no_room(free_kib: str, tmp_path: Path) -> None:
    assert directory(free_kib, tmp_path) == str(tmp_path)


def test_files_are_in_memory_where_it_has_room_and_runs_programs(tmp_path: Path) -> None:
    fields = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    available_kib = next(int(field[1]) for field in fields if field[0] == "MemAvailable:")
    mounted = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    runs_programs = any(Path(field[1]) == MEMORY and "noexec" not in field[3].split(",") for field in mounted)
    used = runs_programs and available_kib >= MEMORY_KIB_MIN
    assert directory(str(MEMORY_KIB_MIN), tmp_path) == str(MEMORY if used else tmp_path)

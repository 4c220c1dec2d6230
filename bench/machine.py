"""What a figure depends on beside the code: the machine, its disk and the versions in play."""

from __future__ import annotations

import os
import platform
import re
import shutil
import statistics
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench import kafka, nats
from penstock.errors import JavaMissing
from penstock.spark.java import find_java, java_version

FLUSH_SAMPLES: Final = 200


def describe(directory: Path) -> dict[str, str]:
    """Facts by name, in the order to show them."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB",
        "file system": file_system(directory),
        "flush of 1 KiB": _flush_times(directory),
        "kernel": platform.release(),
        "Python": f"{platform.python_version()}, uvloop {version('uvloop')}",
        "Penstock": version("penstock"),
        "Redis": _redis_version(),
        "NATS": nats.version(),
        "Spark": f"{version('pyspark')}, {_java()}",
        "Kafka": kafka.versions(),
    }


def file_system(directory: Path) -> str:
    """The type of the file system that holds a directory."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [mount for mount in mounts if directory.resolve().is_relative_to(mount[1])]
    return max(holding, key=lambda mount: len(mount[1]))[2]


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _flush_times(directory: Path) -> str:
    percentiles = flush_times_us(directory)
    return f"{percentiles[49]:.0f} us median, {percentiles[98]:.0f} us at 99 %"


def flush_times_us(directory: Path) -> list[float]:
    """Percentiles 1 to 99 of what a flush of 1 KiB takes."""
    path = directory / "flush-probe"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    times = []
    try:
        for number in range(FLUSH_SAMPLES):
            os.pwrite(fd, b"x" * 1024, number * 1024)
            started = time.perf_counter()
            os.fdatasync(fd)
            times.append(1e6 * (time.perf_counter() - started))
    finally:
        os.close(fd)
        path.unlink()
    return statistics.quantiles(times, n=100)


def _java() -> str:
    try:
        return f"Java {java_version(find_java(os.environ))}"
    except JavaMissing:
        return "no Java"


def _redis_version() -> str:
    program = shutil.which("redis-server")
    if program is None:
        return "not installed"
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\S+)", output)
    return found[1] if found else output.strip()

"""The checks of `penstock doctor`: what a machine must have to run a broker well, each with what to do where it has not.

A check measures one thing and never changes the machine: what it writes, it writes into a file of its own that it removes.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import os
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from penstock.cli.admin_access import UnverifiedAccess
from penstock.cli.sample import Sample, fetch
from penstock.errors import AuthenticationRequired, ConfigError, JavaMissing, PenstockError
from penstock.log.kafka.settings import KafkaSettings
from penstock.net.listener import listen_once
from penstock.spark.java import USUAL_DIRECTORIES, find_java, java_version
from penstock.units import Address, parse_address, round_size

ADMIN = "admin"
"""The name of the admin address among the listeners."""
UDP = "/udp"
"""Behind an address that is listened on over UDP."""
PYTHON_MIN = (3, 11)
SPARK_VERSIONS = ("4.2.", "4.3.")
OPEN_FILES_ADVISED = 16_384
OPEN_FILES_MIN = 1_024
UDP_BUFFER_BYTES_ADVISED = 4 << 20
FREE_BYTES_ADVISED = 5 << 30
FREE_BYTES_MIN = 256 << 20
FLUSHES_MAX = 200
FLUSH_S_MAX = 2.0
FLUSH_BYTES = 4096
FLUSH_P99_MS_ADVISED = 20.0
# A flush that returns faster than any storage can is one that a cache without a battery answered.
FLUSH_P50_MS_CREDIBLE = 0.005
VOLATILE_FILE_SYSTEMS = ("tmpfs", "ramfs")
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: `advice` says what to do unless all is well."""

    check: str
    status: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def python() -> Finding:
    found = "{}.{}.{}".format(*sys.version_info[:3])
    if sys.version_info < PYTHON_MIN:
        return Finding("Python", "fail", found, "install Python {}.{} or later".format(*PYTHON_MIN))
    return Finding("Python", "ok", found)


def packages(version_of: Callable[[str], str] = version) -> Finding:
    """penstock-client has modules that penstock has too: of another version, they replace those, or are replaced."""
    own = version_of("penstock")
    try:
        client = version_of("penstock-client")
    except PackageNotFoundError:
        return Finding("Penstock", "ok", own)
    if client == own:
        return Finding("Penstock", "ok", f"{own}, with penstock-client")
    again = "pip uninstall penstock-client && pip install --force-reinstall --no-deps penstock"
    return Finding("Penstock", "fail", f"{own} and penstock-client {client} are mixed", f"keep one of them: {again}")


def uvloop() -> Finding:
    try:
        importlib.import_module("uvloop")
    except ImportError as error:
        return Finding(
            "uvloop", "fail", str(error), "install penstock again with: pip install --force-reinstall penstock"
        )
    return Finding("uvloop", "ok", version("uvloop"))


def spark(version_of: Callable[[str], str] = version) -> Finding:
    """Tables and pipelines need what is installed on top; the broker does not."""
    install = 'for tables and pipelines run: pip install "penstock[spark]"'
    try:
        found = version_of("pyspark")
        for name in ("pandas", "pyarrow"):
            version_of(name)
    except PackageNotFoundError as error:
        return Finding("Spark", "ok", f"not wanted ({error.name} is not installed); {install}")
    if not found.startswith(SPARK_VERSIONS):
        known = " and ".join(f"{each}x" for each in SPARK_VERSIONS)
        return Finding("Spark", "warn", found, f"this version of Penstock works with {known}: {install}")
    return Finding("Spark", "ok", found)


def java(env: Mapping[str, str] = os.environ, directories: Iterable[Path] = USUAL_DIRECTORIES) -> Finding:
    """Spark runs on Java, the same that a session finds; the broker does not need it."""
    try:
        home = find_java(env, directories)
    except JavaMissing as error:
        return Finding("Java", "warn", "none that fits", f"only Spark needs it. {error}")
    return Finding("Java", "ok", f"{java_version(home)} at {home}")


def open_files(limits: Callable[[], tuple[int, int]] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)) -> Finding:
    """Each connection and each active segment takes a descriptor."""
    limit = limits()[0]
    if limit == resource.RLIM_INFINITY or limit >= OPEN_FILES_ADVISED:
        return Finding("open files", "ok", "no limit" if limit == resource.RLIM_INFINITY else f"{limit} at most")
    advice = f"raise it with: ulimit -n {OPEN_FILES_ADVISED} (LimitNOFILE= in a systemd unit)"
    return Finding("open files", "fail" if limit < OPEN_FILES_MIN else "warn", f"{limit} at most", advice)


def udp_buffer(setting: Path = Path("/proc/sys/net/core/rmem_max")) -> Finding:
    """The kernel drops datagrams that do not fit the buffer of a socket that is not read fast enough."""
    check = "UDP buffer"
    try:
        size_bytes = int(setting.read_text())
    except (OSError, ValueError):
        return Finding(check, "ok", "unknown")
    found = f"{round_size(size_bytes)} at most"
    if size_bytes >= UDP_BUFFER_BYTES_ADVISED:
        return Finding(check, "ok", found)
    advice = f"give Fujin and Felix more room with: sysctl -w net.core.rmem_max={UDP_BUFFER_BYTES_ADVISED}"
    return Finding(check, "warn", found, advice)


class Guarded:
    """A broker that tells nothing of itself without a login."""


def running_broker(admin_bind: str | None, *, tls: bool = False) -> Sample | Guarded | None:
    """The broker that answers at the admin address of the configuration, None if there is none."""
    if admin_bind is None:
        return None
    address = parse_address(admin_bind)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - compared, not bound
    try:
        return fetch(f"{'https' if tls else 'http'}://{Address(host, address.port)}", UnverifiedAccess())
    except AuthenticationRequired:
        return Guarded()
    except PenstockError:
        return None


def broker(running: Sample | Guarded | None) -> Finding:
    """Whether a broker runs, and is ready."""
    if running is None:
        return Finding("broker", "ok", "not running")
    if isinstance(running, Guarded):
        return Finding("broker", "ok", "a Penstock broker is running; log in to see how it is with: penstock status")
    if running.ready:
        return Finding("broker", "ok", f"penstock {running.version} is running and ready")
    advice = "see what is wrong with: penstock status"
    return Finding("broker", "fail", f"penstock {running.version} is running, not ready: {running.problems[0]}", advice)


def port(name: str, bind: str, running: Sample | Guarded | None = None) -> Finding:
    """Whether the address can be listened on now, or the running broker does; over UDP where it ends in `/udp`."""
    check = f"port {name}"
    is_told = isinstance(running, Sample) and _is_listening(running, name, bind.removesuffix(UDP))
    if is_told or (running is not None and name == ADMIN):
        return Finding(check, "ok", f"{bind} is in use by this broker")
    try:
        listen_once(bind.removesuffix(UDP), socket.SOCK_DGRAM if bind.endswith(UDP) else socket.SOCK_STREAM)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and isinstance(running, Guarded):
            return Finding(check, "ok", f"{bind} is in use, by this broker as far as can be told without a login")
        advice = (
            "another program listens there: stop it or choose another port"
            if error.errno == errno.EADDRINUSE
            else "choose an address of this machine and a port this user may open (above 1023)"
        )
        return Finding(check, "fail", f"{bind}: {error.strerror or error}", advice)
    return Finding(check, "ok", f"{bind} is free")


def _is_listening(running: Sample, name: str, bind: str) -> bool:
    listener = running.listeners.get(name)
    return listener is not None and listener.address == str(parse_address(bind))


def existing_directory(data_dir: Path) -> Path:
    """The data directory, or the nearest one above it that exists and in which it would be made."""
    directory = data_dir.absolute()
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return directory


def writable(data_dir: Path) -> Finding:
    directory = existing_directory(data_dir)
    shown = str(directory) if directory == data_dir.absolute() else f"{data_dir} (to be made in {directory})"
    if not directory.is_dir():
        return Finding("data directory", "fail", f"{directory} is not a directory", "choose another with --data-dir")
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        advice = "give this user write access, or choose another with --data-dir"
        return Finding("data directory", "fail", f"{shown}: {error.strerror or error}", advice)
    return Finding("data directory", "ok", shown)


def free_space(data_dir: Path) -> Finding:
    free = shutil.disk_usage(existing_directory(data_dir)).free
    status: Literal["ok", "warn", "fail"] = (
        "ok" if free >= FREE_BYTES_ADVISED else "warn" if free >= FREE_BYTES_MIN else "fail"
    )
    advice = (
        ""
        if status == "ok"
        else "make room, or choose a larger disk with --data-dir; retention bounds what a topic takes"
    )
    return Finding("free space", status, round_size(free), advice)


def file_system(data_dir: Path, mounts: Path = Path("/proc/mounts")) -> Finding:
    """The kind of file system below the data directory: some forget, and some only say that they flushed."""
    kind = _file_system_of(existing_directory(data_dir).resolve(), mounts)
    if kind is None:
        return Finding("file system", "ok", "unknown")
    if kind in VOLATILE_FILE_SYSTEMS:
        advice = "it lives in memory and is empty after a restart: choose a disk with --data-dir"
        return Finding("file system", "warn", kind, advice)
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding(
            "file system", "warn", kind, "it is on the network: a local disk is faster, and its flushes can be trusted"
        )
    return Finding("file system", "ok", kind)


def _file_system_of(directory: Path, mounts: Path) -> str | None:
    best, kind = -1, None
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, place, found, *_ = line.split(" ")
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place)
        if directory.is_relative_to(place) and len(place) >= best:
            best, kind = len(place), found
    return kind


def flush_latencies_ms(directory: Path, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """How long the disk takes to store 4 KiB for good, measured a bounded number of times; sorted."""
    latencies = []
    began = clock()
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        data = os.urandom(FLUSH_BYTES)
        for _ in range(FLUSHES_MAX):
            file.write(data)
            before = clock()
            os.fdatasync(file.fileno())
            after = clock()
            latencies.append((after - before) * 1000)
            if after - began > FLUSH_S_MAX:
                break
    return sorted(latencies)


def flush(data_dir: Path, measure: Callable[[Path], list[float]] = flush_latencies_ms) -> Finding:
    """What a durable acknowledgement costs at least."""
    try:
        latencies = measure(existing_directory(data_dir))
    except OSError as error:
        return Finding(
            "disk flush", "fail", str(error.strerror or error), "choose a data directory on a disk that works"
        )
    p50, p99 = latencies[len(latencies) // 2], latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)]
    found = f"p50 {p50:.3g} ms, p99 {p99:.3g} ms"
    if p50 < FLUSH_P50_MS_CREDIBLE:
        return Finding("disk flush", "warn", found, "too fast to be true: check that the disk does not ignore flushes")
    if p99 > FLUSH_P99_MS_ADVISED:
        advice = 'single records will wait this long: use a faster disk, more in flight, or durability = "interval:<ms>" per topic'
        return Finding("disk flush", "warn", found, advice)
    return Finding("disk flush", "ok", found)


def pipeline(name: str, file: Path, password_file: Path | None = None) -> Finding:
    """Whether a pipeline that the configuration declares could be started here, as far as its file and what is installed tell."""
    from penstock.spark.pipelines.model import load_pipeline

    check = f"pipeline {name}"
    missing = [each for each in ("deltalake", "pyarrow", "pyspark") if importlib.util.find_spec(each) is None]
    if missing:
        return Finding(check, "fail", f"{missing[0]} is not installed", 'run: pip install "penstock[spark]"')
    try:
        described = load_pipeline(file)
    except ConfigError as error:
        return Finding(
            check, "fail", "; ".join(str(error).splitlines()), f"correct it, then: penstock pipeline run {file}"
        )
    if described.name != name:
        advice = "make the names under [[pipelines]] and in the file equal"
        return Finding(check, "fail", f"{file} describes pipeline {described.name}", advice)
    if described.connection.user is not None and (password_file is None or not os.access(password_file, os.R_OK)):
        advice = f"set password_file under [[pipelines]] to a file with the password of {described.connection.user}"
        return Finding(check, "fail", f"{password_file or 'no password_file'} cannot be read", advice)
    return Finding(check, "ok", str(file))


def kafka(settings: KafkaSettings, record_bytes_max: int) -> list[Finding]:
    """Whether the cluster that is to hold the log can be trusted with it."""

    async def check() -> list[Finding]:
        from penstock.log.kafka.check import check_cluster

        return [Finding(*finding) async for finding in check_cluster(settings, record_bytes_max)]

    try:
        return asyncio.run(check())
    except ConfigError as error:
        return [Finding("Kafka", "fail", str(error), 'pip install "penstock[kafka]"')]


def all_checks(
    data_dir: Path,
    binds: list[tuple[str, str]],
    *,
    admin_tls: bool = False,
    cluster: Callable[[], list[Finding]] | None = None,
) -> Iterator[Finding]:
    """Every check in turn; the slow ones last. `cluster` checks where the log is, if not in the data directory."""
    running = running_broker(dict(binds).get(ADMIN), tls=admin_tls)
    yield python()
    yield packages()
    yield uvloop()
    yield open_files()
    if any(bind.endswith(UDP) for _, bind in binds):
        yield udp_buffer()
    yield broker(running)
    for name, bind in binds:
        yield port(name, bind, running)
    access = writable(data_dir)
    yield access
    if cluster is not None:
        yield from cluster()
    else:
        yield free_space(data_dir)
        yield file_system(data_dir)
        if access.status == "ok":
            yield flush(data_dir)
    yield spark()
    yield java()

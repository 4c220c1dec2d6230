"""Each check of the doctor on a machine that is fine and on one that is not."""

from __future__ import annotations

import resource
import socket
import stat
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from penstock.cli import checks


def test_the_python_and_the_loop_of_this_machine_are_fine() -> None:
    assert checks.python().status == "ok"
    assert checks.uvloop().status == "ok"


def test_an_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PYTHON_MIN", (4, 0))
    finding = checks.python()
    assert (finding.status, finding.advice) == ("fail", "install Python 4.0 or later")


def test_a_missing_uvloop_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", fail)
    finding = checks.uvloop()
    assert (finding.status, finding.found) == ("fail", "No module named 'uvloop'")
    assert "pip install" in finding.advice


def java_that_says(directory: Path, text: str) -> dict[str, str]:
    program = directory / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"JAVA_HOME": str(directory)}


@pytest.mark.parametrize(
    ("text", "status", "found"),
    [
        ('openjdk version "17.0.9" 2023-10-17', "ok", "17 at"),
        ('openjdk version "21" 2023-09-19', "ok", "21 at"),
        ('java version "1.8.0_392"', "warn", "Java 8, and Spark needs Java 17 or newer"),
        ("no idea", "warn", "holds no Java"),
    ],
)
def test_java_counts_from_17_on(tmp_path: Path, text: str, status: str, found: str) -> None:
    finding = checks.java(java_that_says(tmp_path, text))
    assert finding.status == status
    assert found in finding.found + finding.advice


def test_without_java_only_spark_is_missing(tmp_path: Path) -> None:
    finding = checks.java({"PATH": str(tmp_path)}, directories=())
    assert (finding.status, finding.found) == ("warn", "none that fits")
    assert "only Spark needs it" in finding.advice
    assert "apt-get install" in finding.advice


@pytest.mark.parametrize(
    ("installed", "status", "told"),
    [
        ({"pyspark": "4.3.1", "pandas": "2.3", "pyarrow": "22.0"}, "ok", "4.3.1"),
        ({"pyspark": "4.2.1", "pandas": "2.3", "pyarrow": "22.0"}, "ok", "4.2.1"),
        ({"pyspark": "3.5.0", "pandas": "2.3", "pyarrow": "22.0"}, "warn", "3.5.0"),
        ({}, "ok", "not wanted (pyspark is not installed); for tables and pipelines run: pip install"),
        ({"pyspark": "4.3.1", "pandas": "2.3"}, "ok", "not wanted (pyarrow is not installed)"),
    ],
)
def test_spark_is_an_extra(installed: dict[str, str], status: str, told: str) -> None:
    def version_of(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    finding = checks.spark(version_of)
    assert finding.status == status
    assert finding.found.startswith(told)


@pytest.mark.parametrize(
    ("limit", "status"), [(resource.RLIM_INFINITY, "ok"), (65_536, "ok"), (4_096, "warn"), (256, "fail")]
)
def test_few_open_files_are_a_warning_and_very_few_a_failure(limit: int, status: str) -> None:
    finding = checks.open_files(lambda: (limit, limit))
    assert finding.status == status
    assert ("ulimit -n" in finding.advice) == (status != "ok")


def test_a_taken_port_fails_and_a_free_one_does_not() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        finding = checks.port("flymq", bind)
        assert finding.status == "fail"
        assert finding.advice.startswith("another program listens there")
    assert checks.port("flymq", bind).status == "ok"


@pytest.mark.parametrize(("setting", "status"), [("212992\n", "warn"), ("4194304\n", "ok"), ("nonsense", "ok")])
def test_a_small_buffer_for_datagrams_is_a_warning(tmp_path: Path, setting: str, status: str) -> None:
    (tmp_path / "rmem_max").write_text(setting)
    finding = checks.udp_buffer(tmp_path / "rmem_max")
    assert finding.status == status
    assert ("net.core.rmem_max=4194304" in finding.advice) == (status == "warn")
    assert checks.udp_buffer(tmp_path / "none").status == "ok"


def test_a_port_over_udp_is_another_one() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        finding = checks.port("fujin", f"{bind}/udp")
        assert (finding.status, finding.check) == ("fail", "port fujin")
        assert finding.found.startswith(f"{bind}/udp: ")
        assert checks.port("flymq", bind).status == "ok"
    assert checks.port("fujin", f"{bind}/udp").found == f"{bind}/udp is free"


def test_an_address_of_another_machine_fails() -> None:
    finding = checks.port("flymq", "192.0.2.1:9092")
    assert finding.status == "fail"
    assert finding.advice.startswith("choose an address of this machine")


def test_a_data_directory_that_does_not_exist_is_tried_where_it_would_be_made(tmp_path: Path) -> None:
    finding = checks.writable(tmp_path / "a" / "b")
    assert finding.status == "ok"
    assert f"to be made in {tmp_path}" in finding.found
    assert list(tmp_path.iterdir()) == []


def test_a_data_directory_that_is_a_file_or_read_only_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert checks.writable(file).status == "fail"
    assert "not a directory" in checks.writable(file / "below").found
    finding = checks.writable(Path("/proc/self"))
    assert finding.status == "fail"
    assert "write access" in finding.advice


@pytest.mark.parametrize(("free", "status"), [(50 << 30, "ok"), (1 << 30, "warn"), (1 << 20, "fail")])
def test_little_free_space_is_a_warning_and_almost_none_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, status: str
) -> None:
    class Usage:
        def __init__(self, free: int) -> None:
            self.free = free

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(free))
    assert checks.free_space(tmp_path / "new").status == status


@pytest.mark.parametrize(("kind", "status"), [("ext4", "ok"), ("xfs", "ok"), ("tmpfs", "warn"), ("nfs4", "warn")])
def test_a_file_system_that_forgets_or_is_far_away_is_a_warning(tmp_path: Path, kind: str, status: str) -> None:
    spaced = tmp_path / "a b"
    spaced.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(f"dev / btrfs rw 0 0\ndev {str(spaced).replace(' ', chr(92) + '040')} {kind} rw 0 0\n")
    finding = checks.file_system(spaced / "data", mounts)
    assert (finding.status, finding.found) == (status, kind)
    assert checks.file_system(tmp_path, mounts).found == "btrfs"
    assert checks.file_system(tmp_path, tmp_path / "none").found == "unknown"


@pytest.mark.parametrize(
    ("latencies_ms", "status", "advice"),
    [
        ([0.2] * 99 + [0.9], "ok", ""),
        ([2.0] * 90 + [80.0] * 10, "warn", "single records will wait"),
        ([0.001] * 100, "warn", "too fast to be true"),
    ],
)
def test_a_slow_flush_and_an_incredible_one_are_warnings(
    tmp_path: Path, latencies_ms: list[float], status: str, advice: str
) -> None:
    finding = checks.flush(tmp_path, lambda directory: latencies_ms)
    assert finding.status == status
    assert finding.advice.startswith(advice)
    assert finding.found.startswith("p50 ")


def test_a_disk_that_cannot_flush_fails(tmp_path: Path) -> None:
    def broken(directory: Path) -> list[float]:
        raise OSError(5, "Input/output error")

    assert checks.flush(tmp_path, broken).found == "Input/output error"


def test_flushes_are_measured_a_bounded_number_of_times_and_leave_nothing_behind(tmp_path: Path) -> None:
    assert len(checks.flush_latencies_ms(tmp_path, lambda: 0.0)) == checks.FLUSHES_MAX
    seconds = iter(range(0, 1_000, 3))
    assert len(checks.flush_latencies_ms(tmp_path, lambda: float(next(seconds)))) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_writable_is_not_measured(tmp_path: Path) -> None:
    names = [finding.check for finding in checks.all_checks(Path("/proc/self"), [])]
    assert "disk flush" not in names
    names = [finding.check for finding in checks.all_checks(tmp_path, [("flymq", "127.0.0.1:0")])]
    assert names == [
        "Python",
        "Penstock",
        "uvloop",
        "open files",
        "broker",
        "port flymq",
        "data directory",
        "free space",
        "file system",
        "disk flush",
        "Spark",
        "Java",
    ]


@pytest.mark.parametrize(
    ("client", "status", "told"),
    [
        (None, "ok", "1.1"),
        ("1.1", "ok", "1.1, with penstock-client"),
        ("1.0", "fail", "1.1 and penstock-client 1.0 are mixed"),
    ],
)
def test_a_client_package_of_another_version_is_a_failure(client: str | None, status: str, told: str) -> None:
    def version_of(name: str) -> str:
        found = {"penstock": "1.1", "penstock-client": client}[name]
        if found is None:
            raise PackageNotFoundError(name)
        return found

    finding = checks.packages(version_of)
    assert (finding.status, finding.found) == (status, told)
    assert ("pip uninstall penstock-client" in finding.advice) == (status == "fail")


def test_declared_pipelines_are_checked_as_far_as_their_files_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, password = tmp_path / "shop.toml", tmp_path / "password"
    absent = checks.pipeline("shop", file)
    assert absent.status == "fail"
    assert "penstock pipeline init" in absent.found
    text = 'name = "shop"\ntopics = ["orders"]\ndirectory = "tables"\n[bronze]\n'
    file.write_text(text)
    assert checks.pipeline("shop", file) == checks.Finding("pipeline shop", "ok", str(file))
    other = checks.pipeline("other", file)
    assert (other.status, other.found) == ("fail", f"{file} describes pipeline shop")
    file.write_text(text + '[connection]\nuser = "ann"\n')
    assert checks.pipeline("shop", file, password).advice.endswith("a file with the password of ann")
    password.write_text("secret")
    assert checks.pipeline("shop", file, password).status == "ok"
    file.write_text(text + "[brnze]\n")
    assert "brnze is not a setting" in checks.pipeline("shop", file).found
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert checks.pipeline("shop", file).advice == 'run: pip install "penstock[spark]"'

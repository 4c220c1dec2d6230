"""`penstock serve` as a process: what it prints, how it stops, what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from tests.cli.conftest import Run

Serve = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts brokers as processes and ends those that a failing test leaves behind."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "penstock", "serve", *args],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env={name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_names_each_listener_then_is_ready_and_stops_cleanly(
    tmp_path: Path, serve: Serve, number: signal.Signals
) -> None:
    anywhere = [f"--set=listeners.{protocol}.bind=127.0.0.1:0" for protocol in ("blipmq", "rustlog", "fujin", "felix")]
    server = serve("--bind", "127.0.0.1:0", "--admin-bind", "127.0.0.1:0", "--data-dir", "data", *anywhere)
    assert server.stdout is not None
    flymq, blipmq, rustlog, fujin, felix, admin, ready = (server.stdout.readline() for _ in range(7))
    assert re.fullmatch(r"fujin on 127\.0\.0\.1:[1-9]\d*/udp\n", fujin)
    assert re.fullmatch(r"felix on 127\.0\.0\.1:[1-9]\d*/udp\n", felix)
    assert re.fullmatch(r"rustlog on 127\.0\.0\.1:[1-9]\d*\n", rustlog)
    assert re.fullmatch(r"blipmq on 127\.0\.0\.1:[1-9]\d*\n", blipmq)
    assert re.fullmatch(r"flymq on 127\.0\.0\.1:[1-9]\d*\n", flymq)
    assert re.fullmatch(r"admin on 127\.0\.0\.1:[1-9]\d*\n", admin)
    assert ready == "ready\n"
    with penstock.connect(f"flymq://{flymq.split()[-1]}") as client:
        client.send("orders", b"one")
    server.send_signal(number)
    assert (server.wait(), server.stdout.read()) == (0, "")
    assert (tmp_path / "data").is_dir()


def test_a_file_says_what_is_on_and_which_topics_there_are(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "penstock.toml").write_text(
        'data_dir = "log"\n[listeners.flymq]\nbind = "127.0.0.1:0"\n[[topics]]\nname = "orders"\npartitions = 3\n'
    )
    server = serve("--config", "penstock.toml")
    assert server.stdout is not None
    flymq, ready = (server.stdout.readline() for _ in range(2))
    assert ready == "ready\n"
    with penstock.connect(f"flymq://{flymq.split()[-1]}") as client:
        assert len(client.describe_topic("orders").partitions) == 3
    server.terminate()
    assert server.wait() == 0
    assert (tmp_path / "log").is_dir()


def test_a_port_that_is_taken_is_said_in_one_line(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run(
            *("serve", "--bind", bind, "--data-dir", "data", "--admin-bind", "127.0.0.1:0", "--log-level", "warning")
        )
    assert result.code == 1
    assert result.out == b""
    (line,) = result.err.splitlines()
    assert line.startswith("error: listeners.flymq.bind: cannot listen on ")
    assert bind in line
    assert not Path("data").exists()


def test_a_start_that_fails_gives_the_process_its_signals_back(run: Run) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run("serve", "--bind", bind, "--data-dir", "data", "--admin-bind", "127.0.0.1:0").code == 1
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (
            ["--bind", "0.0.0.0:0"],
            'Invalid value: --bind: listeners.flymq: bind = "0.0.0.0:0" can be reached from other machines',
        ),
        (["--durability", "maybe"], "Invalid value: --durability: durability: durability 'maybe' is not known"),
        (["--log-level", "loud"], 'Invalid value: --log-level: logging.level = "loud" is not known'),
        (["--config", "nope.toml"], "nope.toml does not exist: check the path"),
    ],
)
def test_a_wrong_setting_stops_it_before_it_starts(run: Run, args: list[str], error: str) -> None:
    result = run("serve", *args)
    assert result.code == (1 if "--config" in args else 2)
    assert result.err.startswith(f"error: {error}")
    assert not Path("penstock-data").exists()


def test_development_credentials_do_not_leave_the_machine(run: Run) -> None:
    result = run("serve", "--dev", "--bind", "0.0.0.0:0", "--set", "listeners.flymq.insecure=true")
    assert result.code == 1
    assert result.err.startswith("error: dev accepts well-known passwords, and listeners.flymq.bind = ")


def test_a_restore_that_was_interrupted_is_not_served(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "restored" / ".restoring").mkdir(parents=True)
    process = serve("--data-dir", "restored", "--bind", "127.0.0.1:0", "--admin-bind", "127.0.0.1:0")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert "holds a restore that was interrupted: run penstock restore again" in err


def test_programs_get_an_object_for_each_listener(serve: Serve) -> None:
    anywhere = [f"--set=listeners.{protocol}.bind=127.0.0.1:0" for protocol in ("blipmq", "rustlog", "fujin", "felix")]
    server = serve("--json", "--bind", "127.0.0.1:0", "--admin-bind", "127.0.0.1:0", *anywhere)
    assert server.stdout is not None
    lines = [json.loads(server.stdout.readline()) for _ in range(7)]
    assert [line.get("listener") for line in lines] == ["flymq", "blipmq", "rustlog", "fujin", "felix", "admin", None]
    assert lines[-1] == {"ready": True}
    with penstock.connect(f"flymq://{lines[0]['address']}") as client:
        assert client.topics() == []
    server.terminate()
    assert server.wait() == 0


@pytest.mark.parametrize("setting", ["listeners.fujin.bind", "admin.bind"])
def test_a_port_that_is_taken_leaves_no_directory(run: Run, setting: str) -> None:
    with socket.socket(type=socket.SOCK_DGRAM if "fujin" in setting else socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        if setting == "admin.bind":
            taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        binds = {f"listeners.{name}.bind": "127.0.0.1:0" for name in ("flymq", "blipmq", "rustlog", "fujin", "felix")}
        binds |= {"admin.bind": "127.0.0.1:0", setting: bind}
        result = run("serve", "--data-dir", "data", *(f"--set={key}={value}" for key, value in binds.items()))
    assert result.code == 1
    assert result.err.startswith(f"error: {setting}: cannot listen on {bind}")
    assert not Path("data").exists()

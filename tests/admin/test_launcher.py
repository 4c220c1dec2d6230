"""Pipelines as processes of their own: real ones, which fail early or wait for a server that does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.admin import launcher
from penstock.broker.access.checks import SYSTEM
from penstock.broker.pipelines import Report, Stage
from penstock.testing.broker import RunningBroker
from penstock.testing.clock import ManualClock
from tests.admin.api.asking import Asking, asking, on_loop
from tests.admin.launching import (
    SilentServer,
    await_end,
    declared,
    exists,
    process_of,
    silent_server,
    write_file,
)

pytestmark = pytest.mark.timeout(180)  # processes that give way to others may take long on a busy machine


@dataclass
class Starting:
    """A broker that may start two pipelines, one at a time."""

    ask: Asking
    directory: Path

    @property
    def broker(self) -> RunningBroker:
        return self.ask.broker

    def pipeline(self, name: str = "shop") -> dict[str, Any]:
        [found] = [each for each in self.ask.ok("GET", "/pipelines") if each["name"] == name]
        return dict(found)

    def start(self, name: str = "shop") -> dict[str, Any]:
        return dict(self.ask.ok("POST", f"/pipelines/{name}/start"))

    def failure(self, name: str = "shop") -> str:
        """Start it, and return why it failed."""
        self.start(name)
        await_end(self.broker, name)
        pipeline = self.pipeline(name)
        assert (pipeline["state"], pipeline["alive"]) == ("failed", False), self.ask.ok("GET", f"/pipelines/{name}/log")
        return str(pipeline["message"])


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Starting]:
    with asking(pipelines=declared(tmp_path, "shop", "second"), limits={"pipeline_processes_max": 1}) as ask:
        yield Starting(ask, tmp_path)


@pytest.fixture
def silent() -> Iterator[SilentServer]:
    with silent_server() as server:
        yield server


def test_a_declared_pipeline_is_listed_before_it_has_ever_run(starting: Starting) -> None:
    pipeline = starting.pipeline()
    assert (pipeline["state"], pipeline["alive"], pipeline["startable"]) == ("declared", False, True)
    assert (pipeline["process"], pipeline["stages"]) == (None, [])
    assert starting.ask.ok("GET", "/pipelines/shop/log") == {"text": ""}


def test_a_start_that_fails_says_why_and_can_be_repeated(starting: Starting) -> None:
    write_file(starting.directory, "shop", starting.broker.address)
    assert starting.failure().startswith("topic not found: gone")
    process = starting.pipeline()["process"]
    assert (process["exit_code"], process["ended_ms"] >= process["started_ms"]) == (1, True)
    assert "error: topic not found: gone" in starting.ask.ok("GET", "/pipelines/shop/log")["text"]
    write_file(starting.directory, "shop", starting.broker.address, unknown="1")
    assert "unknown is not a setting" in starting.failure()
    logs = starting.broker.data_dir / "pipelines"
    assert "topic not found" in (logs / "shop.log.1").read_text(), "the log before the last is kept"
    assert "topic not found" not in starting.ask.ok("GET", "/pipelines/shop/log")["text"]
    assert ((logs / "shop.log").stat().st_mode & 0o777, logs.stat().st_mode & 0o777) == (0o600, 0o700)


def test_without_the_extra_the_reason_names_the_command_that_installs_it(
    starting: Starting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "without"), os.environ.get("PYTHONPATH", "")]))
    write_file(starting.directory, "shop", starting.broker.address)
    assert 'pip install "penstock[spark]"' in starting.failure()


def test_only_declared_pipelines_whose_files_describe_them_are_started(starting: Starting) -> None:
    ask = starting.ask
    write_file(starting.directory, "other", starting.broker.address)
    for name in ("other", "..%2Fother", str(starting.directory / "other.toml").replace("/", "%2F")):
        assert ask("POST", f"/pipelines/{name}/start").code == "entry_not_found"
        assert ask("GET", f"/pipelines/{name}/log").code == "entry_not_found"
    missing = ask("POST", "/pipelines/shop/start")
    assert (missing.status, missing.code) == (409, "config")
    assert "shop.toml cannot be read (No such file or directory)" in missing.json["detail"]
    (starting.directory / "shop.toml").write_text('name = "another"\n')
    assert "describes pipeline 'another'" in ask("POST", "/pipelines/shop/start").json["detail"]
    (starting.directory / "shop.toml").write_bytes(b"name = \xff")
    assert "is not valid TOML" in ask("POST", "/pipelines/shop/start").json["detail"]
    assert starting.pipeline()["process"] is None


def test_a_pipeline_runs_once_and_not_more_pipelines_than_the_limit(starting: Starting, silent: SilentServer) -> None:
    for name in ("shop", "second"):
        write_file(starting.directory, name, silent.address)
    assert starting.start()["state"] == "starting"
    again, second = starting.ask("POST", "/pipelines/shop/start"), starting.ask("POST", "/pipelines/second/start")
    assert (again.status, again.code) == (409, "pipeline_running")
    assert (second.status, second.code) == (409, "limit_exceeded")
    assert "limits.pipeline_processes_max is 1" in second.json["detail"]
    assert starting.ask.ok("POST", "/pipelines/shop/stop") == {"asked": True}
    await_end(starting.broker, "shop")
    assert (starting.pipeline()["state"], starting.pipeline()["message"]) == ("stopped", "")
    assert starting.start("second")["alive"]


def test_a_process_has_a_session_of_its_own_and_nothing_of_the_broker(
    starting: Starting, silent: SilentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CLUSTER__SECRET", "of the broker alone")
    monkeypatch.setenv("AWS_REGION", "for the object store")
    write_file(starting.directory, "shop", silent.address)
    pid = starting.start()["process"]["pid"]
    silent.await_connection()
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert os.getpriority(os.PRIO_PROCESS, pid) == launcher.NICENESS
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == str(launcher.OOM_SCORE)
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"AWS_REGION=for the object store" in environment
    assert [each.partition(b"=")[0] for each in environment if each.startswith(b"PENSTOCK_")] == [b"PENSTOCK_RUN"]


def test_the_password_of_a_pipeline_is_that_of_its_file(tmp_path: Path, silent: SilentServer) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    pipelines = declared(tmp_path, "shop", password_file=str(tmp_path / "password"))
    with asking(pipelines=pipelines) as ask:
        write_file(tmp_path, "shop", silent.address)
        pid = ask.ok("POST", "/pipelines/shop/start")["process"]["pid"]
        assert b"PENSTOCK_PASSWORD=s3cret" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        shown = {each["name"]: each["value"] for each in ask.ok("GET", "/configuration")}
        assert shown["pipelines[0].password_file"] == str(tmp_path / "password")


def test_a_process_that_is_killed_has_failed(starting: Starting, silent: SilentServer) -> None:
    write_file(starting.directory, "shop", silent.address)
    pid = starting.start()["process"]["pid"]
    reports = starting.broker.server.broker.pipelines
    run, stages = process_of(starting.broker, "shop").run, [Stage("bronze/gone", "running", 7, 0, 0, 1, 1)]
    on_loop(starting.broker, reports.report(SYSTEM, "shop", Report(f"here.{run}", 1, "running", "", stages)))
    assert starting.pipeline()["state"] == "running", "what it reports counts"
    os.killpg(pid, signal.SIGKILL)
    await_end(starting.broker, "shop")
    pipeline = starting.pipeline()
    assert (pipeline["state"], pipeline["alive"], pipeline["process"]["exit_code"]) == ("failed", False, -9)
    assert "SIGKILL" in pipeline["message"]
    assert reports.infos()[0].state == "failed", "which outlives the broker"
    assert pipeline["stages"][0]["rows"] == 7
    assert starting.start()["state"] == "starting", "and nobody waits until it counts as silent"


def test_a_run_that_another_process_began_is_known_by_its_reports(tmp_path: Path) -> None:
    # Its clock stands still: the last report of that run and the start of the next one have the same time.
    with asking(ManualClock(), pipelines=declared(tmp_path, "shop")) as ask:
        starting = Starting(ask, tmp_path)
        write_file(tmp_path, "shop", ask.broker.address)
        reports = ask.broker.server.broker.pipelines
        on_loop(ask.broker, reports.report(SYSTEM, "shop", Report("elsewhere", 1, "running", "", [])))
        ask.broker.restart()
        starting.ask = ask = Asking(ask.broker, opened=ask.opened)
        refused = ask("POST", "/pipelines/shop/start")
        assert (refused.status, refused.code) == (409, "pipeline_running")
        assert ask.ok("POST", "/pipelines/shop/stop") == {"asked": True}
        reports = ask.broker.server.broker.pipelines
        assert on_loop(ask.broker, reports.report(SYSTEM, "shop", Report("elsewhere", 1, "stopped", "", [])))
        assert starting.failure().startswith("topic not found")


def test_pipelines_start_with_the_broker_and_end_with_it(tmp_path: Path, silent: SilentServer) -> None:
    write_file(tmp_path, "shop", silent.address)
    pipelines = [*declared(tmp_path, "missing", "shop", autostart=True), *declared(tmp_path, "later")]
    with RunningBroker(pipelines=pipelines) as broker:
        silent.await_connection()
        pid = process_of(broker, "shop").pid
        assert list(broker.server.launcher._processes) == ["shop"], (
            "one that cannot be started keeps nobody else from it"
        )
        assert exists(pid)
        broker.stop()
        assert not exists(pid)


def test_a_process_that_does_not_end_with_the_broker_is_killed_with_all_it_started(
    tmp_path: Path, silent: SilentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "END_S_MAX", 0.0)
    write_file(tmp_path, "shop", silent.address)
    with RunningBroker(pipelines=declared(tmp_path, "shop", autostart=True)) as broker:
        silent.await_connection()
        pid = process_of(broker, "shop").pid
        broker.stop()
        assert not exists(pid)
        assert process_of(broker, "shop").exit_code in (-signal.SIGTERM, -signal.SIGKILL)


def test_a_log_that_is_too_long_loses_its_older_half_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "LOG_BYTES_MAX", 1000)
    path = tmp_path / "shop.log"
    program = "import sys\nfor line in sys.stdin:\n    print(line, end='', flush=True)\n    sys.stderr.write('.')"
    with path.open("ab") as stream:
        writer = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=stream, stderr=subprocess.PIPE, bufsize=0
        )
    assert writer.stdin is not None
    assert writer.stderr is not None
    for number in range(300):
        writer.stdin.write(b"line %d\n" % number)
        assert writer.stderr.read(1) == b"."
        launcher._trim(path)
        assert path.stat().st_size <= 1000
    writer.communicate()
    lines = path.read_text().splitlines()
    assert lines == [f"line {number}" for number in range(300 - len(lines), 300)]
    assert len(lines) > 40
    launcher._trim(tmp_path / "none.log")


def test_the_end_of_a_log_has_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "LOG_TAIL_BYTES_MAX", 20)
    path = tmp_path / "shop.log"
    path.write_text("0123456789\nnext\nlast\n")
    assert launcher._tail(path) == "next\nlast\n"
    assert launcher._tail(tmp_path / "none.log") == ""


@pytest.mark.parametrize(
    ("code", "printed", "reason"),
    [
        (1, "starting Spark ...\nerror: a: mend it\nerror: b\n", "a: mend it; b"),
        (1, "Traceback\n  File x\nKeyError: 'x'\n\n", "KeyError: 'x'"),
        (3, "", "it ended with code 3 and has printed nothing"),
        (-15, "error: before\n", "it was ended by SIGTERM"),
        (-9, "", "it was ended by SIGKILL: memory may have run out"),
        (-63, "", "it was ended by signal 63"),
    ],
)
def test_the_reason_of_a_failure_is_what_the_process_said_last(code: int, printed: str, reason: str) -> None:
    assert launcher._reason(code, printed) == reason

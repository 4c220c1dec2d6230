from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.net.descriptors import raise_descriptor_limit
from penstock.testing.forkserver import ForkedProcess, ForkServer

PROGRAM = """
import os, sys, time
import preloaded
print(sys.argv, os.environ.get("COLOUR"), os.getcwd(), preloaded.pid != os.getpid(), flush=True)
print("an error", file=sys.stderr)
descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
print(max(descriptors) < 4, os.fstat(0).st_rdev == os.stat("/dev/null").st_rdev)
if sys.argv[1] == "wait":
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "preloaded.py").write_text("import os\npid = os.getpid()\n")
    (modules / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", f"{modules}:{os.environ.get('PYTHONPATH', '')}")
    server = ForkServer(["preloaded"])
    yield server
    server.close()


def run(server: ForkServer, *arguments: str, colour: str = "red") -> ForkedProcess:
    return server.start(["program", *arguments], {**os.environ, "COLOUR": colour})


def test_a_program_has_arguments_environment_directory_and_streams_of_its_own(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for colour, code in (("red", 0), ("blue", 3)):
        directory = tmp_path / colour
        directory.mkdir()
        monkeypatch.chdir(directory)
        program = run(server, str(code), "b c", colour=colour)
        with program.stdout:
            assert program.stdout.read().splitlines() == [
                f"{[str(directory.parent / 'modules' / 'program.py'), str(code), 'b c']} {colour} {directory} True",
                "an error",
                "True True",
            ]
        assert program.wait(10) == code
        assert program.poll() == code


def test_programs_run_side_by_side_and_end_by_signals(server: ForkServer) -> None:
    programs = [run(server, "wait") for _ in range(3)]
    for program in programs:
        assert "wait" in program.stdout.readline()
        assert program.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        programs[0].wait(0.01)
    for program, number in zip(programs, (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL), strict=True):
        program.send_signal(number)
        assert program.wait(10) == -number
        program.send_signal(signal.SIGKILL)  # has ended: nothing is signalled
        program.stdout.close()


def test_one_thread_ends_what_another_waits_for(server: ForkServer) -> None:
    program = run(server, "wait")
    waiting = threading.Event()

    def wait() -> int:
        waiting.set()
        return program.wait(10)

    with ThreadPoolExecutor(1) as pool, program.stdout:
        code = pool.submit(wait)
        waiting.wait()
        with pytest.raises(TimeoutError):
            code.result(0.05)
        program.send_signal(signal.SIGTERM)
        assert code.result(10) == -signal.SIGTERM


def test_a_program_that_has_ended_untold_is_signalled_in_vain(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = run(server, "0")
    with program.stdout:
        assert program.wait(10) == 0
    monkeypatch.setattr(ForkedProcess, "poll", lambda _: None)  # as between its end and the report of it
    program.send_signal(signal.SIGKILL)


def test_descriptors_above_1023_are_waited_for() -> None:
    raise_descriptor_limit()
    printed, status = os.pipe(), os.pipe()
    for descriptor, data in ((printed[1], b""), (status[1], struct.pack("=ii", 4711, 3))):
        os.write(descriptor, data)
        os.close(descriptor)
    program = ForkedProcess(printed[0], fcntl.fcntl(status[0], fcntl.F_DUPFD_CLOEXEC, 1024))
    os.close(status[0])
    assert program.stdout.read() == ""
    program.stdout.close()
    assert (program.pid, program.wait(10)) == (4711, 3)


def test_ctrl_c_is_for_the_programs_and_not_for_the_server(server: ForkServer) -> None:
    program = run(server, "wait")
    assert "wait" in program.stdout.readline()
    parent = int(Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGINT)
    program.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in program.stdout.read()
    assert program.wait(10) == -signal.SIGINT
    program.stdout.close()
    another = run(server, "0")
    with another.stdout:
        assert "red" in another.stdout.read()
    assert another.wait(10) == 0


def test_a_server_that_has_ended_is_told_from_a_program_that_has(server: ForkServer) -> None:
    program = run(server, "wait")
    assert "wait" in program.stdout.readline()
    parent = int(Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[1])
    try:
        os.kill(parent, signal.SIGKILL)
        with pytest.raises(ChildProcessError, match="fork server has ended"):
            program.wait(10)
        with pytest.raises(ChildProcessError, match="fork server has ended"):
            program.poll()
        another = run(server, "0")
        with another.stdout:
            assert another.wait(10) == 0
    finally:
        os.kill(program.pid, signal.SIGKILL)
        program.stdout.close()


def test_the_server_ends_with_its_caller(server: ForkServer, tmp_path: Path) -> None:
    caller = (
        "import os, sys\n"
        "from penstock.testing.forkserver import ForkServer\n"
        "program = ForkServer(['preloaded']).start(['program', '0'], os.environ)\n"
        "program.stdout.read()\n"
        "print(open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read(), flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", caller], stdout=subprocess.PIPE, text=True, check=True)
    # Its standard output was the server's as well: it is at its end once both are gone.
    (pid,) = done.stdout.split()
    assert int(pid) > 0

"""Starts Python programs by fork, from a process that has imported what they need: in a tenth of the time that an interpreter takes.

    server = ForkServer(["penstock.serving"])
    child = server.start(["penstock", "serve"], environment=os.environ)

The child is `python -m penstock serve` in all but its imports: it has standard streams, an environment and a process id of its own, and
ends as any process does. It is a child of the fork server, not of the caller, which learns of its end through a pipe.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from select import POLLIN, poll
from typing import Final

import msgspec

MESSAGE_BYTES_MAX: Final = 1 << 18
"""More than an environment has in practice; a message has to fit into the buffer of a socket."""
_NUMBER: Final = struct.Struct("=i")


class _Start(msgspec.Struct):
    """A request of a caller. Two descriptors are sent along: where the child prints, and the pipe for its process id and exit code."""

    command: list[str]
    """A module, as after `python -m`, and its arguments."""
    environment: dict[str, str]
    directory: str


class ForkedProcess:
    """A process that a fork server started; what `subprocess.Popen` is to one of our own."""

    def __init__(self, stdout: int, status: int) -> None:
        self.stdout = os.fdopen(stdout, encoding="utf-8", errors="replace")
        self._status = status
        weakref.finalize(self, os.close, status)
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.pid = self._number()

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal), or None while it runs."""
        return self._wait(0.0)

    def wait(self, timeout_s: float) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        code = self._wait(timeout_s)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the fork server is about to say so
                os.kill(self.pid, number)

    def _wait(self, timeout_s: float) -> int | None:
        # Not under the lock: one thread may end what another waits for. Not by select, which takes no descriptor above 1023.
        ended = poll()
        ended.register(self._status, POLLIN)
        if self.returncode is None and ended.poll(timeout_s * 1000):
            with self._lock:
                if self.returncode is None:
                    self.returncode = self._number()
        return self.returncode

    def _number(self) -> int:
        data = os.read(self._status, _NUMBER.size)
        if not data:
            raise ChildProcessError("the fork server has ended, so nothing is known of its children")
        number: int = _NUMBER.unpack(data)[0]
        return number


class ForkServer:
    """A process that starts others by fork, itself started with the first of them. It ends with `close` or with this process. If it is
    killed, the next start is that of another one."""

    def __init__(self, preload: Sequence[str]) -> None:
        """`preload` are modules to import before the first fork."""
        self._preload = list(preload)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess:
        """Start a module, as `python -m` does, with these arguments. Both its streams are `stdout` of what is returned."""
        request = msgspec.json.encode(_Start(list(command), dict(environment), str(os.getcwd())))  # noqa: PTH109 - text
        stdout, child_stdout = os.pipe()
        status, child_status = os.pipe()
        try:
            self._send(request, [child_stdout, child_status])
        except BaseException:
            os.close(stdout)
            os.close(status)
            raise
        finally:
            os.close(child_stdout)
            os.close(child_status)
        return ForkedProcess(stdout, status)

    def close(self) -> None:
        with self._lock:
            if self._control is not None and self._process is not None:
                self._control.close()
                self._process.wait()
                self._control = self._process = None

    def _send(self, request: bytes, descriptors: list[int]) -> None:
        try:
            socket.send_fds(self._connected(), [request], descriptors)
        except ConnectionError:  # the server was killed
            self.close()
            socket.send_fds(self._connected(), [request], descriptors)

    def _connected(self) -> socket.socket:
        with self._lock:
            if self._control is None:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    self._process = subprocess.Popen(  # noqa: S603 - the program is this interpreter
                        [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), *self._preload],
                        stdin=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        env={**os.environ, "PYTHONUNBUFFERED": "1"},
                    )
                self._control = ours
            return self._control


# --- in the fork server ---


def _serve(control: socket.socket) -> _Start | None:
    """Fork for each request. Returns the request in each child, and None in the server when nobody can send it another."""
    children: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in children:
                    selector.unregister(key.fd)
                    _report_end(key.fd, *children.pop(key.fd))
                    continue
                data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 2)
                if not data:
                    return None
                stdout, status = descriptors
                pid = os.fork()
                if not pid:
                    os.dup2(stdout, 1)
                    os.dup2(stdout, 2)
                    return msgspec.json.decode(data, type=_Start)
                os.close(stdout)
                os.write(status, _NUMBER.pack(pid))
                ended = os.pidfd_open(pid)
                children[ended] = pid, status
                selector.register(ended, selectors.EVENT_READ)


def _report_end(ended: int, pid: int, status: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(ended)
    try:
        os.write(status, _NUMBER.pack(code))
    except BrokenPipeError:
        pass  # nobody waits for it any more
    os.close(status)


def _become(request: _Start) -> None:
    """Become the requested program."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # The streams of the server may be files, with a position that these have not.
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(number, "w"), write_through=True) for number in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.directory)
    module, *arguments = request.command
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    descriptor, *preload = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent of this process
    for module in preload:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a child would copy all of it
    with socket.socket(fileno=int(descriptor)) as control:
        request = _serve(control)
        if request is not None:
            control.detach()
    if request is not None:
        _become(request)


if __name__ == "__main__":
    main()

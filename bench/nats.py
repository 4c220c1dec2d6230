"""A NATS server of our own on this machine, with JetStream, from what scripts/install-nats built."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from bench.dialects import nats_hello
from bench.processes import HOST, START_S_MAX, STOP_S_MAX, Program, free_port

CACHE: Final = Path(__file__).parent.parent / ".cache" / "nats"
INBOX: Final = b"_INBOX.api"


class Nats(Program):
    """`sync_interval` is how often a stream is flushed to disk: `always` is before each acknowledgement."""

    def __init__(self, directory: Path, sync_interval: str) -> None:
        program = nats_server()
        if program is None:
            raise RuntimeError("nats-server is not built: run scripts/install-nats")
        directory.mkdir(parents=True)
        self.port = free_port()
        config = directory / "nats.conf"
        config.write_text(
            f"listen: {HOST}:{self.port}\n"
            f'jetstream {{ store_dir: "{directory / "data"}", sync_interval: {sync_interval} }}\n'
        )
        with (directory / "nats.log").open("wb") as log:
            self._process = subprocess.Popen([program, "-c", str(config)], stdout=log, stderr=log)
        self._wait_until_ready()

    def request(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask JetStream for something; returns its reply."""
        payload = json.dumps(body or {}).encode()
        with socket.create_connection((HOST, self.port), timeout=STOP_S_MAX) as connection:
            nats_hello(connection, INBOX)
            connection.sendall(b"PUB $JS.API.%b %b %d\r\n%b\r\n" % (subject.encode(), INBOX, len(payload), payload))
            with connection.makefile("rb") as replies:
                head = replies.readline()
                while not head.startswith(b"MSG "):
                    if not head:
                        raise ConnectionError("NATS closed the connection")
                    head = replies.readline()
                reply: dict[str, Any] = json.loads(replies.read(int(head.split()[-1])))
        if "error" in reply:
            raise RuntimeError(f"NATS refused {subject}: {reply['error']}")
        return reply

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            try:
                self.request("INFO")
            except (OSError, RuntimeError):
                self._raise_if_ended("nats-server")
                time.sleep(0.05)
            else:
                return
        raise RuntimeError("nats-server did not get ready")


def version() -> str:
    program = nats_server()
    return "not built" if program is None else program.rpartition("-v")[2]


def nats_server() -> str | None:
    """The program, None if it was not built."""
    return next((str(path) for path in sorted(CACHE.glob("nats-server-*"))), None)

"""Pipelines that a broker of a test may start: their files, a server that keeps them starting, and waiting for their ends."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.admin.launcher import Process
from penstock.testing.broker import RunningBroker
from tests.admin.api.asking import on_loop


def declared(directory: Path, *names: str, **more: object) -> list[dict[str, object]]:
    """What the configuration says of pipelines whose files are in a directory."""
    return [{"name": name, "file": str(directory / f"{name}.toml"), **more} for name in names]


def write_file(directory: Path, name: str, bootstrap: str, topic: str = "gone", **more: str) -> Path:
    """Describe a pipeline with one bronze table; `more` are settings of the top level, in TOML."""
    file = directory / f"{name}.toml"
    lines = {
        "name": f'"{name}"',
        "bootstrap": f'"{bootstrap}"',
        "topics": f'["{topic}"]',
        "directory": '"tables"',
        **more,
    }
    file.write_text("\n".join(f"{key} = {value}" for key, value in lines.items()) + "\n[bronze]\n")
    return file


class SilentServer:
    """A server that takes connections and answers nothing: a pipeline that reads from it stays about to start."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._connections: list[socket.socket] = []
        self.address = "{}:{}".format(*listening.getsockname())

    def await_connection(self) -> None:
        """Wait until a pipeline has connected: its process has come so far. The connection stays open."""
        self._connections.append(self._listening.accept()[0])

    def close(self) -> None:
        for each in (self._listening, *self._connections):
            each.close()


@contextmanager
def silent_server() -> Iterator[SilentServer]:
    server = SilentServer(socket.create_server(("127.0.0.1", 0)))
    try:
        yield server
    finally:
        server.close()


def process_of(broker: RunningBroker, name: str) -> Process:
    """The last process that was started for a pipeline."""
    return broker.server.launcher._processes[name]


def await_end(broker: RunningBroker, name: str) -> None:
    """Wait until the process of a pipeline has ended, and the broker knows."""

    async def ended() -> None:
        watching = broker.server.launcher._watching.get(name)
        if watching is not None:
            await asyncio.wait([watching])

    on_loop(broker, ended())


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

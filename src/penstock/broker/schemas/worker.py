"""A process for checks that may take long or end badly, seen from the broker.

Validators hold Python's lock while they work, so a thread would stop the event loop as surely as a call; and what a client sends may
be made to use up memory or time. A worker is started when it is first needed, does one thing at a time, and is ended when that takes
too long; the next request starts another.

What a request may take is processor time, which the worker's own timer measures: on a machine that is busy with other things a sound
record takes no more of it. The time on the clock has a bound, too, but one that only a worker that hangs or is starved reaches.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec

from penstock.broker.schemas.definition import Fault
from penstock.errors import ShuttingDown

LENGTH: Final = Struct(">I")
HEAD: Final = Struct(">Id")
"""For a request: its length, and the seconds of processor time that it may take."""
READY: Final = LENGTH.pack(0)
REPLY_BYTES_MAX: Final = 64 << 20
FAULTS_MAX: Final = 10_000
"""In one reply."""
START_S_MAX: Final = 60.0
"""Importing the libraries takes half a second; on a machine that is busy with other things it may take long."""
ANSWER_S_MAX: Final = 30.0
"""On the clock."""
MEMORY_BYTES_MAX: Final = 2 << 30
"""Address space of the worker, of which the libraries take a tenth. A record of 32 MB that is nothing but brackets fits."""
_MODULE: Final = "penstock.broker.schemas.worker_main"
_PACKAGES: Final = str(Path(__file__).parents[3])
"""Where this package was found, for the worker to find it too."""


class Stored(msgspec.Struct, array_like=True, frozen=True):
    """A definition that was parsed before."""

    text: str
    form: bytes
    cost: int


class CheckDefinition(msgspec.Struct, array_like=True, frozen=True, tag="definition"):
    """Parse a definition and compare it with versions before it, unless it is one of the known ones."""

    kind: str
    text: str
    older: list[Stored]
    """Those that it must be compatible with, the latest first."""
    compatibility: str
    known: list[bytes]
    """Fingerprints of the versions there are."""


class CheckRecords(msgspec.Struct, array_like=True, frozen=True, tag="records"):
    id: str
    kind: str
    stored: Stored
    message: str
    values: list[bytes]
    all_reasons: bool
    """There is one record, and everything that is wrong with it is wanted."""
    units: list[int] | None = None
    """The number of records of each request, whose first fault is wanted; None if each record is a request."""


class Parsed(msgspec.Struct, array_like=True, frozen=True, tag="parsed"):
    form: bytes
    cost: int
    fingerprint: bytes
    crc64: bytes
    """Of Avro: as single-object encoding has it."""
    problems: list[str]
    """Why it cannot follow one of the versions before it."""


class Verdict(msgspec.Struct, array_like=True, frozen=True, tag="verdict"):
    faults: list[Fault]
    """Empty if all records are sound."""


class Refused(msgspec.Struct, array_like=True, frozen=True, tag="refused"):
    reason: str


Request = CheckDefinition | CheckRecords
Reply = Parsed | Verdict | Refused


class Worker:
    """One process, one request at a time, in the order of the calls."""

    def __init__(self, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._closing = False
        self._decoder = msgspec.msgpack.Decoder(Reply)
        self._encoder = msgspec.msgpack.Encoder()
        self.started = 0
        self.failed = 0
        """Requests that ended the process, or were ended with it."""

    async def ask(self, request: Request, cpu_s_max: float) -> Reply:
        """Return the answer, or Refused if it takes more processor time than that, or ends the process. Raises ShuttingDown."""
        async with self._turn:
            if self._closing:
                raise ShuttingDown("the broker is stopping: send again once it runs")
            process = await self._running()
            answered = False
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    try:
                        reply = await self._exchange(process, self._encoder.encode(request), cpu_s_max)
                    except (asyncio.IncompleteReadError, ConnectionError):
                        if await process.wait() == -signal.SIGPROF:
                            return Refused(f"checking takes more than {cpu_s_max:g} s of processor time")
                        return Refused("checking takes more memory than it may, or ends the checker")
                answered = True
            except TimeoutError:
                return Refused(
                    f"the checker gave no answer within {ANSWER_S_MAX:g} s: send again when the broker is less busy"
                )
            finally:
                if not answered:
                    self.failed += 1
                    await self._end()
            return reply

    async def close(self) -> None:
        """Wait for the current request, refuse those after it, and end the process."""
        self._closing = True
        async with self._turn:
            await self._end()

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            await self._end()
            path = os.pathsep.join(filter(None, [_PACKAGES, os.environ.get("PYTHONPATH")]))
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _MODULE, str(self._memory_bytes_max)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
            self.started += 1
            assert self._process.stdout is not None
            try:
                async with asyncio.timeout(START_S_MAX):
                    await self._process.stdout.readexactly(len(READY))
            except BaseException:
                # What it says when it is ready must not be read as the answer to the next request.
                await self._end()
                raise
        return self._process

    async def _exchange(self, process: Process, request: bytes, cpu_s_max: float) -> Reply:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(HEAD.pack(len(request), cpu_s_max))
        process.stdin.write(request)
        await process.stdin.drain()
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        assert length <= REPLY_BYTES_MAX
        reply: Reply = self._decoder.decode(await process.stdout.readexactly(length))
        return reply

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()

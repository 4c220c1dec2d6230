"""One machine with a broker on it, which crashes, loses its power and is started again, always on the same disk."""

from __future__ import annotations

import fcntl
from pathlib import Path
from random import Random
from typing import Any, Final

from penstock.config import Config
from penstock.server import Server
from tests.simulation.certificate import certificate_files
from tests.simulation.disk import SimDisk
from tests.simulation.loop import Process, SimLoop
from tests.simulation.machine import SimClock
from tests.simulation.network import HOST, Network
from tests.simulation.threads import SimThreads
from tests.simulation.trace import Trace

API_KEY: Final = "simulated"
PORTS: Final = {"flymq": 9092, "blipmq": 5555, "rustlog": 9292, "fujin": 4848, "felix": 5000}
CHECKED: Final = "checked-"
"""Before the name of a topic: what Fujin's readers call it that have a group of their own."""
START_S_MAX: Final = 120.0
"""Virtual seconds: a broker that takes longer to start never will."""


class World:
    """The machine, its network and its clock."""

    def __init__(self, loop: SimLoop, root: Path, chance: Random, trace: Trace) -> None:
        self.loop = loop
        self.trace = trace
        self.clock = SimClock(loop)
        self.network = loop.network = Network(loop, Random(chance.random()), trace)
        self.chance = chance
        self.power_cuts: list[float] = []
        """When the power went, on the loop's clock."""
        self.crashes = 0
        self.flush_failures = 0
        self.failures: list[str] = []
        """Why a broker did not start or stop."""
        self.checked_topics: list[str] = []
        self._root = root
        self._disks: list[SimDisk] = []
        self._new_disk()
        self._process: Process | None = None
        self._server: Server | None = None

    @property
    def disk(self) -> SimDisk:
        return self._disks[-1]

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.is_alive

    @staticmethod
    def url(protocol: str) -> str:
        user = f"{API_KEY}@" if protocol == "blipmq" else ""
        trusted = f"?ca={certificate_files()[0]}" if protocol in ("fujin", "felix") else ""
        return f"{protocol}://{user}{HOST}:{PORTS[protocol]}{trusted}"

    # -- the life of the broker --------------------------------------------------------------------------------------------

    async def start_broker(self) -> bool:
        """Start a broker on what the disk holds; False if it was ended before it was ready."""
        self.trace.note("start")
        self.disk.attach()
        process = self._process = Process(f"broker-{self.crashes}", self.loop)
        error = await self.loop.run(process, self._serve(), START_S_MAX)
        if not process.is_alive:
            return False
        if error is not None:
            self.failures.append(f"the broker did not start: {type(error).__name__}: {error}")
            self.crash()
            return False
        self.trace.note("ready")
        return True

    async def _serve(self) -> None:
        server = self._server = Server(self._config(), clock=self.clock, disk=self.disk, threads=SimThreads(self.loop))
        await server.start()

    async def stop_broker(self) -> None:
        """Stop it as SIGTERM does, if it runs."""
        process, server = self._process, self._server
        if process is None or server is None or not process.is_alive:
            return  # an operation of the disk that it was to be ended at came first
        self.trace.note("stop")
        error = await self.loop.run(process, server.stop(), START_S_MAX)
        if process.is_alive:
            if error is not None:
                self.failures.append(f"the broker did not stop: {type(error).__name__}: {error}")
            self.trace.note("stopped")
            self._end(process, silently=False)

    def crash(self) -> None:
        """End the process; the disk keeps what was written."""
        if self._process is not None and self._process.is_alive:
            self.crashes += 1
            self.trace.note("crash")
            self._end(self._process, silently=False)

    def cut_power(self) -> None:
        """End the machine; the disk keeps what was synced, and some of the rest."""
        if self._process is not None and self._process.is_alive:
            loss = self.chance.choice((0.05, 0.5, 0.95))
            self.trace.note("power-cut", loss)
            self.power_cuts.append(self.loop.time())
            self._end(self._process, silently=True)
            self.disk.remains(self._data_dir(len(self._disks)), self.chance, loss)
            self._new_disk()

    def fail_flushes(self, count: int) -> None:
        """Let this many flushes fail, from the next on."""
        self.trace.note("flush-error", count)
        self.flush_failures += count
        for _ in range(count):
            self.disk.fail_next_flush()

    def _end(self, process: Process, *, silently: bool) -> None:
        self.loop.kill(process)
        self.network.kill(process, silently=silently)
        self.disk.detach()
        self._release_lock()

    def close(self) -> None:
        for disk in self._disks:
            disk.close()

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _data_dir(self, number: int) -> Path:
        return self._root / f"data-{number}"

    def _new_disk(self) -> None:
        directory = self._data_dir(len(self._disks))
        directory.mkdir(exist_ok=True)
        self._disks.append(SimDisk(directory, self.trace, self.loop.pause_thread))

    def _release_lock(self) -> None:
        """Let go of the data directory, as the end of a process does."""
        lock = self._data_dir(len(self._disks) - 1) / "LOCK"
        for entry in list(Path("/proc/self/fd").iterdir()):
            try:
                if entry.readlink() == lock:
                    fcntl.flock(int(entry.name), fcntl.LOCK_UN)
            except OSError:
                continue  # the descriptor of the listing itself

    def _config(self) -> Config:
        cert, key = certificate_files()
        listeners: dict[str, dict[str, Any]] = {name: {"bind": f"{HOST}:{port}"} for name, port in PORTS.items()}
        listeners["blipmq"]["api_keys"] = [API_KEY]
        for name in ("fujin", "felix"):
            listeners[name]["tls"] = {"cert": str(cert), "key": str(key)}
        listeners["fujin"]["aliases"] = {
            f"{CHECKED}{topic}": {"topic": topic, "group": CHECKED} for topic in self.checked_topics
        }
        return Config.model_validate(
            {
                "data_dir": str(self._data_dir(len(self._disks) - 1)),
                "listeners": listeners,
                "admin": None,
                "subscriptions": {"deliveries_max": 1_000_000},
                "log": {
                    "segment_bytes": 1 << 16,
                    "segment_ms": 1000,
                    "journal_bytes": 1 << 20,
                    "checkpoint_bytes": 1 << 20,
                    "reserve_bytes": 1 << 16,
                    "maintenance_interval_s": 0.3,
                    "compact_dirty_ratio": 0.1,
                    "tail_bytes_per_partition": 2 << 10,
                },
            }
        )

"""A real broker inside a test: the server of `penstock serve`, on its own event loop in a background thread."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from penstock.clients.loop_thread import LoopThread
from penstock.clients.options import ClientOptions
from penstock.clock import Clock
from penstock.config import Config
from penstock.errors import InvalidRequest, PenstockError
from penstock.net.certificates import CERTIFICATE_FILE
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.server import Server
from penstock.session_sources import QUIC_PROTOCOLS
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk

TEST_API_KEY = "test-key"
_ANY_PORT = "127.0.0.1:0"


class RunningBroker:
    """A broker for the length of a `with` block, on a free port, in a temporary directory (or one that you give and keep).

    ```python
    with RunningBroker() as broker:
        client = broker.connect()
        client.send("orders", b"one")
        broker.clock.advance(3600)
        broker.disk.fail_next_fsync()
    ```
    Its clock stands still until the test moves it; `clock=SystemClock()` lets time pass by itself. `config` takes any setting of the
    configuration file, as in `RunningBroker(durability="none", topics=[{"name": "orders", "partitions": 3}])`. The admin address is
    off unless `admin` asks for it, with its defaults or with settings of its own.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        clock: Clock | None = None,
        admin: bool | Mapping[str, Any] = False,
        **config: Any,
    ) -> None:
        self._own_dir = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="penstock-") if data_dir is None else data_dir)
        self._clock = clock or ManualClock(now_ms=time.time_ns() // 1_000_000)
        self._admin = {} if admin is True else admin
        self._config = config
        self._binds: dict[str, str] = {}
        """By listener, from the first start on."""
        self._clients: list[FlyMQClient] = []
        self._thread: LoopThread | None = None
        self.disk = FaultyDisk()
        """The disk under the log, with knobs that make it fail. A restart begins with a sound one."""

    # -- life ------------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start, or start again after `stop` or `kill`, on the same directory and port."""
        if self._thread is not None:
            raise InvalidRequest("this broker is running; stop it before you start it again")
        settings = {**self._config, "listeners": self._listeners()}
        config = Config(
            data_dir=self.data_dir,
            admin=None if self._admin is False else {**self._admin, "bind": self._binds.get("admin", _ANY_PORT)},
            **settings,
        )
        self.disk = FaultyDisk()
        self._server = Server(config, clock=self._clock, disk=self.disk)
        self._thread = LoopThread("penstock broker")
        try:
            self._thread.run(self._server.start())
        except BaseException:
            self._thread.close()
            self._thread = None
            raise
        self._binds = dict(self._server.addresses)
        return self

    def stop(self) -> None:
        """Stop cleanly, with everything committed. Stopping a broker that does not run does nothing."""
        if self._thread is not None:
            try:
                self._thread.run(self._server.stop())
            finally:
                self._thread.close()
                self._thread = None

    def kill(self) -> None:
        """Stop at once, with nothing written any more: what was not on disk is lost, and the next start has to recover.

        As far as a thread can: `BrokerProcess.kill9` is the real thing.
        """
        if self._thread is not None:
            self.disk.power_off()
            try:
                self._thread.run(self._server.stop())
            except (OSError, PenstockError):
                pass  # closing cleanly is what a killed broker does not manage
            finally:
                self._thread.close()
                self._thread = None

    def restart(self) -> None:
        """Stop cleanly and start again. Clients reconnect by themselves."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Close the clients this broker handed out, stop it, and remove the directory if it was a temporary one."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        try:
            self.stop()
        finally:
            if self._own_dir:
                shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listeners(self) -> dict[str, dict[str, Any]]:
        """Every protocol on a free port, or on its port of before; what the test says of one is laid over it."""
        listeners: dict[str, dict[str, Any]] = {
            "flymq": {},
            "blipmq": {"api_keys": [TEST_API_KEY]},
            "rustlog": {},
            **{name: {} for name in QUIC_PROTOCOLS},
        }
        given: dict[str, dict[str, Any]] = self._config.get("listeners", {})
        for name in {**listeners, **given}:
            bind = {"bind": self._binds.get(name, _ANY_PORT)}
            listeners[name] = {**bind, **listeners.get(name, {}), **given.get(name, {})}
        return listeners

    # -- use -------------------------------------------------------------------------------------------------------------

    @property
    def server(self) -> Server:
        """The running server, for tests that look inside. It lives on another thread's event loop."""
        return self._server

    @property
    def address(self) -> str:
        """host:port of the FlyMQ listener."""
        return self.addresses["flymq"]

    @property
    def addresses(self) -> dict[str, str]:
        """host:port of each listener, by protocol; and of the admin address, where it is on."""
        return self._server.addresses

    @property
    def certificate(self) -> Path:
        """What clients of the QUIC listeners must trust, where those were given no certificate of their own."""
        return self.data_dir / CERTIFICATE_FILE

    @property
    def blipmq_url(self) -> str:
        """What `penstock.connect` takes for BlipMQ, with a key that is accepted."""
        return f"blipmq://{TEST_API_KEY}@{self.addresses['blipmq']}"

    @property
    def rustlog_url(self) -> str:
        """What `penstock.connect` takes for RustLog."""
        return f"rustlog://{self.addresses['rustlog']}"

    @property
    def fujin_url(self) -> str:
        """What `penstock.connect` takes for Fujin."""
        return f"fujin://{self.addresses['fujin']}?ca={self.certificate}"

    @property
    def felix_url(self) -> str:
        """What `penstock.connect` takes for Felix."""
        return f"felix://{self.addresses['felix']}?ca={self.certificate}"

    @property
    def url(self) -> str:
        """What `penstock.connect` takes."""
        return f"flymq://{self.address}"

    @property
    def clock(self) -> ManualClock:
        """The clock to move: `broker.clock.advance(seconds)`."""
        if not isinstance(self._clock, ManualClock):
            raise InvalidRequest(
                "this broker was given a clock that moves by itself; leave `clock` out to move it by hand"
            )
        return self._clock

    def connect(self, options: ClientOptions | None = None) -> FlyMQClient:
        """A new sync client, closed together with the broker."""
        client = FlyMQClient(self.url, options=options)
        self._clients.append(client)
        return client

"""Connections to the broker: the options that name it, and one client for each broker in each Python process. Of several nodes that serve
the same log, each client takes the first that answers in an order of its own, and the next after a loss.

Spark keeps its worker processes and gives them task after task, so a client that was opened for one task serves the next. A process that
was forked from one with clients makes its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

from penstock.clients.options import ClientOptions
from penstock.clients.retry import RetryPolicy
from penstock.clients.url import parse_url
from penstock.errors import InvalidRequest, Unreachable
from penstock.protocols.flymq.client.client import PORT
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.option_values import flag

BOOTSTRAP: Final = "penstock.bootstrap"
BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"
CONNECTION_OPTIONS: Final = (
    BOOTSTRAP,
    "penstock.user",
    "penstock.password",
    "penstock.tls",
    "penstock.tls.ca",
    "penstock.tls.cert",
    "penstock.tls.key",
)
"""What both the source and the sink know."""
REQUEST_TIMEOUT_S: Final = 60.0
CONNECT_S_MAX: Final = 60.0
"""A broker that restarts under a running query is waited for so long before a task fails (and Spark tries it again)."""
CONNECT_ATTEMPTS_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Which broker, at one host or several, and who asks. Travels to the workers with the reader or writer that holds it."""

    address: str = BOOTSTRAP_DEFAULT
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    in_order: bool = False
    """Whether the hosts are taken as they are listed."""

    @property
    def url(self) -> str:
        credentials = "" if self.user is None else f"{quote(self.user, '')}:{quote(self.password or '', '')}@"
        said = {name: file for name in ("ca", "cert", "key") if (file := getattr(self, name)) is not None}
        if self.in_order:
            said["hosts"] = "in-order"
        query = f"?{urlencode(said)}" if said else ""
        return f"flymq{'s' if self.tls else ''}://{credentials}{self.address}{query}"


def connection_settings(options: Mapping[str, str]) -> ConnectionSettings:
    """From options, whose names have any case. Raises InvalidRequest."""
    given = {name.lower(): value for name, value in options.items()}
    address, tls = given.get(BOOTSTRAP, BOOTSTRAP_DEFAULT).strip(), flag(given, "penstock.tls", default=False)
    user, password = given.get("penstock.user"), given.get("penstock.password")
    if "@" in address:
        # Spark writes options into plans and event logs. It hides those whose names say password, and no other.
        raise InvalidRequest(
            f"{BOOTSTRAP} holds a user or password, which Spark would show in plans and logs: set penstock.user and penstock.password"
        )
    if "://" in address:
        parsed = parse_url(address, port=PORT)
        if parsed.scheme not in ("flymq", "flymqs") or parsed.tls_files:
            raise InvalidRequest(
                f"{BOOTSTRAP} is {parsed}: write the address of the FlyMQ listener as host:port, flymq://host:port or flymqs://host:port"
            )
        tls = tls or parsed.scheme == "flymqs"
    else:
        parsed = parse_url(f"flymq://{address}", port=PORT)
    if (user is None) != (password is None):
        raise InvalidRequest("penstock.user and penstock.password belong together: set both or none")
    files = {name: given.get(f"penstock.tls.{name}") for name in ("ca", "cert", "key")}
    return ConnectionSettings(
        parsed.netloc, user, password, tls or any(files.values()), in_order=parsed.in_order, **files
    )


class _Pooled:
    """One client, once it is open. Who needs it waits for it; who needs another one does not."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: FlyMQClient | None = None


class _Clients:
    """The clients of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[ConnectionSettings, _Pooled] = {}
        self._process_id = os.getpid()

    def get(self, settings: ConnectionSettings) -> FlyMQClient:
        if self._process_id != os.getpid():
            self.__init__()  # type: ignore[misc]  # forked: the clients belong to the parent, threads and all
        with self._lock:
            pooled = self._clients.setdefault(settings, _Pooled())
        with pooled.lock:
            if pooled.client is None:
                pooled.client = open_client(settings)
            return pooled.client


_clients = _Clients()


def pooled_client(settings: ConnectionSettings) -> FlyMQClient:
    """The client of this process for a broker, opened with the first call. It stays open; do not close it."""
    return _clients.get(settings)


def open_client(settings: ConnectionSettings) -> FlyMQClient:
    """A client of one's own. Raises Unreachable, which says what to do."""
    options = ClientOptions(
        request_timeout_s=REQUEST_TIMEOUT_S,
        retry=RetryPolicy(attempts_max=CONNECT_ATTEMPTS_MAX, elapsed_s_max=CONNECT_S_MAX),
    )
    try:
        return FlyMQClient(settings.url, options=options)
    except Unreachable as error:
        stop = "" if str(error).endswith("?") else "."
        raise Unreachable(
            f"{error}{stop} Start the broker (`penstock serve`), or set the option {BOOTSTRAP} to the host:port of its FlyMQ listener"
        ) from error

"""The HTTP address: health and metrics (/livez, /readyz, /metrics), the admin API (/api/v1), the schema registry (/registry), the
console (/console), and the paths that probes of a FlyMQ broker ask, /health and those below it.

The application is Starlette's and the HTTP/1.1 protocol is uvicorn's, but not uvicorn's `Server`: that one wants the process's
signals and ticks ten times a second, and it bounds neither connections nor how long a request may take to arrive. Here every
connection has a deadline for its next finished response, and there is a bound on how many there are. A connection that is too many takes
the place of the one whose request has been awaited longest, so that idle connections do not keep probes out.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock.admin import registry
from penstock.admin.alerts import Alerts
from penstock.admin.api.application import Api, Door, problem_response
from penstock.admin.api.logins import Logins
from penstock.admin.api.problems import HttpProblem, problem_of
from penstock.admin.api.table import PREFIX, AdminContext, Setting
from penstock.admin.console import serving
from penstock.admin.figures import Listener, Sources
from penstock.admin.history import History
from penstock.admin.inspector import Inspector
from penstock.admin.launcher import Launcher
from penstock.admin.looplag import LoopLag
from penstock.admin.metrics import CONTENT_TYPE, Metrics
from penstock.admin.registry import RegistryApi
from penstock.broker.access.checks import BROKER, Operation, authorize
from penstock.broker.broker import Broker
from penstock.clock import SystemClock
from penstock.errors import NotLeading, PenstockError
from penstock.inspection import DissectorFactory
from penstock.log.api import Engine
from penstock.net.limits import AdminLimits
from penstock.net.listener import cannot_listen
from penstock.stats import SessionStats
from penstock.units import Address, is_loopback, parse_address

REQUEST_HEAD_BYTES_MAX = 16 << 10
BACKLOG = 64
FAILURES_NAMED_MAX = 100

State = Literal["starting", "ready", "stopping"]
Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class AdminSettings:
    bind: str
    tls: ssl.SSLContext | None = None
    login_required: bool = False
    """Whether the API asks who is there. Without it the API is served to this machine only."""
    probes_open: bool = True
    """Whether health and metrics are served to everybody who reaches the address."""
    configuration: Mapping[str, Setting] = field(default_factory=dict)
    limits: AdminLimits = field(default_factory=AdminLimits)


class AdminServer:
    """Serves health, metrics and the API of one broker on `bind` ("host:port"; port 0 picks a free one) from `start` to `stop`.

    `state` is set by the owner of the broker; /readyz follows it.
    """

    def __init__(
        self,
        settings: AdminSettings,
        *,
        engine: Engine,
        broker: Broker,
        launcher: Launcher,
        listeners: Mapping[str, Listener],
        sessions: Mapping[str, SessionStats],
        dissectors: Mapping[str, DissectorFactory] | None = None,
        around: Callable[[ASGIApp], ASGIApp] | None = None,
        leader_url: Callable[[], str | None] | None = None,
    ) -> None:
        """`dissectors`, by listener, decode what the protocol inspector shows. `around` wraps what answers requests. `leader_url` is given
        to a node of several: where the one that leads has its admin address, None while that is not known."""
        self._broker = broker
        self._leader_url = leader_url
        self.state: State = "starting"
        self._bind = parse_address(settings.bind)
        self._tls = settings.tls
        self._handshake_s_max = settings.limits.handshake_s_max
        self._engine = engine
        self._background = broker.background
        # Loop lag and health are about real time, whatever the broker's clock says.
        self._clock = SystemClock()
        self._loop_lag = LoopLag(self._clock)
        sources = Sources(engine, broker, listeners, sessions, self._loop_lag.histogram)
        self._metrics = Metrics(sources)
        self._history = History(sources, self._clock)
        self._alerts = Alerts(sources, self._history)
        self._history.on_sampled = self._alerts.evaluate
        self._inspector = Inspector(listeners, dissectors or {}, self._clock, settings.limits)
        self._version = version("penstock")
        self._server: asyncio.Server | None = None
        self._http = _Connections(settings.limits)
        logins = Logins(broker, self._clock, settings.limits, required=settings.login_required)
        self._door = Door(self._clock, logins, settings.limits, exposed=not is_loopback(self._bind.host))
        self._probes_open = settings.probes_open
        self._access = broker.access
        given = AdminContext(
            broker,
            self._clock,
            sources,
            settings.configuration,
            self._readiness,
            self._version,
            self._clock.now_ms(),
            logins,
            self._history,
            self._alerts,
            self._inspector,
            launcher,
        )
        self._served: dict[bytes, ASGIApp] = {
            f"{PREFIX}/".encode(): Api(given, self._door, secure=settings.tls is not None),
            f"{registry.PREFIX}/".encode(): RegistryApi(broker, self._door),
            serving.PREFIX.encode(): serving.Console(),
        }
        """By the beginning of the path; the rest are pages of Starlette's."""
        self._pages = Starlette(
            routes=[Route(path, self._probe(answer)) for path, answer in self._probes().items()],
        )
        self._config = uvicorn.Config(
            self._serve if around is None else around(self._serve),
            http=_BoundedHttp,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=round(settings.limits.keep_alive_s),
            h11_max_incomplete_event_size=REQUEST_HEAD_BYTES_MAX,
        )

    @property
    def address(self) -> str:
        """Where it listens, with the port that was picked where `bind` says 0."""
        if self._server is None:
            raise RuntimeError("the admin address is not started, so it is not known yet")
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(Address(host, port))

    async def start(self) -> None:
        """Raises ConfigError if the address cannot be listened on."""
        loop = asyncio.get_running_loop()
        self._config.load()
        protocol = functools.partial(
            _BoundedHttp, config=self._config, server_state=self._http, app_state={}, _loop=loop
        )
        host, port = self._bind
        try:
            self._server = await loop.create_server(
                protocol,
                host,
                port,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._handshake_s_max,
                backlog=BACKLOG,
            )
        except OSError as error:
            raise cannot_listen("admin.bind", str(self._bind), error) from None
        self._loop_lag.start()
        self._history.start()

    async def stop(self, grace_s: float = 1.0) -> None:
        """Take no more connections, let responses that have begun finish within `grace_s`, cut off the rest."""
        self.state = "stopping"
        self._loop_lag.stop()
        await self._history.stop()
        self._inspector.close()
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._http.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(grace_s):
                await self._http.all_closed.wait()
        except TimeoutError:
            for connection in list(self._http.connections):
                connection.transport.abort()
            for task in self._http.tasks:
                task.cancel()
        await asyncio.gather(*self._http.tasks, return_exceptions=True)
        await self._http.all_closed.wait()
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request to what answers it. By the path as it was sent: names in it may have encoded slashes, and line ends."""
        path = scope["raw_path"] if scope["type"] == "http" else b""
        served = next((each for prefix, each in self._served.items() if path.startswith(prefix)), self._pages)
        if served is not self._pages and self._leader_url is not None and not self._broker.leading.leads:
            served = self._elsewhere
        await served(scope, receive, send)

    async def _elsewhere(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Redirect a client to the leader, which has the state that the API shows and changes."""
        url = None if self._leader_url is None else self._leader_url()
        response: Response
        if url is None:
            error = NotLeading("this node does not lead, and no node with an admin address does; try again")
            response = problem_response(problem_of(error))
        else:
            query = scope["query_string"].decode()
            response = RedirectResponse(f"{url}{scope['raw_path'].decode()}{f'?{query}' if query else ''}", 307)
        await response(scope, receive, send)

    def _probes(self) -> dict[str, Answer]:
        return {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/health": self._health_ready,
            "/health/live": self._health_live,
            "/health/ready": self._health_ready,
            "/metrics": self._serve_metrics,
        }

    def _probe(self, answer: Answer) -> Answer:
        """Return what answers a probe: everybody, or those who may describe the broker."""

        async def guarded(request: Request) -> Response:
            if not self._probes_open:
                try:
                    caller = await self._door.admit(request)
                    authorize(self._access, caller.principal, Operation.DESCRIBE, BROKER)
                except HttpProblem as refusal:
                    return problem_response(refusal.problem, refusal.headers)
                except PenstockError as error:
                    return problem_response(problem_of(error))
            return await answer(request)

        return guarded

    async def _livez(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _: Request) -> Response:
        readiness = self._readiness()
        return JSONResponse(readiness, status_code=200 if readiness["ready"] else 503)

    def _readiness(self) -> dict[str, Any]:
        if self.state != "ready":
            return {"ready": False, "state": self.state}
        failures, failing_tasks = self._engine.failed.reasons(), self._background.failing
        readiness: dict[str, Any] = {"ready": not failures and not failing_tasks, "state": self.state}
        if failures:
            readiness["failed"] = len(failures)
            readiness["failed_partitions"] = [
                {"topic": topic, "partition": index, "failure": failure}
                for (topic, index), failure in list(failures.items())[:FAILURES_NAMED_MAX]
            ]
        if failing_tasks:
            readiness["failing_tasks"] = [{"task": task, "failure": failure} for task, failure in failing_tasks.items()]
        return readiness

    async def _health_live(self, _: Request) -> Response:
        return JSONResponse(self._health("healthy"))

    async def _health_ready(self, _: Request) -> Response:
        started_s = self._clock.monotonic()
        readiness = self._readiness()
        check: dict[str, Any] = {"name": "readiness", "status": "healthy"}
        if not readiness["ready"]:
            check |= {"status": "unhealthy", "message": _reason(readiness)}
        check["latency_ms"] = int((self._clock.monotonic() - started_s) * 1000)
        body = self._health(check["status"]) | {"checks": [check]}
        return JSONResponse(body, status_code=200 if readiness["ready"] else 503)

    def _health(self, status: str) -> dict[str, Any]:
        """Return the fields that every answer at and below /health has."""
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        return {"status": status, "timestamp": f"{now:%Y-%m-%dT%H:%M:%SZ}", "version": self._version}

    async def _serve_metrics(self, _: Request) -> Response:
        return Response(await self._metrics.render(), media_type=CONTENT_TYPE)


class _Connections(ServerState):
    """uvicorn's record of open connections and running requests, with a way to wait for the last one."""

    def __init__(self, limits: AdminLimits) -> None:
        super().__init__()
        self.limits = limits
        self.all_closed = asyncio.Event()
        self.all_closed.set()
        self.turns = itertools.count(1)


class _BoundedHttp(H11Protocol):
    """uvicorn's HTTP/1.1 with a bound on connections and a deadline on each response."""

    server_state: _Connections
    _deadline: asyncio.TimerHandle | None = None
    turn = 0
    """Connections by when they were made, or finished the response before: the lowest number has waited longest."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.server_state.all_closed.clear()
        if sum(not each.transport.is_closing() for each in self.connections) > self.server_state.limits.max_connections:
            self._make_room()
        if not transport.is_closing():
            self._arm()

    def _make_room(self) -> None:
        """Close the connection whose request has been awaited longest; this one if all others are being answered."""
        others: list[_BoundedHttp] = [
            each for each in self.connections if isinstance(each, _BoundedHttp) and each is not self and each.gives_way
        ]
        given_up = min(others, key=lambda each: each.turn, default=self)
        given_up.transport.abort()

    @property
    def gives_way(self) -> bool:
        """Whether the peer has not sent its next request whole."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        awaited = cycle is None or cycle.response_complete or cycle.more_body
        return awaited and not self.transport.is_closing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)
        if not self.connections:
            self.server_state.all_closed.set()

    def _arm(self) -> None:
        self._disarm()
        if not self.transport.is_closing():
            self.turn = next(self.server_state.turns)
            self._deadline = self.loop.call_later(self.server_state.limits.response_s_max, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _reason(readiness: dict[str, Any]) -> str:
    """Return why the broker is not ready, in a few words."""
    if "failed" in readiness:
        return f"{readiness['failed']} partitions refuse writes"
    if "failing_tasks" in readiness:
        return f"background tasks fail: {', '.join(each['task'] for each in readiness['failing_tasks'])}"
    return f"the broker is {readiness['state']}"

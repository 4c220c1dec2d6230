"""How tests ask the admin API: a real broker, and HTTP over a real socket."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from penstock.admin.api.table import PREFIX
from penstock.broker.access.checks import SYSTEM
from penstock.clock import Clock, SystemClock
from penstock.testing.broker import RunningBroker

LOGIN_REQUIRED = {"flymq": {"auth": "required"}}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def code(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", self
        return str(self.json["code"])


@dataclass
class Asking:
    """Asks one broker, with the same headers each time."""

    broker: RunningBroker
    headers: dict[str, str] = field(default_factory=dict)
    prefix: str = PREFIX

    opened: list[http.client.HTTPConnection] = field(default_factory=list)
    """Those of this one and of all that were made from it."""

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection(self.broker.addresses["admin"], timeout=30)
        self.opened.append(self._connection)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        if content is not None and "content-type" not in sent:
            sent["content-type"] = "application/json"
        self._connection.request(method, self.prefix + path, content, sent)
        response = self._connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())

    def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        answer = self(method, path, body, **headers)
        assert answer.status < 300, answer.content
        return answer.json if answer.content else None

    def with_key(self, key: str) -> Self:
        return self.with_headers(authorization=f"Bearer {key}")

    def with_headers(self, **headers: str) -> Self:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return type(self)(self.broker, {**self.headers, **sent}, self.prefix, self.opened)

    def with_password(self, user: str, password: str) -> Self:
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        return self.with_headers(authorization=f"Basic {encoded}")

    def close(self) -> None:
        for connection in self.opened:
            connection.close()


def on_loop(broker: RunningBroker, coroutine: Any) -> Any:
    """Run something of the broker's own on its event loop."""
    thread = broker._thread
    assert thread is not None
    return thread.run(coroutine)


def new_key(broker: RunningBroker, name: str, *roles: str) -> str:
    return str(on_loop(broker, broker.server.broker.api_keys.create(SYSTEM, name, roles)))


@contextmanager
def asking(clock: Clock | None = None, prefix: str = PREFIX, **config: Any) -> Iterator[Asking]:
    """A broker whose admin address trusts this machine, unless the configuration says otherwise."""
    with RunningBroker(admin=True, clock=clock or SystemClock(), **config) as broker:
        ask = Asking(broker, prefix=prefix)
        try:
            yield ask
        finally:
            ask.close()

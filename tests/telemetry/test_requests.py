"""Lines that are logged while an admin request is answered have the ids of its span."""

from __future__ import annotations

import io
import json

import structlog
from opentelemetry.sdk.trace import TracerProvider
from starlette.types import Message, Receive, Scope, Send

from penstock import logs
from penstock.telemetry.requests import RequestTracing
from tests.logging_state import logging_as_before

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def _nothing() -> Message:
    raise AssertionError("this application asks for no body")


async def _unsent(_: Message) -> None:
    pass


async def test_log_lines_have_trace_and_span_while_a_request_is_answered() -> None:
    async def application(_: Scope, __: Receive, send: Send) -> None:
        structlog.get_logger("penstock.test").info("answering")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    written = io.StringIO()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/status",
        "headers": [(b"traceparent", f"00-{TRACE}-{PARENT}-01".encode())],
    }
    with logging_as_before():
        logs.configure(form="json", stream=written)
        await RequestTracing(tracer).around(application)(scope, _nothing, _unsent)
        structlog.get_logger("penstock.test").info("outside")
    inside, outside = map(json.loads, written.getvalue().splitlines())
    assert inside["trace_id"] == TRACE
    assert inside["span_id"] not in ("", PARENT)
    assert "trace_id" not in outside

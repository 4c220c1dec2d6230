"""Spans of requests to the admin API and the schema registry.

A request with a `traceparent` continues the trace of its client. While it is answered its span is the current one: records that it
produces belong to its trace, and lines that are logged have its `trace_id` and `span_id`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode, Tracer, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.admin.api.application import ROUTE
from penstock.admin.api.table import PREFIX as API_PREFIX
from penstock.admin.registry import PREFIX as REGISTRY_PREFIX

TRACED: Final = (f"{API_PREFIX}/", f"{REGISTRY_PREFIX}/")
"""Not probes, scrapes and the files of the console: nobody looks for those."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class RequestTracing:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def around(self, application: ASGIApp) -> ASGIApp:
        """Return an application that makes a span of each request and has this one answer it."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or not scope["path"].startswith(TRACED):
                await application(scope, receive, send)
                return
            carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            method = scope["method"]
            span = self._tracer.start_span(method, _PROPAGATOR.extract(carrier, Context()), SpanKind.SERVER)

            async def sent(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set_attribute("http.response.status_code", status)
                    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                        span.set_status(StatusCode.ERROR)
                await send(message)

            context = span.get_span_context()
            ids = {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}
            with trace.use_span(span, end_on_exit=True), structlog.contextvars.bound_contextvars(**ids):
                await application(scope, receive, sent)
                route = scope.get(ROUTE)
                span.update_name(f"{method} {route}" if route else method)
                span.set_attributes({"http.request.method": method, "url.path": scope["path"]})
                if route:
                    span.set_attribute("http.route", route)

        return traced

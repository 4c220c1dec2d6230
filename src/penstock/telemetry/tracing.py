"""Spans of records on their way through the broker, by the trace context (W3C) in their headers.

A record whose headers have a `traceparent` belongs to a trace of the client that made it. The broker leaves its headers as they are, and
adds a span to that trace when the record is stored and one each time it is delivered, if the trace is sampled. Records of one call or
reply that are of one trace share the span.

Records without a context get one if the sampler chooses their call: the context of the span that the broker begins for it. So records
of protocols that have no headers can be followed, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock.broker.tracing import EndProduce
from penstock.errors import CorruptBlock, PenstockError
from penstock.log.api import Batch
from penstock.record_headers import HEADERS_PER_RECORD_MAX, decode_headers, encode_headers

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
SPANS_PER_CALL_MAX: Final = 128
"""A call or reply with records of more traces than this has spans in the first of them only."""
_MARK: Final = TRACEPARENT.encode()
_FULL_BYTES_MIN: Final = (HEADERS_PER_RECORD_MAX - 2) * len(encode_headers([("", None)]))
"""A cell that is shorter has room for two more headers."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class RecordTracing:
    """Implements `penstock.broker.tracing.Tracing`."""

    def __init__(self, tracer: Tracer, record_bytes_max: int) -> None:
        self._tracer = tracer
        self._record_bytes_max = record_bytes_max

    def now_ns(self) -> int:
        return time.time_ns()

    def produce(self, topic: str, batch: Batch) -> tuple[Batch, EndProduce]:
        counts = _contexts(batch.headers or ())
        attributes = _attributes("send", "send", topic)
        spans = [
            self._tracer.start_span(
                f"send {topic}",
                _parent(context),
                SpanKind.SERVER,
                attributes | {"messaging.batch.message_count": count},
            )
            for context, count in counts
            if context.trace_flags.sampled
        ]
        without = len(batch) - sum(count for _, count in counts)
        if without and len(counts) < SPANS_PER_CALL_MAX:
            # Of the admin request that is being answered, if any; else the first of a trace.
            span = self._tracer.start_span(
                f"send {topic}", None, SpanKind.SERVER, attributes | {"messaging.batch.message_count": without}
            )
            if span.is_recording():
                batch = self._with_context(batch, span.get_span_context())
                spans.append(span)
        return batch, lambda error: _end(spans, error)

    def deliver(
        self,
        topic: str,
        headers: Sequence[bytes | None],
        *,
        partition: int | None = None,
        group: str = "",
        started_ns: int | None = None,
    ) -> None:
        counts = _contexts(headers)
        if not counts:
            return
        attributes = _attributes("deliver", "receive", topic)
        if partition is not None:
            attributes["messaging.destination.partition.id"] = str(partition)
        if group:
            attributes["messaging.consumer.group.name"] = group
        for context, count in counts:
            if context.trace_flags.sampled:
                self._tracer.start_span(
                    f"deliver {topic}",
                    _parent(context),
                    SpanKind.SERVER,
                    attributes | {"messaging.batch.message_count": count},
                    [Link(context)],
                    start_time=started_ns,
                ).end()

    def _with_context(self, batch: Batch, context: SpanContext) -> Batch:
        """Return records with a context added to the headers of those that have none and have room for it."""
        added = _encoded(context)
        room = self._record_bytes_max - len(added)
        small = batch.size_bytes <= room  # all of them together, so each of them
        cells: list[bytes | None] = []
        for row, cell in enumerate(batch.headers or [None] * len(batch)):
            if cell is not None and (_MARK in cell or len(cell) >= _FULL_BYTES_MIN):
                cells.append(cell)
            elif small or _row_bytes(batch, row) <= room:
                cells.append(added if cell is None else cell + added)
            else:
                cells.append(cell)
        return Batch(batch.values, batch.keys, cells, batch.expiries)


def _contexts(cells: Iterable[bytes | None]) -> list[tuple[SpanContext, int]]:
    """Return the distinct contexts in header cells, with the number of records that have each; at most `SPANS_PER_CALL_MAX` of them."""
    by_text: dict[tuple[str, str], int] = {}
    for cell in cells:
        if cell is None or _MARK not in cell:
            continue
        carrier = _carrier(cell)
        if carrier is not None and (carrier in by_text or len(by_text) < SPANS_PER_CALL_MAX):
            by_text[carrier] = by_text.get(carrier, 0) + 1
    found: list[tuple[SpanContext, int]] = []
    for (parent, state), count in by_text.items():
        carrier_map = {TRACEPARENT: parent, TRACESTATE: state} if state else {TRACEPARENT: parent}
        context = trace.get_current_span(_PROPAGATOR.extract(carrier_map, Context())).get_span_context()
        if context.is_valid:
            found.append((context, count))
    return found


def _carrier(cell: bytes) -> tuple[str, str] | None:
    """Return `traceparent` and `tracestate` of a header cell, None if it has no readable ones. The last of a name counts."""
    try:
        named = {name.lower(): value for name, value in decode_headers(cell) if value}
        return named[TRACEPARENT].decode("ascii"), named.get(TRACESTATE, b"").decode("ascii")
    except (CorruptBlock, KeyError, UnicodeDecodeError):
        return None


def _encoded(context: SpanContext) -> bytes:
    """Return a context as a header cell."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, _parent(context))
    return encode_headers([(name, text.encode()) for name, text in carrier.items()])


def _parent(context: SpanContext) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context())


def _attributes(name: str, kind: str, topic: str) -> dict[str, str | int]:
    return {
        "messaging.system": "penstock",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


def _end(spans: Sequence[Span], error: PenstockError | None) -> None:
    for span in spans:
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR, str(error))
        span.end()


def _row_bytes(batch: Batch, row: int) -> int:
    return sum(len(column[row] or b"") for column in (batch.values, batch.keys, batch.headers) if column is not None)

"""Traces that clients begin with the SDK of OpenTelemetry continue through the broker, over every protocol that can carry them.

The collector is opentelemetry-proto behind an HTTP server: stopping the broker exports what it has, so nothing is waited for.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry import propagate
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id

import penstock
from penstock.config import Config
from penstock.errors import ConfigError, OutcomeUnknown, RecordTooLarge
from penstock.server import Server
from penstock.telemetry import exporting
from penstock.testing import RunningBroker
from tests.interop.protocols import SPEAKERS, Published, Speaker
from tests.telemetry.collector import Collector, attributes, collecting


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@contextmanager
def client_span(name: str = "checkout") -> Iterator[tuple[SpanContext, dict[str, bytes]]]:
    """A span of a client, and the headers that its propagator makes of it."""
    with TracerProvider(shutdown_on_exit=False).get_tracer("client").start_as_current_span(name) as span:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        yield span.get_span_context(), {name: value.encode() for name, value in carrier.items()}


def continues(span: Span, context: SpanContext) -> bool:
    return (span.trace_id.hex(), span.parent_span_id.hex()) == (
        format_trace_id(context.trace_id),
        format_span_id(context.span_id),
    )


@contextmanager
def traced_broker(collector: Collector, **otel: object) -> Iterator[RunningBroker]:
    with RunningBroker(otel={"endpoint": collector.url, **otel}) as broker:
        broker.connect().create_topic("orders", 1)
        yield broker


@pytest.mark.parametrize("reader", SPEAKERS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("writer", ["flymq", "fujin"])
def test_a_trace_of_a_client_continues_from_produce_to_deliver(
    collector: Collector, writer: str, reader: type[Speaker]
) -> None:
    with traced_broker(collector) as broker:
        speaker = reader(broker, "orders")
        with client_span() as (context, headers):
            if writer == "flymq":
                broker.connect().send("orders", b"one", headers=headers)
            else:
                with penstock.connect(broker.fujin_url) as client:
                    client.send("orders", b"one", headers=headers)
        assert [seen.value for seen in speaker.read(1)] == [b"one"]
        speaker.close()
    [sent] = collector.spans("send orders")
    assert continues(sent, context)
    delivered = collector.spans("deliver orders")
    assert delivered
    for span in delivered:
        assert continues(span, context)
        assert [link.span_id.hex() for link in span.links] == [format_span_id(context.span_id)]
    assert attributes(sent.attributes) == {
        "messaging.system": "penstock",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 1,
    }


def test_the_headers_of_a_record_with_a_context_stay_as_they_are(collector: Collector) -> None:
    with traced_broker(collector, sampling_ratio=1) as broker, client_span() as (_, headers):
        client = broker.connect()
        client.send("orders", b"one", headers={**headers, "tenant": b"7"})
        [record] = client.fetch("orders", 0, 0).records
        assert dict(record.headers) == {**headers, "tenant": b"7"}


@pytest.mark.parametrize("writer", SPEAKERS, ids=lambda kind: kind.name)
def test_records_without_a_context_get_that_of_the_span_which_the_broker_begins(
    collector: Collector, writer: type[Speaker]
) -> None:
    with traced_broker(collector, sampling_ratio=1) as broker:
        speaker = writer(broker, "orders")
        speaker.publish([Published(None, b"one")])
        speaker.close()
        [record] = broker.connect().fetch("orders", 0, 0).records
    [sent] = collector.spans("send orders")
    delivered = collector.spans("deliver orders")
    assert not sent.parent_span_id
    traceparent = dict(record.headers)["traceparent"]
    assert traceparent is not None
    assert traceparent.decode().startswith(f"00-{sent.trace_id.hex()}-{sent.span_id.hex()}-")
    assert {(span.trace_id, span.parent_span_id) for span in delivered} == {(sent.trace_id, sent.span_id)}


def test_records_without_a_context_stay_as_they_are_unless_traces_are_to_begin_in_the_broker(
    collector: Collector,
) -> None:
    with traced_broker(collector) as broker:
        client = broker.connect()
        client.send("orders", b"one")
        [record] = client.fetch("orders", 0, 0).records
        assert not record.headers
    assert not collector.spans()


def test_a_trace_that_the_client_has_not_sampled_has_no_spans(collector: Collector) -> None:
    with traced_broker(collector, sampling_ratio=1) as broker:
        client = broker.connect()
        client.send("orders", b"one", headers={"traceparent": b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-00"})
        client.fetch("orders", 0, 0)
    assert not collector.spans()


@pytest.mark.parametrize("value", [b"", b"nonsense", b"00-" + b"0" * 32 + b"-" + b"b" * 16 + b"-01", b"\xff\xfe"])
def test_a_context_that_is_not_valid_is_ignored(collector: Collector, value: bytes) -> None:
    with traced_broker(collector) as broker:
        client = broker.connect()
        client.send("orders", b"one", headers={"traceparent": value})
        [record] = client.fetch("orders", 0, 0).records
        assert record.headers == (("traceparent", value),)
    assert not collector.spans()


def test_records_of_one_call_have_a_span_in_the_trace_of_each(collector: Collector) -> None:
    with traced_broker(collector) as broker, client_span("a") as (first, headers), client_span("b") as (second, others):
        client = broker.connect()
        client.send_many("orders", [(None, b"1", headers), (None, b"2", others), (None, b"3", headers)])
        client.fetch("orders", 0, 0)
    for name in ("send orders", "deliver orders"):
        counts = {
            span.parent_span_id.hex(): attributes(span.attributes)["messaging.batch.message_count"]
            for span in collector.spans(name)
        }
        assert counts == {format_span_id(first.span_id): 2, format_span_id(second.span_id): 1}


def test_only_records_that_are_in_the_reply_are_delivered(collector: Collector) -> None:
    with traced_broker(collector) as broker:
        client = broker.connect()
        with client_span() as (first, headers):
            client.send("orders", b"one", headers=headers)
        with client_span() as (_, headers):
            client.send("orders", b"two", headers=headers)
        assert len(client.fetch("orders", 0, 0, max_records=1).records) == 1
    [delivered] = collector.spans("deliver orders")
    assert continues(delivered, first)


def test_the_span_of_records_that_are_not_stored_has_the_error(collector: Collector) -> None:
    with traced_broker(collector) as broker, client_span() as (_, headers):
        client = broker.connect()
        client.send("orders", b"registers the producer")
        broker.disk.fail_next_fsync()
        with pytest.raises(OutcomeUnknown):
            client.send("orders", b"one", headers=headers)
    [span] = collector.spans("send orders")
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert attributes(span.attributes)["error.type"] == "OutcomeUnknown"


def test_a_record_that_has_no_room_for_a_context_is_stored_without(collector: Collector) -> None:
    limits = {"record_bytes_max": 1024}
    with RunningBroker(otel={"endpoint": collector.url, "sampling_ratio": 1}, limits=limits) as broker:
        client = broker.connect()
        client.create_topic("orders", 1)
        client.send_many("orders", [b"x" * 1024, b"small"])
        large, small = client.fetch("orders", 0, 0).records
        assert not large.headers
        assert [name for name, _ in small.headers] == ["traceparent"]
        with pytest.raises(RecordTooLarge):
            client.send("orders", b"x" * 1025)


def test_an_admin_request_continues_the_trace_of_its_client_and_its_records_are_of_that_trace(
    collector: Collector,
) -> None:
    otel = {"endpoint": collector.url}
    with RunningBroker(admin=True, otel=otel) as broker, client_span() as (context, headers):
        broker.connect().create_topic("orders", 1)
        request = urllib.request.Request(
            f"http://{broker.addresses['admin']}/api/v1/topics/orders/records",
            json.dumps({"records": [{"value": "one"}]}).encode(),
            {"content-type": "application/json", **{name: value.decode() for name, value in headers.items()}},
        )
        with urllib.request.urlopen(request) as response:
            assert response.status == 201
        urllib.request.urlopen(f"http://{broker.addresses['admin']}/livez").close()
    [asked] = collector.spans("POST /api/v1/topics/{topic}/records")
    [sent] = collector.spans("send orders")
    assert continues(asked, context)
    assert (sent.trace_id, sent.parent_span_id) == (asked.trace_id, asked.span_id)
    assert attributes(asked.attributes)["http.response.status_code"] == 201
    assert len(collector.spans()) == 2, "probes have no spans"


def test_a_broker_without_an_endpoint_imports_nothing_of_opentelemetry() -> None:
    program = """
import sys
from penstock.testing import RunningBroker
with RunningBroker() as broker:
    client = broker.connect()
    client.create_topic("orders", 1)
    client.send("orders", b"one")
    assert broker.server.broker.tracing is None
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    for name in ("penstock.telemetry.exporting", "penstock.telemetry.tracing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError, match=r'pip install "penstock\[otel\]"'):
        Server(Config(data_dir=tmp_path, otel={"endpoint": "http://127.0.0.1:4318"}))


def test_a_broker_stops_although_no_collector_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "STOP_S_MAX", 0.01)
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        with RunningBroker(otel={"endpoint": url, "sampling_ratio": 1}) as broker:
            client = broker.connect()
            client.create_topic("orders", 1)
            client.send("orders", b"one")

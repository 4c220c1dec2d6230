"""What is exported, where to, and from when to when: one `Telemetry` for each broker, and no global provider of the SDK's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from importlib.metadata import version
from typing import Any, Final

from penstock.admin.figures import Listener, Sources
from penstock.admin.looplag import LoopLag
from penstock.admin.metrics import Metrics
from penstock.background import Loop
from penstock.broker.broker import Broker
from penstock.clock import SystemClock
from penstock.config.model import Otel
from penstock.errors import ConfigError
from penstock.log.api import Engine
from penstock.stats import SessionStats

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    from penstock.telemetry.metrics import MetricsEncoder
    from penstock.telemetry.requests import RequestTracing
    from penstock.telemetry.tracing import RecordTracing
except ImportError as missing:
    raise ConfigError(
        f'otel.endpoint needs packages that are not installed ({missing.name}): run pip install "penstock[otel]"'
    ) from None

EXPORT_S_MAX: Final = 5.0
"""Per export, repetitions included. What the collector has not taken by then is dropped."""
STOP_S_MAX: Final = 5.0
"""How long a broker that stops waits for the collector."""
SPANS_QUEUED_MAX: Final = 8_192
SPANS_PER_EXPORT_MAX: Final = 512
SPANS_EVERY_MS: Final = 2_000


class Telemetry:
    """The exporters of one broker. `tracing` and `requests` can be used at once; metrics are exported from `start` to `stop`."""

    def __init__(self, settings: Otel, *, record_bytes_max: int) -> None:
        """`record_bytes_max`: a trace context is not added to a record that would be larger with it."""
        base = settings.endpoint.rstrip("/")
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        resource = Resource.create({"service.name": settings.service_name, "service.version": version("penstock")})
        self._interval_s = settings.metrics_interval_s
        self._span_exporter = OTLPSpanExporter(f"{base}/v1/traces", headers=headers, timeout=EXPORT_S_MAX)
        self._metric_exporter = OTLPMetricExporter(f"{base}/v1/metrics", headers=headers, timeout=EXPORT_S_MAX)
        self._encoder = MetricsEncoder(resource)
        self._provider = TracerProvider(
            ParentBased(TraceIdRatioBased(settings.sampling_ratio)), resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._span_exporter,
                max_queue_size=SPANS_QUEUED_MAX,
                schedule_delay_millis=SPANS_EVERY_MS,
                max_export_batch_size=SPANS_PER_EXPORT_MAX,
            )
        )
        tracer = self._provider.get_tracer("penstock", version("penstock"))
        self.tracing = RecordTracing(tracer, record_bytes_max)
        self.requests = RequestTracing(tracer)
        self._loop_lag = LoopLag(SystemClock())
        self._metrics: Metrics | None = None
        self._exporting: Loop | None = None

    def start(
        self,
        engine: Engine,
        broker: Broker,
        listeners: Mapping[str, Listener],
        sessions: Mapping[str, SessionStats],
    ) -> None:
        """Export the metrics of a broker again and again."""
        self._loop_lag.start()
        self._metrics = Metrics(Sources(engine, broker, listeners, sessions, self._loop_lag.histogram))
        self._exporting = broker.background.loop("otel_metrics", self._export, first_s=self._interval_s)

    async def stop(self) -> None:
        """Export metrics once more, while the broker still has them."""
        assert self._exporting is not None, "started"
        self._loop_lag.stop()
        await _ended_by(self._metric_exporter, self._export_last(self._exporting))

    async def close(self) -> None:
        """Export the spans that wait, also those of the last requests, and release everything."""
        await _ended_by(self._span_exporter, asyncio.to_thread(self._provider.shutdown))

    async def _export_last(self, exporting: Loop) -> None:
        await exporting.stop()
        await self._export()
        self._metric_exporter.shutdown()

    async def _export(self) -> float:
        """Export all metrics. The exporter logs what fails; the next export has the same counters, and more."""
        assert self._metrics is not None, "started"
        collected = await self._metrics.collect()
        await asyncio.to_thread(lambda: self._metric_exporter.export(self._encoder.encode(collected)))
        return self._interval_s


async def _ended_by(exporter: OTLPSpanExporter | OTLPMetricExporter, work: Coroutine[Any, Any, None]) -> None:
    """Wait for the last exports. After `STOP_S_MAX`, the current one is not repeated any more, and those after it end at once."""
    last = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({last}, timeout=STOP_S_MAX)
    if not done:
        exporter.shutdown()
    await last

"""OpenTelemetry: spans of records and of admin requests, and the broker's metrics, by OTLP over HTTP (extra `[otel]`).

`exporting.py` starts and stops it, `tracing.py` makes the spans of records, `requests.py` those of admin requests, and `metrics.py`
turns the metrics of `penstock.admin.metrics` into those of OTLP. Nothing else imports opentelemetry, and only a broker whose
configuration names an endpoint imports those modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.config import Config

if TYPE_CHECKING:
    from penstock.telemetry.exporting import Telemetry


def telemetry_of(config: Config) -> Telemetry | None:
    """Return what a broker with this configuration exports, None if nothing. Raises ConfigError if the extra is not installed."""
    if not config.otel.endpoint:
        return None
    from penstock.telemetry.exporting import Telemetry

    return Telemetry(config.otel, record_bytes_max=config.limits.record_bytes_max)

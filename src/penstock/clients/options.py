"""What a program may set on a client, whatever protocol it speaks."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.clients.retry import RetryPolicy
from penstock.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Timeouts and bounds of one client; `penstock.connect(url, options=ClientOptions(request_timeout_s=5))`."""

    connect_timeout_s: float = 5.0
    """One attempt to connect, TLS handshake and login included."""

    request_timeout_s: float = 30.0
    """From writing a request to its answer. A connection that is late with one answer is given up and made anew."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How often and how long to try to connect before a request fails with Unreachable."""

    in_flight_requests_max: int = 16_384
    """Requests written and not yet answered; more wait their turn."""

    in_flight_bytes_max: int = 8 << 20
    """Bytes of such requests; one request larger than this travels alone."""

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "request_timeout_s", "in_flight_requests_max", "in_flight_bytes_max"):
            if getattr(self, name) <= 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must be more than 0")

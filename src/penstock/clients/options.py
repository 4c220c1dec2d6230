"""What a program may set on a client, whatever protocol it speaks."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.clients.retry import RetryPolicy
from penstock.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Timeouts and bounds of one client; `penstock.connect(url, options=ClientOptions(request_timeout_s=5))`."""

    connect_timeout_s: float = 5.0
    """Timeout of one attempt to connect to one host, TLS handshake and authentication included."""

    request_timeout_s: float = 30.0
    """Timeout from sending a request to its reply. A connection that misses it is closed and replaced."""

    return_after_s: float = 60.0
    """About how long a client with several hosts stays on another one than its first before it tries to return, in a quiet moment; 0 for
    always."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """Attempts to connect before a request fails with Unreachable."""

    in_flight_requests_max: int = 16_384
    """Requests in flight; further ones wait."""

    in_flight_bytes_max: int = 8 << 20
    """Bytes of requests in flight; a larger request is sent alone."""

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "request_timeout_s", "in_flight_requests_max", "in_flight_bytes_max"):
            if getattr(self, name) <= 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must be more than 0")
        if self.return_after_s < 0:
            raise InvalidRequest(f"return_after_s is {self.return_after_s}; it must be 0 or more")

"""What a Fujin listener is told, and what its sessions count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from penstock.protocols.fujin.codec.commands import WriteForm
from penstock.protocols.fujin.wire import BODY_BYTES_MAX_DEFAULT, Request
from penstock.stats import PushStats

Start = Literal["earliest", "latest"]
Dialect = Literal["auto", "spec", "native"]
GROUP: Final = "fujin"


class Alias(NamedTuple):
    """What a name stands for: the topic that is written or read, and for readers their group and where it begins."""

    topic: str
    group: str = GROUP
    start: Start = "earliest"


@dataclass(frozen=True, slots=True)
class FujinSettings:
    """The listener's settings; docs/reference/configuration.md describes each."""

    aliases: Mapping[str, Alias] = field(default_factory=dict)
    group: str = GROUP
    start: Start = "earliest"
    auto_create: bool = True
    dialect: Dialect = "auto"
    write_form: WriteForm | None = None
    body_bytes_max: int = BODY_BYTES_MAX_DEFAULT
    ping_interval_s: float = 2.0
    ping_timeout_s: float = 5.0
    fetch_wait_s: float = 5.0
    empty_fetch: Literal["auto", "batch", "error"] = "auto"
    empty_values: Literal["skip", "deliver"] = "skip"
    unacknowledged_max: int = 256
    ack_ms_max: int = 30_000

    def find(self, name: str) -> Alias:
        """What a name stands for; itself where no alias says otherwise."""
        return self.aliases.get(name) or Alias(name, self.group, self.start)


@dataclass(slots=True)
class FujinStats(PushStats):
    """Plain numbers, exported on scrape. Subscribers are readers, those that fetch among them; each id of an ACK or NACK that is refused
    is an error."""

    requests: list[int] = field(default_factory=lambda: [0] * (max(Request) + 1))
    """By number; those that are no command under 0."""

    def requests_by_name(self) -> dict[str, int]:
        named = {request.name.lower(): self.requests[request] for request in Request if self.requests[request]}
        if self.requests[0]:
            named["unknown"] = self.requests[0]
        return named

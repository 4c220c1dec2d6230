"""What a Fujin listener is told, and what its sessions count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pydantic import Field

from penstock.protocols.fujin.wire import BODY_BYTES_MAX_DEFAULT, Request
from penstock.settings import DurationMs, GroupName, Seconds, Section, Size, TopicName
from penstock.stats import PushStats


class FujinAlias(Section):
    """`[listeners.fujin.aliases.<name>]`: the topic and group for a name that Fujin clients use."""

    topic: TopicName
    """The topic to read and write."""
    group: GroupName | None = None
    """The group whose readers share the records. Default: the listener's."""
    start: Literal["earliest", "latest"] | None = None
    """Where a group without a position starts. Default: as for the listener."""


class Alias(NamedTuple):
    """What a name stands for: the topic that is written or read, and for readers their group and where it begins."""

    topic: str
    group: str
    start: Literal["earliest", "latest"]


class FujinSettings(Section):
    """The settings of `[listeners.fujin]` that are about the protocol."""

    aliases: dict[str, FujinAlias] = Field({})
    """Names that stand for topics, each a section `[listeners.fujin.aliases.<name>]`. Any other name is the topic itself."""
    group: GroupName = "fujin"
    """The group of readers unless an alias names another. Readers of a group share the records."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where a group without a position starts."""
    auto_create: bool = True
    """Create a topic that does not exist when it is written or read, instead of refusing the request."""
    dialect: Literal["auto", "spec", "native"] = "auto"
    """`spec`: readers get everything that the contract allows. `native`: only what deployed clients can decode. `auto`: `native` until a
    connection sends something that only the contract defines."""
    write_form: Literal["auto", "table", "code"] = "auto"
    """Whether a WRITE has the headers field: `table`, as in the contract's table; `code`, without it, as deployed clients send; `auto`
    detects it."""
    body_bytes_max: Size = Field(BODY_BYTES_MAX_DEFAULT, ge=1)
    """The largest message, in either direction. A larger WRITE is refused; a larger record becomes a dead letter. Deployed clients are
    pushed at most 64 KiB, see `dialect`."""
    ping_interval_s: Seconds = Field(2.0, ge=0.05)
    """Interval of PINGs to a client."""
    ping_timeout_s: Seconds = Field(5.0, ge=0.05)
    """A client that does not answer a PING within this time is disconnected."""
    fetch_wait_s: Seconds = Field(5.0, ge=0, lt=10)
    """How long a FETCH waits for a record. Deployed clients give up after 10 s, and a later reply crashes them."""
    fetches_max: int = Field(64, ge=1, le=4_096)
    """Fetches of one reader that wait for records at the same time."""
    empty_fetch: Literal["auto", "batch", "error"] = "auto"
    """The reply to a FETCH without records: `batch`, an empty batch as in the contract; `error`, which deployed clients can handle; `auto`,
    as `dialect` requires."""
    empty_values: Literal["skip", "deliver"] = "skip"
    """Whether empty records are skipped or delivered. They crash deployed readers."""
    unacknowledged_max: int = Field(256, ge=1, le=4096)
    """Unacknowledged messages of one reader. Above it nothing more is pushed. Deployed clients stop reading at 1000."""
    ack_ms_max: DurationMs = Field(30_000, ge=1)
    """Acknowledgement timeout: an unacknowledged record is redelivered after this time."""

    def find(self, name: str) -> Alias:
        """What a name stands for; itself where no alias says otherwise."""
        alias = self.aliases.get(name)
        if alias is None:
            return Alias(name, self.group, self.start)
        return Alias(alias.topic, alias.group or self.group, alias.start or self.start)


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

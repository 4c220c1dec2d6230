"""What a torture came to: which records are lost or there twice, and what was done to cause it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

# A query that is stopped and started in peace is a change, but nobody was killed and nothing done again.
PEACEFUL = frozenset(
    {"query stopped", "no worker found", "run stopped", "no batch to forget", "a rebuild is under way"}
)
SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    acknowledged: int
    """Records that the writer heard are stored."""
    sent: int
    """Records in the source: of some that were being written when the broker died, the writer never heard."""
    found: int
    """Records in the sink."""
    lost: Counter[bytes]
    twice: Counter[bytes]

    @property
    def flawless(self) -> bool:
        return not self.lost and not self.twice

    def lines(self) -> Iterator[str]:
        yield f"records: {self.acknowledged} acknowledged to their writer, {self.sent} in the source, {self.found} in the sink"
        for what, records in (("lost", self.lost), ("there twice", self.twice)):
            examples = b", ".join(sorted(records)[:SHOWN_MAX]).decode(errors="replace")
            yield f"{what}: {records.total()}" + (f" (as {examples})" if records else "")


def judge(acknowledged: Iterable[bytes], source: Iterable[bytes], sink: Iterable[bytes]) -> Verdict:
    """Everything in the source must be in the sink, once; and everything that was acknowledged in the source, so in the sink too."""
    heard, sent, found = Counter(acknowledged), Counter(source), Counter(sink)
    # Values differ from one another, so two of one in the source are as wrong as two of one in the sink.
    twice = Counter({value: count - 1 for value, count in found.items() if count > 1}) | (found - sent)
    return Verdict(heard.total(), sent.total(), found.total(), (sent | heard) - found, twice)


@dataclass(slots=True)
class Deeds:
    """What was done, by kind."""

    by_kind: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str) -> None:
        self.by_kind[kind] += 1

    @property
    def kills_and_replays(self) -> int:
        return sum(count for kind, count in self.by_kind.items() if kind not in PEACEFUL)

    def lines(self) -> Iterator[str]:
        width = max((len(kind) for kind in self.by_kind), default=0)
        for kind, count in sorted(self.by_kind.items(), key=lambda each: (-each[1], each[0])):
            yield f"{kind:{width}s} {count:5d}"
        yield f"kills and replays: {self.kills_and_replays}"

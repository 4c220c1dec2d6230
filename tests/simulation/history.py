"""What clients did and saw in a run, and the rules that it must obey.

The rules for records are those of `penstock.testing.checker`. Beyond them:
- a record that was read is still there at the end, at the same place (topics with `fsync`);
- of what a topic with `interval` or `none` acknowledged before a power cut, only a tail may be lost, and with `interval` only what is
  younger than the interval;
- a transaction is there as a whole or not at all;
- a compacted topic holds the latest value of each key;
- a group's committed offset is the last one that was acknowledged or one that was sent after it, and not beyond the end of the log;
- what was subscribed to is delivered at least once;
- a topic exists from the acknowledged creation to the deletion, and is empty when it is created.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.clients.records import RecordMetadata
from penstock.errors import PenstockError
from penstock.testing.checker import ReadRecord, Report, Rule, check_attempts
from penstock.testing.journal import NO_PLACE, Attempt
from penstock.testing.load import OUTCOME_UNKNOWN

INTERVAL_MS = 200
INTERVAL_SLACK_S = 0.3
"""How late a flush may be: the commit thread has to come to it."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    partitions: int = 1
    durability: str = "fsync"
    cleanup: str = "delete"


TOPICS = {
    "single": TopicSpec(),
    "spread": TopicSpec(partitions=4),
    "interval": TopicSpec(partitions=2, durability=f"interval:{INTERVAL_MS}"),
    "loose": TopicSpec(partitions=2, durability="none"),
    "compacted": TopicSpec(cleanup="compact"),
}
DURABLE = frozenset(name for name, spec in TOPICS.items() if spec.durability == "fsync")
LOGGED = frozenset(name for name, spec in TOPICS.items() if spec.cleanup == "delete")
"""Topics that keep every record."""

Place = tuple[str, int, int]
GroupPlace = tuple[str, str, int]


@dataclass(slots=True)
class Commits:
    """The offsets that one consumer has committed for one partition."""

    acked: int | None = None
    unknown: set[int] = field(default_factory=set)
    """Sent after the last acknowledged one."""

    def allows(self, found: int | None) -> bool:
        return found == self.acked or found in self.unknown


@dataclass(slots=True)
class FinalState:
    """What is found at the end of a run."""

    records: list[ReadRecord]
    """Everything in all topics, over FlyMQ."""
    rustlog: list[ReadRecord]
    felix: dict[str, list[bytes]]
    """By topic of one partition: values in order."""
    fujin: dict[str, list[bytes]]
    """By topic: values, in some order."""
    topics: set[str]
    ends: dict[tuple[str, int], int]
    committed: dict[GroupPlace, int | None]


class History:
    """Notes of a run. Times are those of the loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.attempts: list[Attempt] = []
        self._sent_s: list[float] = []
        """By attempt. An acknowledgement may be on its way when the power goes, and belongs to the time before."""
        self._acked_s: dict[int, float] = {}
        self.seen: dict[Place, bytes] = {}
        self.commits: defaultdict[GroupPlace, Commits] = defaultdict(Commits)
        self.delivered: defaultdict[str, set[bytes]] = defaultdict(set)
        """Values by subscription, whose name is its topic's behind that of the protocol."""
        self.transactions: list[list[int]] = []
        self.topics: dict[str, bool | None] = {}
        """Whether a topic exists; None if that is unknown."""
        self.violations: list[str] = []
        """What was wrong while the run continued."""

    # -- notes -------------------------------------------------------------------------------------------------------------

    def sending(
        self, producer: str, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes]
    ) -> list[Attempt]:
        first = len(self.attempts)
        new = [
            Attempt(first + number, producer, topic, key, value)
            for number, (key, value) in enumerate(zip(keys, values, strict=True))
        ]
        self.attempts += new
        self._sent_s += [self._now_s()] * len(new)
        return new

    def answered(self, attempts: Sequence[Attempt], results: Sequence[RecordMetadata | PenstockError | None]) -> None:
        for attempt, result in zip(attempts, results, strict=True):
            if isinstance(result, PenstockError):
                attempt.state = "unknown" if isinstance(result, OUTCOME_UNKNOWN) else "failed"
                continue
            attempt.state = "acked"
            self._acked_s[attempt.id] = self._now_s()
            attempt.partition, attempt.offset = NO_PLACE if result is None else (result.partition, result.offset)

    def saw(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        if topic in DURABLE:
            known = self.seen.setdefault((topic, partition, offset), value)
            if known != value:
                self.violations.append(
                    f"{topic}/{partition}@{offset} was read as {known[:40]!r} and later as {value[:40]!r}"
                )

    def found_committed(self, place: GroupPlace, found: int | None) -> None:
        commits = self.commits[place]
        if not commits.allows(found):
            self.violations.append(
                f"group {place[0]} of {place[1]}/{place[2]} is at {found}: acknowledged was {commits.acked}, "
                f"sent after it {sorted(commits.unknown)}"
            )

    # -- rules -------------------------------------------------------------------------------------------------------------

    def check(self, final: FinalState, power_cuts_s: Sequence[float], *, flushes_failed: bool) -> list[str]:
        """Return everything that is wrong."""
        by_value = {(record.topic, record.value): record for record in final.records}
        self._forgive_lost_tails(by_value, power_cuts_s, flushes_failed=flushes_failed)
        logged = [record for record in final.records if record.topic in LOGGED]
        report = check_attempts([each for each in self.attempts if each.topic in LOGGED], {"flymq": logged})
        self._check_compacted(final, report)
        self.violations += [f"{violation.rule.value}: {violation.detail}" for violation in report.violations]
        self._check_seen(final)
        self._check_agreement(logged, final)
        self._check_transactions(by_value)
        self._check_groups(final)
        self._check_deliveries(logged)
        self._check_topics(final)
        return self.violations

    def _forgive_lost_tails(
        self, by_value: dict[tuple[str, bytes], ReadRecord], cuts_s: Sequence[float], *, flushes_failed: bool
    ) -> None:
        """Take back the acknowledgement of records that their topics were allowed to lose."""
        lost: defaultdict[tuple[str, int, int], list[Attempt]] = defaultdict(list)
        kept: list[tuple[tuple[str, int, int], Attempt]] = []
        for attempt in self.attempts:
            if attempt.state != "acked" or attempt.topic not in LOGGED - DURABLE:
                continue
            sent_s = self._sent_s[attempt.id]
            epoch = sum(cut_s <= sent_s for cut_s in cuts_s)
            place = attempt.topic, attempt.partition, epoch
            if (attempt.topic, attempt.value) in by_value or epoch == len(cuts_s):
                # One that the power went between may have been stored after it, by a client that had to connect again.
                if not any(sent_s < cut_s <= self._acked_s[attempt.id] for cut_s in cuts_s):
                    kept.append((place, attempt))
                continue
            self._judge_loss(attempt, cuts_s[epoch] - self._acked_s[attempt.id], flushes_failed=flushes_failed)
            attempt.state = "unknown"
            lost[place].append(attempt)
        for place, attempt in kept:
            for before in lost[place]:
                if 0 <= before.offset < attempt.offset:
                    self.violations.append(
                        f"{attempt.topic}/{attempt.partition} lost offset {before.offset} and kept {attempt.offset} over a power cut"
                    )

    def _judge_loss(self, attempt: Attempt, age_s: float, *, flushes_failed: bool) -> None:
        allowed_s = INTERVAL_MS / 1000 + INTERVAL_SLACK_S
        if attempt.topic == "interval" and age_s > allowed_s and not flushes_failed:
            self.violations.append(f"{attempt.value[:40]!r} was lost {age_s:.3f} s after its acknowledgement")

    def _check_compacted(self, final: FinalState, report: Report) -> None:
        latest: dict[bytes | None, bytes] = {}
        sent = {
            attempt.value for attempt in self.attempts if attempt.topic == "compacted" and attempt.state != "failed"
        }
        for record in final.records:
            if record.topic == "compacted":
                latest[record.key] = record.value
                if record.value not in sent:
                    report.add(Rule.NOTHING_INVENTED, f"compacted@{record.offset} holds {record.value[:40]!r}")
        allowed: defaultdict[bytes | None, list[bytes | None]] = defaultdict(lambda: [None])
        for attempt in self.attempts:
            if attempt.topic == "compacted":
                if attempt.state == "acked":
                    allowed[attempt.key] = [attempt.value]
                elif attempt.state == "unknown":
                    allowed[attempt.key].append(attempt.value)
        for key, values in allowed.items():
            if latest.get(key) not in values:
                report.add(Rule.LATEST_IS_KEPT, f"{key!r} has {latest.get(key)!r}, expected one of {values!r}")

    def _check_seen(self, final: FinalState) -> None:
        there = {(record.topic, record.partition, record.offset): record.value for record in final.records}
        for place, value in self.seen.items():
            if place[0] in LOGGED and there.get(place) != value:
                self.violations.append(f"{place} was read as {value[:40]!r} and is {there.get(place)!r} at the end")

    def _check_agreement(self, logged: Iterable[ReadRecord], final: FinalState) -> None:
        flymq: defaultdict[str, list[bytes]] = defaultdict(list)
        for record in logged:
            flymq[record.topic].append(record.value)
        expected = {(r.topic, r.partition, r.offset): r.value for r in logged}
        rustlog = {(r.topic, r.partition, r.offset): r.value for r in final.rustlog}
        if expected != rustlog:
            places = sorted(
                place for place in expected.keys() | rustlog.keys() if expected.get(place) != rustlog.get(place)
            )
            self.violations.append(f"FlyMQ and RustLog read different records at {places[:5]}")
        for topic, values in final.felix.items():
            if values != flymq[topic]:
                self.violations.append(f"FlyMQ and Felix read different records of {topic}")
        for topic, values in final.fujin.items():
            if sorted(set(values)) != sorted(set(flymq[topic])):
                missing = sorted(set(flymq[topic]) ^ set(values))
                self.violations.append(f"FlyMQ and Fujin read different records of {topic}: {missing[:3]}")

    def _check_transactions(self, by_value: dict[tuple[str, bytes], ReadRecord]) -> None:
        for ids in self.transactions:
            attempts = [self.attempts[number] for number in ids]
            there = [(each.topic, each.value) in by_value for each in attempts]
            if any(there) and not all(there):
                missing = [each.value for each, found in zip(attempts, there, strict=True) if not found]
                self.violations.append(f"a transaction is there in part: {missing[:3]} of {len(there)} are missing")

    def _check_groups(self, final: FinalState) -> None:
        for place, found in final.committed.items():
            self.found_committed(place, found)
            end = final.ends.get((place[1], place[2]), 0)
            if found is not None and found > end:
                self.violations.append(f"group {place[0]} is at {found} of {place[1]}/{place[2]}, which ends at {end}")

    def _check_deliveries(self, logged: Iterable[ReadRecord]) -> None:
        for name, values in self.delivered.items():
            topic = name.partition(" ")[2]
            there = {record.value for record in logged if record.topic == topic}
            if missed := there - values:
                self.violations.append(
                    f"{name}: {len(missed)} records were not delivered, such as {min(missed)[:40]!r}"
                )
            if invented := values - there:
                self.violations.append(
                    f"{name}: {len(invented)} deliveries are not in the log, such as {min(invented)[:40]!r}"
                )

    def _check_topics(self, final: FinalState) -> None:
        for topic, exists in self.topics.items():
            if exists is not None and exists != (topic in final.topics):
                self.violations.append(f"topic {topic} should {'' if exists else 'not '}exist")

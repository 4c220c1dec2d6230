"""Did the broker keep its word? Compare what a journal says was sent with what readers found.

The rules, each reported under its own name:
- two records never share one place, and no place is acknowledged twice;
- an acknowledged record is at the place it was acknowledged at (somewhere, if the protocol does not tell), byte for byte;
- a refused record is nowhere;
- a record is there at most once per attempt that could have stored it (a retry after an unknown outcome may store it twice);
- one producer's records stand in the order it sent them, per partition;
- all readers (protocols, or one protocol before and after a restart) found the same;
- nothing is there that was never sent.

Values identify records, so a load must make each value unique. Everything is kept in memory: millions of small records are fine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from penstock.testing.journal import NO_PLACE, Attempt, Journal, read_attempts

EXAMPLES_PER_RULE_MAX = 5
SHOWN_BYTES_MAX = 40


class ReadRecord(NamedTuple):
    """One record as a reader found it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes


class Rule(Enum):
    ONE_RECORD_PER_PLACE = "one place holds two records"
    ACKED_IS_PRESENT = "an acknowledged record is missing or altered"
    FAILED_IS_ABSENT = "a refused record is readable"
    NO_DUPLICATES = "a record is there more often than it was sent"
    ORDER_IS_KEPT = "a producer's records are out of order"
    READERS_AGREE = "two readers disagree"
    NOTHING_INVENTED = "a record is readable that was never sent"
    LATEST_IS_KEPT = "a compacted topic lost the latest value of a key"
    OFFSET_IS_KEPT = "a committed offset of a group is lost"
    READ_TO_THE_END = "a topic cannot be read to its end"


LOSSES = (Rule.ACKED_IS_PRESENT, Rule.LATEST_IS_KEPT, Rule.OFFSET_IS_KEPT)
"""Something that was acknowledged is not there."""


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Rule
    detail: str


@dataclass(slots=True)
class Report:
    """The verdict. `str(report)` is a few lines for a person; `raise_for_violations()` is for tests."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    unknown: int = 0
    read: int = 0
    violations: list[Violation] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def lost(self) -> int:
        """How often something acknowledged is not there."""
        return sum(violation.rule in LOSSES for violation in self.violations)

    @property
    def duplicated(self) -> int:
        return sum(violation.rule is Rule.NO_DUPLICATES for violation in self.violations)

    @property
    def wrong(self) -> int:
        """Violations of all other rules: what is there and should not be, or not where it is."""
        return len(self.violations) - self.lost - self.duplicated

    def add(self, rule: Rule, detail: str) -> None:
        self.violations.append(Violation(rule, detail))

    def raise_for_violations(self) -> None:
        if self.violations:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        verdict = "passed" if self.ok else "FAILED"
        counts = f"{self.sent} sent ({self.acked} acknowledged, {self.failed} refused, {self.unknown} unknown), {self.read} read"
        lines = [f"delivery check {verdict}: {counts}"]
        by_rule: dict[Rule, list[str]] = defaultdict(list)
        for violation in self.violations:
            by_rule[violation.rule].append(violation.detail)
        for rule, details in by_rule.items():
            lines.append(f"  {rule.value}: {len(details)}")
            lines += [f"    {detail}" for detail in details[:EXAMPLES_PER_RULE_MAX]]
            if len(details) > EXAMPLES_PER_RULE_MAX:
                lines.append(f"    and {len(details) - EXAMPLES_PER_RULE_MAX} more")
        return "\n".join(lines)


_Place = tuple[str, int, int]
_Content = tuple[bytes | None, bytes]


def check(journal: Journal | Path | str, readers: Mapping[str, Iterable[ReadRecord]]) -> Report:
    """Check everything in the journal against what each named reader found when it read everything.

    The first reader is the reference; the others must have found the same. A reader may see one record again (redelivery).
    """
    return check_attempts(journal.attempts() if isinstance(journal, Journal) else read_attempts(journal), readers)


def check_attempts(attempts: list[Attempt], readers: Mapping[str, Iterable[ReadRecord]]) -> Report:
    """Check attempts that are kept elsewhere, in the order in which they were made; else like `check`."""
    if not readers:
        raise ValueError("a delivery check needs at least one reader, as in check(journal, {'flymq': records})")
    report = count(attempts)
    views = {name: _view(name, records, report) for name, records in readers.items()}
    reference_name, reference = next(iter(views.items()))
    report.read = len(reference)
    for name, view in views.items():
        if name != reference_name:
            _check_agreement(reference_name, reference, name, view, report)
    places_by_value: dict[tuple[str, bytes], list[_Place]] = defaultdict(list)
    for place, (_, value) in reference.items():
        places_by_value[place[0], value].append(place)
    attempts_by_value: dict[tuple[str, bytes], list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        attempts_by_value[attempt.topic, attempt.value].append(attempt)
    _check_acked(attempts, reference, places_by_value, report)
    _check_occurrences(attempts_by_value, places_by_value, reference, report)
    _check_order(attempts, attempts_by_value, places_by_value, report)
    return report


def count(attempts: Sequence[Attempt]) -> Report:
    """Return a report with the counts of these attempts and no verdict yet."""
    states = Counter(attempt.state for attempt in attempts)
    return Report(len(attempts), states["acked"], states["failed"], states["unknown"])


def _view(name: str, records: Iterable[ReadRecord], report: Report) -> dict[_Place, _Content]:
    view: dict[_Place, _Content] = {}
    for topic, partition, offset, key, value in records:
        content = (key, value)
        known = view.setdefault((topic, partition, offset), content)
        if known != content:
            detail = f"{name} read {_shown(known)} and later {_shown(content)} at {_spot((topic, partition, offset))}"
            report.add(Rule.ONE_RECORD_PER_PLACE, detail)
    return view


def _check_agreement(
    reference_name: str, reference: dict[_Place, _Content], name: str, view: dict[_Place, _Content], report: Report
) -> None:
    if view == reference:
        return
    for place in sorted(reference.keys() | view.keys()):
        ours, theirs = reference.get(place), view.get(place)
        if ours != theirs:
            detail = f"{_spot(place)}: {reference_name} read {_shown(ours)}, {name} read {_shown(theirs)}"
            report.add(Rule.READERS_AGREE, detail)


def _check_acked(
    attempts: list[Attempt],
    reference: dict[_Place, _Content],
    places_by_value: Mapping[tuple[str, bytes], list[_Place]],
    report: Report,
) -> None:
    owners: dict[_Place, Attempt] = {}
    for attempt in attempts:
        if attempt.state != "acked":
            continue
        if (attempt.partition, attempt.offset) == NO_PLACE:
            if not places_by_value.get((attempt.topic, attempt.value)):
                detail = f"{_shown_attempt(attempt)} was acknowledged and is nowhere in {attempt.topic}"
                report.add(Rule.ACKED_IS_PRESENT, detail)
            continue
        place = (attempt.topic, attempt.partition, attempt.offset)
        owner = owners.setdefault(place, attempt)
        if owner is not attempt:
            detail = f"{_spot(place)} was acknowledged for {_shown_attempt(owner)} and for {_shown_attempt(attempt)}"
            report.add(Rule.ONE_RECORD_PER_PLACE, detail)
        found = reference.get(place)
        if found != (attempt.key, attempt.value):
            detail = f"{_shown_attempt(attempt)} was acknowledged at {_spot(place)}, which holds {_shown(found)}"
            report.add(Rule.ACKED_IS_PRESENT, detail)


def _check_occurrences(
    attempts_by_value: Mapping[tuple[str, bytes], list[Attempt]],
    places_by_value: Mapping[tuple[str, bytes], list[_Place]],
    reference: dict[_Place, _Content],
    report: Report,
) -> None:
    for identity, places in places_by_value.items():
        tries = attempts_by_value.get(identity)
        if tries is None:
            for place in places:
                detail = f"{_spot(place)} holds {_shown(reference[place])}"
                report.add(Rule.NOTHING_INVENTED, detail)
            continue
        keys = {attempt.key for attempt in tries}
        for place in places:
            if reference[place][0] not in keys:
                detail = f"{_spot(place)} holds {_shown(reference[place])}, whose value was sent with another key"
                report.add(Rule.NOTHING_INVENTED, detail)
        possible = sum(attempt.state != "failed" for attempt in tries)
        if len(places) > possible:
            refused = any(attempt.state == "failed" for attempt in tries)
            rule = Rule.FAILED_IS_ABSENT if refused else Rule.NO_DUPLICATES
            where = ", ".join(map(_spot, places))
            detail = f"{_shown_attempt(tries[0])} could be stored {possible} times and is at {where}"
            report.add(rule, detail)


def _check_order(
    attempts: list[Attempt],
    attempts_by_value: Mapping[tuple[str, bytes], list[Attempt]],
    places_by_value: Mapping[tuple[str, bytes], list[_Place]],
    report: Report,
) -> None:
    latest: dict[tuple[str, str, int], tuple[int, Attempt]] = {}
    for attempt in attempts:
        if attempt.state == "acked" and attempt.offset >= 0:
            partition, offset = attempt.partition, attempt.offset
        else:
            # Which attempt stored a record is certain only where there was one attempt and there is one record.
            identity = attempt.topic, attempt.value
            places = places_by_value.get(identity, ())
            if len(places) != 1 or len(attempts_by_value[identity]) != 1:
                continue
            _, partition, offset = places[0]
        line = attempt.producer, attempt.topic, partition
        before = latest.get(line)
        if before is not None and offset <= before[0]:
            detail = (
                f"{attempt.producer} sent {_shown_attempt(before[1])} before {_shown_attempt(attempt)}, "
                f"yet they are at offsets {before[0]} and {offset} of {attempt.topic}/{partition}"
            )
            report.add(Rule.ORDER_IS_KEPT, detail)
        else:
            latest[line] = offset, attempt


def _spot(place: _Place) -> str:
    topic, partition, offset = place
    return f"{topic}/{partition}@{offset}"


def _shown(content: _Content | None) -> str:
    if content is None:
        return "nothing"
    key, value = content
    text = _shortened(value)
    return text if key is None else f"{text} (key {_shortened(key)})"


def _shown_attempt(attempt: Attempt) -> str:
    return f"#{attempt.id} {_shown((attempt.key, attempt.value))}"


def _shortened(value: bytes) -> str:
    if len(value) <= SHOWN_BYTES_MAX:
        return repr(value)
    return f"{value[:SHOWN_BYTES_MAX]!r}... of {len(value)} bytes"

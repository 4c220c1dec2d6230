"""How fast things change between two samples of a broker, and a sample as programs get it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from penstock.cli.sample import GroupSample, ListenerSample, Sample, TopicSample

LISTENER_COUNTERS = ("requests", "received_records", "sent_records", "received_bytes", "sent_bytes")
NO_LISTENER = ListenerSample()
NO_TOPIC = TopicSample()


@dataclass(frozen=True, slots=True)
class Rates:
    """From one sample to a later one of the same run of the broker; all zero without an earlier one."""

    before: Sample | None
    after: Sample

    @property
    def seconds(self) -> float:
        """Between the samples; 0 if there is nothing to compare."""
        if self.before is None or self.before.started_s != self.after.started_s:
            return 0.0
        return max(0.0, self.after.at_s - self.before.at_s)

    def per_s(self, before: float, after: float) -> float:
        return max(0.0, after - before) / self.seconds if self.seconds else 0.0

    def of(self, name: str) -> float:
        """The rate of one of the sample's own counters."""
        return 0.0 if self.before is None else self.per_s(getattr(self.before, name), getattr(self.after, name))

    def listener(self, listener: str, name: str) -> float:
        if self.before is None:
            return 0.0
        before, after = (each.listeners.get(listener, NO_LISTENER) for each in (self.before, self.after))
        return self.per_s(getattr(before, name), getattr(after, name))

    def topic(self, topic: str) -> float:
        """Records appended to a topic per second. One that was not there before has begun with what it has."""
        if self.before is None:
            return 0.0
        return self.per_s(
            self.before.topics.get(topic, NO_TOPIC).end_offsets, self.after.topics.get(topic, NO_TOPIC).end_offsets
        )

    def lag(self, group: GroupSample) -> float:
        """Records per second by which a group falls behind; negative while it catches up."""
        if self.before is None or not self.seconds:
            return 0.0
        before = next(
            (each.lag for each in self.before.groups if (each.group, each.topic) == (group.group, group.topic)),
            group.lag,
        )
        return (group.lag - before) / self.seconds

    @property
    def flush_ms(self) -> float | None:
        """How long a flush took on average; None if there was none."""
        if self.before is None or not self.seconds or self.after.flushes <= self.before.flushes:
            return None
        return 1000 * (self.after.flush_s - self.before.flush_s) / (self.after.flushes - self.before.flushes)


def sample_json(sample: Sample, now_s: float | None = None) -> dict[str, Any]:
    """A sample without rates."""
    now_s = time.time() if now_s is None else now_s
    return {
        "ready": sample.ready,
        "state": sample.state,
        "problems": sample.problems,
        "version": sample.version,
        "uptime_s": round(max(0.0, now_s - sample.started_s), 3),
        "memory_bytes": sample.memory_bytes,
        "connections": sample.connections,
        "topics_total": len(sample.topics),
        "records": sample.records,
        "stored_bytes": sample.stored_bytes,
        "disk_size_bytes": sample.disk_size_bytes,
        "disk_free_bytes": sample.disk_free_bytes,
        "delayed_pending": sample.delayed_pending,
        "transactions_open": sample.transactions_open,
        "dead_letters_waiting": sample.dead_letters_waiting,
        "listeners": [
            {
                "listener": name,
                "address": each.address or None,
                "connections": each.connections,
                **{counter: int(getattr(each, counter)) for counter in LISTENER_COUNTERS},
            }
            for name, each in sample.listeners.items()
        ],
        "topics": [
            {"topic": name, "partitions": each.partitions, "records": each.records, "size_bytes": each.size_bytes}
            for name, each in sample.topics.items()
        ],
        "groups": [
            {"group": each.group, "topic": each.topic, "lag": each.lag, "lag_s": each.seconds} for each in sample.groups
        ],
        "partitions_left_out": sample.topics_left_out,
        "groups_left_out": sample.groups_left_out,
    }


def rates_json(rates: Rates) -> dict[str, Any]:
    """A sample with the rates since the one before."""
    sample = rates.after
    document = sample_json(sample)
    document |= {
        "interval_s": round(rates.seconds, 3),
        "records_per_s": rates.of("appended_records"),
        "bytes_per_s": rates.of("appended_bytes"),
        "cpu": rates.of("cpu_s"),
        "flush_ms": rates.flush_ms,
    }
    for row in document["listeners"]:
        for name in LISTENER_COUNTERS:
            row[f"{name}_per_s"] = rates.listener(row["listener"], name)
    for row in document["topics"]:
        row["records_per_s"] = rates.topic(row["topic"])
    for row, group in zip(document["groups"], sample.groups, strict=True):
        row["lag_per_s"] = rates.lag(group)
    return document

"""What the admin address of a broker tells, as `penstock top`, `penstock status` and `penstock doctor` use it.

They ask the admin address, not FlyMQ: it answers while the broker starts, stops or refuses clients, which is when one looks; it needs
no login on loopback; and what it tells is what a monitoring system sees. `/readyz` says whether all is well, `/metrics` has the numbers.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.cli.admin_access import AdminAccess
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    ConfigError,
    EntryNotFound,
    LimitExceeded,
    PenstockError,
    PipelineRunning,
    ProtocolViolation,
    ShuttingDown,
    Unreachable,
)
from penstock.names import is_internal

TIMEOUT_S = 5.0
BODY_BYTES_MAX = 64 << 20
PREFIX = "penstock_"
REFUSALS: tuple[type[PenstockError], ...] = (EntryNotFound, PipelineRunning, LimitExceeded, ConfigError, ShuttingDown)
"""What the address refuses requests with, besides missing rights."""


@dataclass(slots=True)
class ListenerSample:
    address: str = ""
    connections: int = 0
    received_bytes: float = 0
    sent_bytes: float = 0
    received_records: float = 0
    sent_records: float = 0
    requests: float = 0


@dataclass(slots=True)
class TopicSample:
    partitions: int = 0
    records: int = 0
    end_offsets: int = 0
    """Sum over the partitions: grows by one for each record."""
    size_bytes: int = 0


@dataclass(slots=True)
class GroupSample:
    """A group or a subscription in one topic."""

    group: str
    topic: str
    lag: int = 0
    seconds: float | None = None
    """How long ago the oldest record was committed that it has not read."""


@dataclass(slots=True)
class Sample:
    """A broker at one moment."""

    at_s: float
    """By the monotonic clock of this process."""
    ready: bool
    state: str
    problems: list[str]
    """Why it is not ready."""
    version: str = ""
    started_s: float = 0
    cpu_s: float = 0
    memory_bytes: int = 0
    appended_records: float = 0
    appended_bytes: float = 0
    flushes: float = 0
    flush_s: float = 0
    disk_size_bytes: int | None = None
    disk_free_bytes: int | None = None
    topics_left_out: int = 0
    """Partitions without numbers of their own: there are too many."""
    groups_left_out: int = 0
    delayed_pending: int = 0
    transactions_open: int = 0
    dead_letters_waiting: int = 0
    listeners: dict[str, ListenerSample] = field(default_factory=dict)
    topics: dict[str, TopicSample] = field(default_factory=dict)
    """Without internal ones."""
    groups: list[GroupSample] = field(default_factory=list)
    stored_bytes: int = 0
    """All partitions, internal topics too."""

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics.values())

    @property
    def connections(self) -> int:
        return sum(listener.connections for listener in self.listeners.values())


def fetch(url: str, access: AdminAccess | None = None, clock: Callable[[], float] = time.monotonic) -> Sample:
    """Ask an admin address. Raises Unreachable, ProtocolViolation where what answers is not Penstock's, AuthenticationRequired."""
    access = access or AdminAccess()
    readiness = _parsed_json(url, answer(f"{url}/readyz", access))
    sample = Sample(clock(), bool(readiness["ready"]), str(readiness.get("state", "?")), list(_problems(readiness)))
    _fill(sample, answer(f"{url}/metrics", access).decode("utf-8", "replace"))
    if not sample.version:
        raise ProtocolViolation(f"{url} is not the admin address of a Penstock broker: name it with --admin")
    return sample


def answer(url: str, access: AdminAccess, method: str = "GET") -> bytes:
    """Return what the admin address answers, after a login if it asks for one. Raises Unreachable, and what the broker refuses with."""
    try:
        return _answer(url, access, method)
    except AuthenticationRequired:
        access.log_in(url)
        return _answer(url, access, method)


def _answer(url: str, access: AdminAccess, method: str) -> bytes:
    try:
        with access.opener(url).open(access.request(url, method), timeout=TIMEOUT_S) as response:
            return _body(url, response)
    except urllib.error.HTTPError as error:
        with error:
            body = _body(url, error)
        if b"urn:penstock:" in body:
            raise _refusal(error.code, body, access) from None
        if error.code == http.client.SERVICE_UNAVAILABLE:  # how /readyz says no
            return body
        raise ProtocolViolation(
            f"{url} answers {error.code} {error.reason}: name the admin address with --admin"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise Unreachable(
                f"the certificate of {url.rpartition('/')[0]} is not trusted ({reason.verify_message}): name the CA in the address of "
                "the broker, as in --server flymqs://host:9093?ca=FILE"
            ) from None
        told = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise Unreachable(
            f"cannot reach the admin address {url.rpartition('/')[0]} ({told}); is the broker running? "
            "Start one with: penstock serve, or name another with --admin or --server"
        ) from None


def _refusal(status: int, body: bytes, access: AdminAccess) -> PenstockError:
    try:
        problem = json.loads(body)
        detail, code = str(problem["detail"]), str(problem["code"])
    except (ValueError, TypeError, KeyError):
        detail, code = f"the admin address answers {status}", ""
    if status == http.client.UNAUTHORIZED:
        return AuthenticationFailed(detail) if access.logged_in else AuthenticationRequired(detail)
    return next((kind for kind in REFUSALS if kind.code == code), AccessDenied)(detail)


def _body(url: str, response: Any) -> bytes:
    data: bytes = response.read(BODY_BYTES_MAX + 1)
    if len(data) > BODY_BYTES_MAX:
        raise ProtocolViolation(f"{url} answers more than {BODY_BYTES_MAX} bytes: name the admin address with --admin")
    return data


def _parsed_json(url: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
        document["ready"]
    except (ValueError, TypeError, KeyError):
        raise ProtocolViolation(f"{url} is not the admin address of a Penstock broker: name it with --admin") from None
    return dict(document)


def _problems(readiness: dict[str, Any]) -> Iterator[str]:
    if readiness["ready"]:
        return
    if readiness.get("state") != "ready":
        yield f"the broker is {readiness.get('state', 'not ready')}"
    named = readiness.get("failed_partitions", [])
    for each in named:
        yield f"partition {each['partition']} of topic {each['topic']} refuses writes: {each['failure']}"
    if (hidden := readiness.get("failed", 0) - len(named)) > 0:
        yield f"{hidden} more partitions refuse writes"
    for each in readiness.get("failing_tasks", []):
        yield f"background task {each['task']} fails: {each['failure']}"


def _fill(sample: Sample, text: str) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    groups: dict[tuple[str, str], GroupSample] = {}
    subscriptions: dict[tuple[str, str], GroupSample] = {}
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError as error:
        raise ProtocolViolation(
            f"the admin address does not answer with metrics ({error}): name it with --admin"
        ) from None
    for family in families:
        for name, labels, value, *_ in family.samples:
            if (plain := _PLAIN.get(name)) is not None:
                setattr(sample, plain, value if plain in _FLOATS else int(value))
            elif (place := _BY_LISTENER.get(name)) is not None:
                listener = sample.listeners.setdefault(labels["listener"], ListenerSample())
                setattr(listener, place, getattr(listener, place) + type(getattr(listener, place))(value))
            elif name == PREFIX + "listener_info":
                sample.listeners.setdefault(labels["listener"], ListenerSample()).address = labels["address"]
            elif name == PREFIX + "build_info":
                sample.version = labels["version"]
            elif name.startswith(PREFIX + "partition_"):
                _add_partition(sample, name.removeprefix(PREFIX + "partition_"), labels["topic"], int(value))
            elif name.startswith(PREFIX + "group_lag_"):
                _add_lag(groups, labels["group"], labels["topic"], name, value)
            elif name.startswith(PREFIX + "subscription_lag_"):
                _add_lag(subscriptions, labels["subscription"], labels["topic"], name, value)
    sample.groups = [*groups.values(), *subscriptions.values()]


_PLAIN = {
    "process_start_time_seconds": "started_s",
    "process_cpu_seconds_total": "cpu_s",
    "process_resident_memory_bytes": "memory_bytes",
    PREFIX + "appended_records_total": "appended_records",
    PREFIX + "appended_bytes_total": "appended_bytes",
    PREFIX + "flush_duration_seconds_count": "flushes",
    PREFIX + "flush_duration_seconds_sum": "flush_s",
    PREFIX + "disk_size_bytes": "disk_size_bytes",
    PREFIX + "disk_free_bytes": "disk_free_bytes",
    PREFIX + "partitions_left_out": "topics_left_out",
    PREFIX + "group_lags_left_out": "groups_left_out",
    PREFIX + "delayed_pending": "delayed_pending",
    PREFIX + "transactions_open": "transactions_open",
    PREFIX + "dead_letters_waiting": "dead_letters_waiting",
}
_FLOATS = frozenset({"started_s", "cpu_s", "appended_records", "appended_bytes", "flushes", "flush_s"})
_BY_LISTENER = {
    PREFIX + "connections": "connections",
    PREFIX + "received_bytes_total": "received_bytes",
    PREFIX + "sent_bytes_total": "sent_bytes",
    PREFIX + "received_records_total": "received_records",
    PREFIX + "sent_records_total": "sent_records",
    PREFIX + "requests_total": "requests",
}
_OF_PARTITION = {"end_offset": 1, "start_offset": -1}


def _add_partition(sample: Sample, what: str, topic: str, value: int) -> None:
    if what == "size_bytes":
        sample.stored_bytes += value
    if is_internal(topic):
        return
    row = sample.topics.setdefault(topic, TopicSample())
    if what == "size_bytes":
        row.size_bytes += value
        row.partitions += 1
    elif what in _OF_PARTITION:
        row.records += _OF_PARTITION[what] * value
        row.end_offsets += value if what == "end_offset" else 0


def _add_lag(groups: dict[tuple[str, str], GroupSample], group: str, topic: str, name: str, value: float) -> None:
    row = groups.setdefault((group, topic), GroupSample(group, topic))
    if name.endswith("_records"):
        row.lag += int(value)
    elif name.endswith("_seconds"):
        row.seconds = value if row.seconds is None else max(row.seconds, value)

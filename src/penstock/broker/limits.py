"""The broker's bounds, in one place, so that an operator can read and change what a client can make the broker hold.

They are checked before anything is allocated or written, and `LimitExceeded` names the bound that was reached.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from penstock.errors import ConfigError
from penstock.log.api import PARTITIONS_MAX
from penstock.names import NAME_BYTES_MAX

# Offsets and times travel as signed 64-bit numbers in the log and in every protocol.
INT64_MAX: Final = (1 << 63) - 1
# Frames end at 32 MiB; 1 KiB of that is left for the topic name and the lengths around a record.
RECORD_BYTES_CEILING: Final = (32 << 20) - 1024
# With its compiled form it is one record of a table.
SCHEMA_BYTES_CEILING: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """What one broker holds at most. The log's own bounds (partitions of a topic, bytes of a record) are ceilings."""

    topics_max: int = 10_000
    """A topic is a directory and some 2 KiB of memory; a list of this many names still fits into one reply frame."""

    partitions_max: int = 50_000
    """Over all topics. A partition that is written to may hold a file open; servers commonly allow 65 536."""

    partitions_per_topic_max: int = 1_000
    """More than any reader group has members; beyond it a keyed run falls apart into blocks of one record."""

    groups_max: int = 100_000
    """Groups with offsets or members, counted once for each topic they read. Listing them all makes a reply of some 5 MB."""

    group_offsets_max: int = 200_000
    """Committed offsets over all groups. Each is a record of the groups table and some 500 bytes of memory: 100 MB."""

    group_members_max: int = 100_000
    """Subscriptions of open sessions over all groups; ten for each of the 10 000 connections a listener is sized for."""

    group_name_bytes_max: int = NAME_BYTES_MAX
    """As long as a topic's name."""

    record_bytes_max: int = RECORD_BYTES_CEILING
    """Key, value and headers of one record."""

    key_bytes_max: int = 64 << 10
    """A key is a name, and is hashed byte by byte on the event loop: 64 KiB take about 5 ms."""

    transactions_max: int = 10_000
    """Open at once. One that holds nothing takes about 1 KiB."""

    transactions_per_principal_max: int = 1_000
    """Open at once. Clients that have not said who they are count as one principal."""

    transaction_records_max: int = 100_000
    """In one transaction. Its commit is one append, during which no other commit goes to disk."""

    transaction_bytes_max: int = 64 << 20
    """In one transaction, with what its records take in memory. Written twice by the commit: to the journal and to the partitions."""

    transactions_bytes_max: int = 256 << 20
    """The same over all open transactions."""

    transaction_ms_max: int = 60_000
    """From begin to commit; what is open for longer is rolled back."""

    transactions_remembered_max: int = 100_000
    """Committed ids that are kept to refuse a second commit: 20 MB of memory."""

    transactions_remembered_ms: int = 24 * 3600 * 1000
    """How long at most. A client that asks again does so within minutes."""

    producers_max: int = 20_000
    """Idempotent producers that are known. Each takes about 1 KiB of memory, and the answers that it waits for."""

    producers_idle_ms: int = 24 * 3600 * 1000
    """How long one is known after its last request. A client that sends again does so within minutes."""

    producers_bytes_max: int = 64 << 20
    """Answers to requests that may be sent again, over all producers. Each takes 200 bytes, and up to 2 KiB if its records are spread."""

    staged_applications_max: int = 1_000
    """With records staged. Each has an internal topic, and a file open."""

    staged_tickets_max: int = 100_000
    """Attempts of tasks with records staged. Each takes about 1 KiB of memory."""

    staged_application_bytes_max: int = 256 << 30
    """Staged by one application, on disk; small requests count as 4 KiB. A write must fit whole, and once more into its topics."""

    staged_bytes_max: int = 512 << 30
    """The same over all applications."""

    staged_chunk_bytes: int = 16 << 20
    """Staged records that are published by one append, during which no other commit goes to disk; twice as much is in memory."""

    staged_ms_max: int = 24 * 3600 * 1000
    """How long records wait for a commit after the last of their ticket came: longer than any job takes."""

    schemas_max: int = 10_000
    """Names, of which the numbers of deleted versions are remembered too; as many as topics."""

    schema_versions_max: int = 1_000
    """Of one name. A version a day is three years."""

    schema_bytes_max: int = 256 << 10
    """One definition. Compiling and comparing grow with it, and it travels to a worker process with every large run of records."""

    schemas_bytes_max: int = 64 << 20
    """All definitions together: they are in memory."""

    delayed_max: int = 2_000_000
    """Delayed records that wait. Each takes 16 bytes of memory; the records themselves are on disk."""

    delay_ms_max: int = 24 * 3600 * 1000
    """As deployed brokers have it."""

    dead_letter_marks_max: int = 100_000
    """Replayed dead letters are remembered 4 096 to a mark of at most 1 KiB: 400 million of them, and 100 MB."""

    subscriptions_max: int = 10_000
    """Each takes about 1 KiB of memory and an entry of a table; those that nobody uses end by themselves."""

    subscriptions_per_principal_max: int = 2_000
    """Created by one principal; clients of listeners without authentication have no bound of their own."""

    api_keys_max: int = 10_000
    """As many as users."""

    pipelines_max: int = 1_000
    """Names under which pipelines have reported. Each is an entry of a table, and a series in the metrics for each of its stages."""

    cache_bytes_max: int = 64 << 20
    """What cached values take in memory, all together; when it is reached, those unused for longest make way."""

    cache_entries_max: int = 100_000
    """Cached values; so many short ones take some 40 MB."""

    def __post_init__(self) -> None:
        ceilings = {
            "partitions_per_topic_max": PARTITIONS_MAX,
            "record_bytes_max": RECORD_BYTES_CEILING,
            "group_name_bytes_max": NAME_BYTES_MAX,
            "schema_bytes_max": SCHEMA_BYTES_CEILING,
        }
        for field in fields(self):
            number, ceiling = getattr(self, field.name), ceilings.get(field.name, INT64_MAX)
            if not 1 <= number <= ceiling:
                raise ConfigError(f"limits.{field.name} is {number}: it must be between 1 and {ceiling}")

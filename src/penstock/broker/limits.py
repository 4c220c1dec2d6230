"""The broker's bounds, in one place, so that an operator can read and change what a client can make the broker hold.

They are checked before anything is allocated or written, and `LimitExceeded` names the bound that was reached. Each is a setting.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, model_validator

from penstock.frame_bounds import (
    MEMBER_PARTITIONS_MAX,
    MEMBER_TOPICS_MAX,
    PAYLOAD_BYTES_MAX,
    REPLY_ITEMS_MAX,
    ROLES_MAX,
)
from penstock.log.api import PARTITIONS_MAX
from penstock.names import NAME_BYTES_MAX
from penstock.settings import DurationMs, Reason, Seconds, Section, Size

# Offsets and times travel as signed 64-bit numbers in the log and in every protocol.
INT64_MAX: Final = (1 << 63) - 1
# 1 KiB of a frame is left for the topic name and the lengths around a record.
RECORD_BYTES_CEILING: Final = PAYLOAD_BYTES_MAX - 1024
# With its compiled form it is one record of a table.
SCHEMA_BYTES_CEILING: Final = 4 << 20
# More, with names of 64 characters, do not fit into what nodes tell each other of a client.
ROLES_PER_PRINCIPAL_CEILING: Final = 200
# With its overhead such a reply fits into a frame.
FETCH_BYTES_CEILING: Final = PAYLOAD_BYTES_MAX // 2

Listed = Annotated[int, Field(ge=1, le=REPLY_ITEMS_MAX), Reason("one reply of FlyMQ lists no more")]
Requested = Annotated[int, Field(ge=1), Reason("one request of FlyMQ lists no more")]


class BrokerLimits(Section):
    """What one broker holds at most."""

    record_bytes_max: Size = Field(RECORD_BYTES_CEILING, ge=1, le=RECORD_BYTES_CEILING)
    """Key, value and headers of one record. A FlyMQ frame ends at 32 MiB."""
    # A key is hashed byte by byte on the event loop: 64 KiB take about 5 ms.
    key_bytes_max: Size = Field(64 << 10, ge=1)
    """The key of one record."""
    # A topic is a directory and some 2 KiB of memory; a list of this many names still fits into one reply frame.
    topics_max: Listed = 10_000
    """Topics."""
    # A partition that is written to may hold a file open; servers commonly allow 65,536.
    partitions_max: int = Field(50_000, ge=1)
    """Partitions of all topics together."""
    # More than any group has members; beyond it a run with keys falls apart into blocks of one record.
    partitions_per_topic_max: int = Field(1_000, ge=1, le=PARTITIONS_MAX)
    """Partitions of one topic."""
    # Listing them all makes a reply of some 5 MB.
    groups_max: Listed = 100_000
    """Consumer groups, counted once for each topic they read."""
    # Each is a record of the groups table and some 500 bytes of memory: 100 MB.
    group_offsets_max: int = Field(200_000, ge=1)
    """Committed offsets of all groups together."""
    # Ten for each of the 10,000 connections that a listener is sized for.
    group_members_max: int = Field(100_000, ge=1)
    """Members of all groups: subscriptions of open connections."""
    group_name_bytes_max: Size = Field(NAME_BYTES_MAX, ge=1, le=NAME_BYTES_MAX)
    """The name of a group or subscription."""
    # As many as a topic has partitions by default; more would have nothing to read.
    members_per_group_max: Listed = 1_000
    """Members of one group."""
    topics_per_member_max: Requested = Field(100, le=MEMBER_TOPICS_MAX)
    """Topics that one member of a group subscribes to."""
    # Each is looked up with every heartbeat of the group, and has a partition at least.
    topics_per_group_max: Annotated[int, Reason("one request of FlyMQ lists no more of their partitions")] = Field(
        1_000, ge=1, le=MEMBER_PARTITIONS_MAX
    )
    """Topics of all members of one group together."""
    # An entry with 50,000 takes 500 KB of the 1 MiB that fit into a table.
    partitions_per_group_max: Requested = Field(50_000, le=MEMBER_PARTITIONS_MAX)
    """Partitions of these topics."""
    group_session_ms_min: DurationMs = Field(1_000, ge=100)
    """The shortest session timeout that a member of a group may ask for."""
    group_session_ms_max: DurationMs = Field(600_000, ge=100)
    """The longest one."""
    # Each takes about 1 KiB of memory and an entry of a table.
    subscriptions_max: int = Field(10_000, ge=1)
    """Subscriptions (BlipMQ) and groups that share records (Fujin, Felix), connected or not. `penstock group delete` deletes one."""
    subscriptions_per_principal_max: int = Field(2_000, ge=1)
    """The same, created by one principal. Clients of listeners without authentication have no bound of their own."""
    schemas_max: Listed = 10_000
    """Schemas, including those whose versions are all deleted."""
    # A version a day is three years.
    schema_versions_max: Listed = 1_000
    """Versions of one schema."""
    # Compiling and comparing grow with it, and it travels to a worker process with every large run of records.
    schema_bytes_max: Size = Field(256 << 10, ge=1, le=SCHEMA_BYTES_CEILING)
    """The definition of one version."""
    schemas_bytes_max: Size = Field(64 << 20, ge=1)
    """All definitions together, which are kept in memory."""
    # Each takes about 155 bytes of memory; the records themselves are on disk.
    delayed_max: int = Field(2_000_000, ge=1)
    """Pending delayed records."""
    # As deployed brokers have it.
    delay_ms_max: DurationMs = Field(24 * 3600 * 1000, ge=1)
    """The longest delay of a record."""
    # A mark has at most 1 KiB: 100 MB.
    dead_letter_marks_max: int = Field(100_000, ge=1)
    """Marks of replayed dead letters, of which each covers up to 4,096."""
    # One that holds nothing takes about 1 KiB.
    transactions_max: Listed = 10_000
    """Open transactions."""
    transactions_per_principal_max: int = Field(1_000, ge=1)
    """The same, of one principal. All anonymous clients count as one."""
    # A commit is one append, during which no other commit goes to disk.
    transaction_records_max: int = Field(100_000, ge=1)
    """Records in one transaction."""
    # Written twice by the commit: to the journal and to the partitions.
    transaction_bytes_max: Size = Field(64 << 20, ge=1)
    """Memory for the records of one transaction until it is committed: their bytes, and 128 for each record."""
    transactions_bytes_max: Size = Field(256 << 20, ge=1)
    """The same, of all open transactions."""
    transaction_ms_max: DurationMs = Field(60_000, ge=1)
    """Transaction timeout: a transaction that is open for longer is rolled back."""
    # 20 MB of memory.
    transactions_remembered_max: int = Field(100_000, ge=1)
    """Committed transactions whose ids are kept, so that a repeated commit is recognized."""
    # A client that asks again does so within minutes.
    transactions_remembered_ms: DurationMs = Field(24 * 3600 * 1000, ge=1)
    """How long such an id is kept."""
    # Each takes about 1 KiB of memory, and the answers that it waits for.
    producers_max: int = Field(20_000, ge=1)
    """Idempotent producers. Above it the principal that has the most loses the one whose last request is the oldest: if that sends again,
    it is refused."""
    producers_idle_ms: DurationMs = Field(24 * 3600 * 1000, ge=1)
    """A producer without a request for this long is forgotten."""
    # An answer takes 200 bytes, and up to 2 KiB if its records are spread.
    producers_bytes_max: Size = Field(64 << 20, ge=1 << 10)
    """Memory for answers to requests of producers that may be sent again. Above it producers are forgotten in the same way."""
    # Some 300 bytes of memory each.
    applications_max: int = Field(100_000, ge=2)
    """Applications (Spark queries and jobs) whose last commit is remembered, so that a repeated one is recognized: for a year, or for a
    day if they make only one. One principal has at most half as many."""
    # Each has an internal topic, and a file open.
    staged_applications_max: int = Field(1_000, ge=1)
    """Applications (Spark queries and jobs) with staged records."""
    # Each takes about 1 KiB of memory.
    staged_tickets_max: int = Field(100_000, ge=1)
    """Task attempts with staged records."""
    staged_application_bytes_max: Size = Field(256 << 30, ge=1)
    """Staged records of one application, on disk; what it writes in one batch must fit. A request counts as 4 KiB at least."""
    staged_bytes_max: Size = Field(512 << 30, ge=1)
    """The same, of all applications."""
    # During the append of a chunk no other commit goes to disk; twice as much is in memory.
    staged_chunk_bytes: Size = Field(16 << 20, ge=1)
    """A larger commit of staged records is published in steps of this size. Each step delays other writers briefly, and takes memory."""
    staged_ms_max: DurationMs = Field(24 * 3600 * 1000, ge=1)
    """Staged records that are not committed within this time are dropped."""
    cache_bytes_max: Size = Field(64 << 20, ge=1 << 10)
    """Memory for cached values (Felix), including names and bookkeeping. Above it the tenant that uses the most loses its least recently
    used values."""
    # This many short ones take some 40 MB.
    cache_entries_max: int = Field(100_000, ge=1)
    """Cached values (Felix), shared between tenants in the same way."""
    api_keys_max: Listed = 10_000
    """API keys."""
    # Each is an entry of a table, and a series in the metrics for each of its stages.
    pipelines_max: Listed = 1_000
    """Names under which pipelines have reported."""
    users_max: Listed = 10_000
    """Users."""
    roles_max: Listed = 1_000
    """Roles, the built-in ones not counted."""
    roles_per_principal_max: int = Field(64, ge=1, le=ROLES_PER_PRINCIPAL_CEILING)
    """Roles of one user or API key."""
    acls_max: Listed = 10_000
    """ACLs."""
    # A role with many users says the same with one entry.
    acl_entries_max: Requested = Field(256, le=ROLES_MAX)
    """Users and roles in one ACL."""
    # A list of them all still fits into one reply frame.
    acl_entries_total_max: Listed = 50_000
    """Users and roles in all ACLs together."""
    # Few, because people mistype, and an attempt that is refused at once costs the broker no password hash.
    login_failures_per_user_max: int = Field(3, ge=1, le=1_000)
    """Failed logins of one user that delay nothing. Each further one delays the next attempt, twice as long as the one before."""
    # More than a user's, because many users may share an address.
    login_failures_per_address_max: int = Field(10, ge=1, le=1_000)
    """The same, from one source address."""
    login_delay_s_max: Seconds = Field(30.0, ge=0.25, le=900)
    """The longest such delay."""
    logins_in_flight_max: int = Field(1_000, ge=1)
    """Logins with a password at the same time, those that wait for their turn included."""
    # Each takes some 30 ms of a processor by default. Attempts of one user or address wait for each other before they count here.
    password_checks_max: int = Field(256, ge=1, le=100_000)
    """Passwords that are checked or hashed at the same time, those that wait for a processor included. A further one is refused."""
    audit_retention_ms: DurationMs = Field(90 * 24 * 3600 * 1000, ge=60_000)
    """Audit events older than this are deleted."""
    # Segments of the trail have 8 MiB.
    audit_retention_bytes: Size = Field(64 << 20, ge=16 << 20)
    """When the changes in the audit trail take more than this, the oldest are deleted; the same for its logins and refusals."""
    # Deployed brokers stop at 1,000; more saves round trips, and a reader cannot tell the difference.
    fetch_records_max: Listed = 10_000
    """Records in the reply to one FETCH (FlyMQ)."""
    # A connection holds one reply beyond its send buffer, so this bounds what a reader that does not read can cost.
    fetch_bytes_max: Size = Field(4 << 20, ge=1, le=FETCH_BYTES_CEILING)
    """Size of the reply to one FETCH (FlyMQ), unless its first record is larger."""
    fetch_scanned_max: int = Field(10_000, ge=1)
    """Records that one FETCH (FlyMQ) skips, because of its filter or because they have expired. The next FETCH continues there."""
    fetch_scan_s_max: Seconds = Field(0.25, ge=0.001)
    """The longest that one FETCH (FlyMQ) filters records."""

    @model_validator(mode="after")
    def _sessions_are_possible(self) -> BrokerLimits:
        if self.group_session_ms_min > self.group_session_ms_max:
            raise ValueError(
                f"group_session_ms_min = {self.group_session_ms_min} is more than group_session_ms_max = "
                f"{self.group_session_ms_max}: no session timeout would be in range"
            )
        return self

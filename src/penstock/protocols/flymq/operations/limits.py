"""Bounds of FlyMQ messages beyond the size of a frame, above all how many items a list may have.

Items take as little as two bytes on the wire and a hundred in memory, so the size of the frame is no bound for a list. A request's
maximum is at least what the broker accepts for that list, so its own, more specific errors are still the ones users see. Those that
settings of the broker must know are in `penstock.frame_bounds`.
"""

from __future__ import annotations

from typing import Final

# --- frames ---

LOGIN_PAYLOAD_BYTES_MAX: Final = 64 << 10
"""For a request before the login that a listener requires, also once inflated. `wire.PAYLOAD_BYTES_MAX` holds afterwards."""
GZIP_MEMBERS_MAX: Final = 16
"""Writers of gzip make one member. Empty members take 20 bytes each, and every one of them costs a new decompressor."""

DECODED_ON_LOOP_BYTES_MAX: Final = 64 << 10
"""Longer requests with long lists are decoded in a thread: an item takes about a microsecond and at least six bytes."""

# --- lists in requests ---

ACL_USERS_MAX: Final = 10_000
"""By default the broker has so many users, and keeps 256 for each ACL."""
PERMISSIONS_MAX: Final = 100
"""There are fewer than ten."""
SETTINGS_MAX: Final = 1_000
"""For a topic, which has about fifteen."""
AUDIT_TYPES_MAX: Final = 1_000
"""There are fewer than a hundred types of events."""
TXN_OFFSETS_MAX: Final = 10_000
"""One for each partition of the largest topic."""
STAGES_MAX: Final = 1_000
"""For a pipeline's report. The broker keeps 256."""
STAGED_BLOCKS_MAX: Final = 10_000
"""One for each partition of the largest topic."""
STAGED_ATTEMPTS_MAX: Final = 20_000
"""The broker accepts 10,000, and tells a job with more to write with fewer tasks."""
UNSTAGED_MAX: Final = 10_000
"""One for each task and topic whose records come with their commit."""
PLAN_TOPICS_MAX: Final = 65_536
PLAN_PARTITIONS_MAX: Final = 131_072
"""Per READ_PLAN, over all its topics: as many as brokers have, by default and beyond."""

PRODUCED_RECORDS_MAX: Final = 2_048
"""Per PRODUCE_RECORDS. If one of them is refused, each is written by itself, in some 30 microseconds."""
PRODUCED_HEADERS_MAX: Final = 65_536
"""Per PRODUCE_RECORDS, over all its records. Each takes half a microsecond to check."""
PRODUCED_ONCE_HEADERS_MAX: Final = 4_096
"""Per PRODUCE_ONCE, which is decoded on the event loop whatever its size, as PRODUCE is: two milliseconds."""

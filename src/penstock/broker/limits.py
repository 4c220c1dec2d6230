"""The broker's bounds, in one place, so that an operator can read and change what a client can make the broker hold.

They are checked before anything is allocated or written, and `LimitExceeded` names the bound that was reached.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from penstock.errors import ConfigError
from penstock.log.api import PARTITIONS_MAX

# Every protocol's length field holds it, and it leaves room for a suffix in a 255-byte file name.
NAME_BYTES_MAX: Final = 249
# Offsets and times travel as signed 64-bit numbers in the log and in every protocol.
INT64_MAX: Final = (1 << 63) - 1
# Frames end at 32 MiB; 1 KiB of that is left for the topic name and the lengths around a record.
RECORD_BYTES_CEILING: Final = (32 << 20) - 1024


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

    def __post_init__(self) -> None:
        ceilings = {
            "partitions_per_topic_max": PARTITIONS_MAX,
            "record_bytes_max": RECORD_BYTES_CEILING,
            "group_name_bytes_max": NAME_BYTES_MAX,
        }
        for field in fields(self):
            number, ceiling = getattr(self, field.name), ceilings.get(field.name, INT64_MAX)
            if not 1 <= number <= ceiling:
                raise ConfigError(f"limits.{field.name} is {number}: it must be between 1 and {ceiling}")

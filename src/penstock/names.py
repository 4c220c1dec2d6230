"""Names of topics, groups and other things that clients name: how long they may be and what they may contain.

A name is what clients, files, metrics and people all see, so it must be safe in each of them: no way out of a directory, nothing
invisible, bounded in length. "/" is legal in names of topics, because clients use levels as in `site/hall/sensor`.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import InvalidRequest, InvalidTopicName

# Every protocol's length field holds it, and it leaves room for a suffix in a 255-byte file name.
NAME_BYTES_MAX: Final = 249
INTERNAL_PREFIX: Final = "__"
"""Of topics that hold the broker's own state."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def is_internal(topic: str) -> bool:
    return topic.startswith(INTERNAL_PREFIX)


def validate_topic_name(name: str) -> None:
    """Raises InvalidTopicName, which says what is wrong with the name."""
    size = _size_bytes(name)
    if size == 0:
        raise InvalidTopicName("topic name is empty: give the topic a name")
    if size > NAME_BYTES_MAX:
        raise InvalidTopicName(f"topic name has {size} bytes: use at most {NAME_BYTES_MAX}")
    if _CONTROL.search(name):
        raise InvalidTopicName(f"topic name {name!r} contains a control character: use printable ones")
    if "\\" in name:
        raise InvalidTopicName(f'topic name {name!r} contains a backslash: separate levels with "/"')
    for level in name.split("/"):
        if level in ("", ".", ".."):
            raise InvalidTopicName(
                f'topic name {name!r} has a level {level!r}: begin and end without "/", and leave no level empty, "." or ".."'
            )


def validate_group_name(name: str, bytes_max: int) -> None:
    validate_name(name, "group name", bytes_max)


def validate_name(name: str, what: str, bytes_max: int) -> None:
    """For names of anything but topics. Raises InvalidRequest."""
    size = _size_bytes(name)
    if not 1 <= size <= bytes_max:
        raise InvalidRequest(f"{what} has {size} bytes: use 1 to {bytes_max}")
    if _CONTROL.search(name):
        raise InvalidRequest(f"{what} {name!r} contains a control character: use printable ones")


def _size_bytes(name: str) -> int:
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        raise InvalidTopicName(f"name {name!r} is not valid Unicode text") from None

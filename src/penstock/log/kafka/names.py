"""Names of topics in Kafka, which allows letters, digits, dots, dashes and low lines, and 249 of them at most.

A name that Kafka allows stays as it is behind the prefix. Any other becomes a readable part and a hash, and the table of topics holds both.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from penstock.names import INTERNAL_PREFIX

KAFKA_NAME_CHARS_MAX: Final = 249
OWNED: Final = "__penstock"
"""Begins the names of all topics that are not a user's, behind the prefix."""
INTERNAL: Final = f"{OWNED}."
"""Begins the names of topics that belong to the broker, behind the prefix."""
TOPICS_TABLE: Final = "__penstock-topics"
"""No internal topic of the broker is called so, whatever it is called."""
_ALLOWED: Final = re.compile(r"[A-Za-z0-9._-]+")
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9._-]+")
_HASH_CHARS: Final = 16


def is_kafka_name(name: str) -> bool:
    """Return whether Kafka allows the name of a topic."""
    return len(name) <= KAFKA_NAME_CHARS_MAX and name not in {".", ".."} and _ALLOWED.fullmatch(name) is not None


def kafka_name(name: str, prefix: str) -> str:
    """Return the name in Kafka of a topic: as it is where Kafka allows that."""
    if name.startswith(INTERNAL_PREFIX):
        plain = prefix + INTERNAL + name.removeprefix(INTERNAL_PREFIX)
    else:
        plain = prefix + name
    return plain if is_kafka_name(plain) else hashed_name(name, prefix)


def adopted_name(kafka: str, prefix: str) -> str | None:
    """Return what a topic that is only known from Kafka is called here; None if it is not one to be served."""
    if not kafka.startswith(prefix) or kafka == prefix:
        return None
    name = kafka.removeprefix(prefix)
    if name.startswith(INTERNAL):
        return INTERNAL_PREFIX + name.removeprefix(INTERNAL)
    return None if name.startswith(INTERNAL_PREFIX) else name


def hashed_name(name: str, prefix: str) -> str:
    """Return a name that no other topic has and that Kafka allows: also for one that differs from another only by dots and low lines."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARS]
    readable = _NOT_ALLOWED.sub(".", name)[: KAFKA_NAME_CHARS_MAX - len(prefix) - _HASH_CHARS - 1]
    return f"{prefix}{readable}-{digest}"

"""What the transaction coordinators of Kafka note in their own topic, read while they do."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

STATE_TOPIC: Final = "__transaction_state"
BEGUN: Final = 1
"""Kafka's number for a transaction that has partitions and no outcome."""
UNFINISHED: Final = frozenset({BEGUN, 2, 3})
"""And for one whose commit, or abort, is decided and not told to its partitions."""
NOTED_S_MAX: Final = 60.0
POLL_S: Final = 1.0
_KEY = struct.Struct(">hh")
"""Version, length of the transactional id."""
_VALUE = struct.Struct(">hqhib")
"""Version, producer id and epoch, timeout, status."""


class Noted(NamedTuple):
    """A step of a transaction."""

    id: str
    status: int
    partition: int
    epoch: int
    """Rises with each coordinator of the partition."""


class TransactionLog:
    """Reads on from where the topic ends when it is made. Close it."""

    def __init__(self, bootstrap: Sequence[str], prefix: str) -> None:
        """`prefix` is that of the transactional ids to look at."""
        servers = ",".join(bootstrap)
        self._prefix = prefix
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "torture", "enable.auto.commit": False, "log_level": 0}
        )
        partitions = self._consumer.list_topics(STATE_TOPIC, timeout=NOTED_S_MAX).topics[STATE_TOPIC].partitions
        self._leaders: dict[int, int] = {number: partition.leader for number, partition in partitions.items()}
        self._consumer.assign([TopicPartition(STATE_TOPIC, number, OFFSET_END) for number in partitions])
        self._last: Noted | None = None

    def close(self) -> None:
        self._consumer.close()

    def wait_until_begun(self) -> int:
        """Wait until a transaction begins; return the broker that coordinates it."""
        for noted in self._read():
            if noted.status == BEGUN:
                self._last = noted
                return self._leaders[noted.partition]
        raise RuntimeError(f"no transaction {self._prefix}* has begun within {NOTED_S_MAX:g} s")

    def was_unfinished(self) -> bool:
        """Wait until another coordinator continues; return whether there was a transaction that the one before had not finished."""
        last = self._last
        assert last is not None
        states = {last.id: last.status}
        for noted in self._read():
            if noted.partition != last.partition:
                continue
            if noted.epoch != last.epoch:
                return not UNFINISHED.isdisjoint(states.values())
            states[noted.id] = noted.status
        raise RuntimeError(f"no other coordinator has continued with {last.id} within {NOTED_S_MAX:g} s")

    def _read(self) -> Iterator[Noted]:
        deadline = time.monotonic() + NOTED_S_MAX
        while time.monotonic() < deadline:
            message = self._consumer.poll(POLL_S)
            if message is None or message.error() is not None:
                continue
            key, value, partition, epoch = message.key(), message.value(), message.partition(), message.leader_epoch()
            if key is not None and value is not None and partition is not None:
                noted = Noted(*parse(key, value), partition, -1 if epoch is None else epoch)
                if noted.id.startswith(self._prefix):
                    yield noted


def parse(key: bytes, value: bytes) -> tuple[str, int]:
    """Return the transactional id and the status."""
    _, length = _KEY.unpack_from(key)
    *_, status = _VALUE.unpack_from(value)
    return key[_KEY.size : _KEY.size + length].decode(), status

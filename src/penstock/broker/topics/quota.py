"""How many topics and partitions there may be, counted while some of them are still being made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.broker.limits import BrokerLimits
from penstock.errors import LimitExceeded
from penstock.log.api import Engine
from penstock.names import is_internal


class TopicQuota:
    def __init__(self, engine: Engine, limits: BrokerLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._reserved: dict[str, int] = {}
        """Partitions that topics will have once the change under way is made, by name."""

    @contextmanager
    def reserved(self, name: str, partitions: int) -> Iterator[None]:
        """Make room for a topic that is to have this many partitions, while it is created or gets them. Raises LimitExceeded."""
        limits = self._limits
        if partitions > limits.partitions_per_topic_max:
            raise LimitExceeded(
                f"{partitions} partitions are too many for one topic: at most {limits.partitions_per_topic_max} are allowed"
            )
        counted = {
            info.name: info.config.partitions for info in self._engine.topics().values() if not is_internal(info.name)
        }
        for each, count in self._reserved.items():
            counted[each] = max(counted.get(each, 0), count)
        if name not in counted and len(counted) >= limits.topics_max:
            raise LimitExceeded(
                f"there are {len(counted)} topics, the most allowed: delete some or raise limits.topics_max"
            )
        total, more = sum(counted.values()), partitions - counted.get(name, 0)
        if total + more > limits.partitions_max:
            raise LimitExceeded(
                f"{more} more partitions do not fit next to the {total} there are: "
                f"delete some topics or raise limits.partitions_max from {limits.partitions_max}"
            )
        self._reserved[name] = partitions
        try:
            yield
        finally:
            del self._reserved[name]

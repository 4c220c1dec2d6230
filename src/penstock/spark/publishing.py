"""Publishing how far a query has read, as the offsets of a group: `penstock group describe` and `/metrics` then show its lag."""

from __future__ import annotations

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.offsets import Positions


def publish(client: FlyMQClient, group: str, positions: Positions) -> None:
    offsets = [
        (topic, group, partition, offset)
        for topic, numbers in positions.items()
        for partition, offset in numbers.items()
    ]
    if len(offsets) == 1:
        client.commit(*offsets[0])
    elif offsets:
        # Together: one flush, however many partitions there are.
        with client.transaction() as transaction:
            for each in offsets:
                transaction.commit_offset(*each)

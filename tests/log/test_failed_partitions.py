"""Partitions that refuse writes are noted when they fail, by any thread, and forgotten with their topic."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass

from penstock.log.failed_partitions import FailedPartitions


@dataclass(eq=False)
class Failing:
    topic: str
    index: int
    failure: str | None = "no space"
    deleted: bool = False


def test_they_are_told_by_topic_and_partition() -> None:
    failed = FailedPartitions()
    assert failed.reasons() == {}
    partitions = [Failing("orders", 2), Failing("a", 0, "flush failed"), Failing("orders", 1)]
    threads = [threading.Thread(target=failed.add, args=(each,)) for each in partitions * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(failed.reasons().items()) == [
        (("a", 0), "flush failed"),
        (("orders", 1), "no space"),
        (("orders", 2), "no space"),
    ]


def test_a_deleted_topic_has_none_and_nothing_of_it_is_kept() -> None:
    failed = FailedPartitions()
    partition = Failing("orders", 0)
    failed.add(partition)
    partition.deleted = True
    assert failed.reasons() == {}
    partition.deleted = False  # its deletion failed
    assert failed.reasons() == {("orders", 0): "no space"}
    del partition
    gc.collect()
    assert failed.reasons() == {}

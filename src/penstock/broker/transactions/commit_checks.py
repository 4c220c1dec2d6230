"""What is checked of topics and partitions before anything of a commit is appended."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import NotWritten, TopicNotFound
from penstock.log.api import BatchFor, Engine


def check_topic(engine: Engine, topic: str, topic_id: str, deleted: str) -> None:
    """Raise TopicNotFound if the topic that records were written for is gone; one that bears its name now is another."""
    info = engine.topics().get(topic)
    if info is None or info.id != topic_id:
        raise TopicNotFound(f"topic not found: {topic} was deleted {deleted}")


def check_writable(parts: Iterable[BatchFor], not_done: str) -> None:
    """Raise NotWritten if a partition has failed: it takes no part of an append, so that nothing of it is written."""
    for part in parts:
        if part.partition.failure is not None:
            raise NotWritten(f"{not_done}: {part.partition.failure}")

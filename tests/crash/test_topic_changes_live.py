"""Partitions are added and retention is changed under readers. `python -m tests.crash.topic_changes` does more rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.topic_changes import TopicChanges

ROUNDS = 2


@pytest.mark.jvm
@pytest.mark.usefixtures("spark_home")
@pytest.mark.timeout(300)
def test_a_group_and_a_stream_read_on_while_their_topic_changes(tmp_path: Path) -> None:
    with TopicChanges(tmp_path, seed=3) as changes:
        for _ in range(ROUNDS):
            changes.round()
        changes.finish()

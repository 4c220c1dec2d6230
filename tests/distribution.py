"""Distributes test files over the workers of a run, and continues when one of them dies.

A test that hangs where nothing can interrupt it ends with its worker (`faulthandler_exit_on_timeout` in pyproject.toml). The scheduler of
pytest-xdist hands the files of that worker to others, those it had finished too; the other worker gets one of these, in which there is
nothing to run, waits for more, and the run never ends.

Tests that run Spark or Kafka come longest first, so that the workers end at about the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

ENOUGH = 2
"""A worker with more tests than this waiting needs no others; it runs one only when it knows the next."""

TOGETHER = "tests/kafka"
"""A directory whose files go to one worker, one after another: they share a broker of Kafka, which spends most of the time waiting."""


def longest_first(items: Sequence[pytest.Item], limit_s: Callable[[pytest.Item], float]) -> list[pytest.Item]:
    """Order the files with tests that run Spark or Kafka by the longest timeout of a test in them; all other tests follow as they are."""
    longest_s = defaultdict[Path, float](float)
    for item in items:
        longest_s[item.path] = max(longest_s[item.path], limit_s(item))
    jvm = [item for item in items if item.get_closest_marker("jvm") is not None]
    others = [item for item in items if item.get_closest_marker("jvm") is None]
    return [*sorted(jvm, key=lambda item: -longest_s[item.path]), *others]


class ReplacingLoadFile(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
    """`--dist loadfile`, for workers that may die: their test fails, and what they had not run goes to others."""

    def remove_node(self, node: WorkerController) -> str | None:
        files: dict[str, dict[str, bool]] = self.assigned_work[node]
        running = next(
            ((file, test) for file, tests in files.items() for test, done in tests.items() if not done), None
        )
        if running is None:
            super().remove_node(node)
            return None
        file, test = running
        files[file][test] = True  # its report is that of the crash
        self.assigned_work[node] = {}
        self.workqueue.update({file: tests for file, tests in files.items() if not all(tests.values())})
        super().remove_node(node)
        for other in self.assigned_work:
            self._reschedule(other)
        return test

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER if nodeid.startswith(f"{TOGETHER}/") else str(super()._split_scope(nodeid))

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # it replaces one that died and has not collected yet; it is asked again when it has
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) <= ENOUGH:
            super()._reschedule(node)

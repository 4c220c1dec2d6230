"""Distributes test files over the workers of a run, and goes on when one of them dies.

A test that hangs where nothing can interrupt it ends with its worker (`faulthandler_exit_on_timeout` in pyproject.toml). The scheduler of
pytest-xdist hands the files of that worker to others, those it had finished too; the other worker gets one of these, in which there is
nothing to run, waits for more, and the run never ends.
"""

from __future__ import annotations

from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

ENOUGH = 2
"""A worker with more tests than this waiting needs no others; it runs one only when it knows the next."""


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

    def _reschedule(self, node: WorkerController) -> None:
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) <= ENOUGH:
            super()._reschedule(node)

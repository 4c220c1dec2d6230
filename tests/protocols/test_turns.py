"""Background work: nothing is started meanwhile, and an exception that escapes it does not stop the session."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from penstock.protocols.turns import InTurns


class Numbers(InTurns):
    """Takes numbers in turns; each is worked on in the background, and those below zero fail."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__()
        self.numbers = numbers
        self.done: list[int] = []
        self.failures: list[Exception] = []
        self.finished = asyncio.Event()

    def _advance(self) -> None:
        if self._busy:
            return
        if not self.numbers:
            self.finished.set()
            return
        self._in_background(self._work(self.numbers.pop(0)), self.failures.append)

    async def _work(self, number: int) -> None:
        await asyncio.sleep(0)
        if number < 0:
            raise RuntimeError(f"cannot work on {number}")
        self.done.append(number)

    def start(self) -> None:
        self._advance()


@pytest.mark.timeout(10)
async def test_an_exception_that_escapes_background_work_is_handed_on_and_the_next_request_is_started() -> None:
    numbers = Numbers([1, -2, 3])
    with capture_logs() as logs:
        numbers.start()
        await numbers.finished.wait()
    assert numbers.done == [1, 3]
    assert [str(failure) for failure in numbers.failures] == ["cannot work on -2"]
    assert [entry["event"] for entry in logs] == ["background_work_failed"]

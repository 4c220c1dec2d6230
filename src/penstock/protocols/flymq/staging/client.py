"""Staged records as clients write them: `client.staging` of the async client and of its twin.

Every request may be sent again where a connection was lost: what was done is not done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.clients.arguments import check_topic
from penstock.clients.loop_thread import LoopThread
from penstock.protocols.flymq.staging import layouts
from penstock.protocols.flymq.staging.messages import Run, Winner

IN_FLIGHT_REQUESTS_MAX: Final = 4
"""Of one attempt; the client bounds their bytes beside."""
_GOES_ON: Final = 2
_OUTCOMES: Final = 3

Ask = Callable[[bytes], Awaitable[bytes]]
Parts = Sequence[tuple[int, bytes]]


class AsyncStaging:
    """Records that are shown to nobody until a commit names the attempts they belong to; see docs/spark.md for who uses it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def begin_run(self, application: str, name: str, *, lasting: bool = True) -> Run:
        """Begin a run of an application, or find the one of this name begun. Raises ProducerFenced where a newer one has begun.

        What older runs staged is dropped. An application that is not `lasting` has one epoch, and is soon forgotten.
        """
        return layouts.decode_run(await self._ask(layouts.encode_begin_run(application, name, lasting=lasting)))

    def attempt(self, application: str, run: int, epoch: int, attempt: str) -> AsyncAttempt:
        """What one attempt of one task stages."""
        return AsyncAttempt(self._ask, application, run, epoch, attempt)

    async def commit(self, application: str, run: int, epoch: int, winners: Sequence[Winner]) -> bool:
        """Publish what the winners staged, all or nothing, once. False where the epoch was committed before.

        Returns when all of it can be read; a large commit may take long.
        """
        data = layouts.encode_commit(application, run, epoch, winners)
        went_on = False
        while True:
            outcome = layouts.decode_outcome(await self._ask(data), _OUTCOMES)
            if outcome != _GOES_ON:
                return went_on or bool(outcome)
            went_on = True

    async def abort(self, application: str, run: int, epoch: int) -> bool:
        """Drop what this run and earlier ones staged for an epoch. False where it was committed, which stays."""
        return bool(layouts.decode_outcome(await self._ask(layouts.encode_abort(application, run, epoch))))


class AsyncAttempt:
    """Requests of one attempt, some of them on their way at a time."""

    def __init__(self, ask: Ask, application: str, run: int, epoch: int, attempt: str) -> None:
        self._ask = ask
        self._place = (application, run, epoch, attempt)
        self._in_flight: set[asyncio.Task[bytes]] = set()
        self.requests = 0
        """How many were sent: what the commit must be told."""

    @property
    def winner(self) -> Winner:
        """What names this attempt in a commit."""
        return Winner(self._place[3], self.requests)

    async def stage(self, topic: str, parts: Parts) -> None:
        """Send blocks for partitions of a topic (which is created where it is missing). Returns when there is room for more.

        Raises what went wrong with this or an earlier request; then the attempt has failed.
        """
        check_topic(topic)
        await self._wait(IN_FLIGHT_REQUESTS_MAX - 1)
        data = layouts.encode_stage(*self._place, self.requests, topic, parts)
        self.requests += 1
        self._in_flight.add(asyncio.ensure_future(self._ask(data)))

    async def finish(self) -> Winner:
        """Wait until everything is staged."""
        await self._wait(0)
        return self.winner

    async def cancel(self) -> None:
        """Wait for what is on its way, whatever comes of it."""
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        self._in_flight.clear()

    async def _wait(self, left_max: int) -> None:
        while len(self._in_flight) > left_max:
            done, self._in_flight = await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
            errors = [error for each in done if (error := each.exception()) is not None]
            if errors:
                await self.cancel()
                raise errors[0]


class Staging:
    """The same calls as `AsyncStaging`, each waiting for its answer."""

    def __init__(self, thread: LoopThread, staging: AsyncStaging) -> None:
        self._thread = thread
        self._staging = staging

    def begin_run(self, application: str, name: str, *, lasting: bool = True) -> Run:
        """Begin a run of an application, or find the one of this name begun."""
        return self._thread.run(self._staging.begin_run(application, name, lasting=lasting))

    def attempt(self, application: str, run: int, epoch: int, attempt: str) -> Attempt:
        """What one attempt of one task stages."""
        return Attempt(self._thread, self._staging.attempt(application, run, epoch, attempt))

    def commit(self, application: str, run: int, epoch: int, winners: Sequence[Winner]) -> bool:
        """Publish what the winners staged, all or nothing, once. False where the epoch was committed before."""
        return self._thread.run(self._staging.commit(application, run, epoch, winners))

    def abort(self, application: str, run: int, epoch: int) -> bool:
        """Drop what this run and earlier ones staged for an epoch. False where it was committed, which stays."""
        return self._thread.run(self._staging.abort(application, run, epoch))


class Attempt:
    """The same calls as `AsyncAttempt`."""

    def __init__(self, thread: LoopThread, attempt: AsyncAttempt) -> None:
        self._thread = thread
        self._attempt = attempt

    def stage(self, topic: str, parts: Parts) -> None:
        """Send blocks for partitions of a topic; returns when there is room for more."""
        self._thread.run(self._attempt.stage(topic, parts))

    def finish(self) -> Winner:
        """Wait until everything is staged."""
        return self._thread.run(self._attempt.finish())

    def cancel(self) -> None:
        """Wait for what is on its way, whatever comes of it."""
        self._thread.run(self._attempt.cancel())

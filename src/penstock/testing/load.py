"""Load for crash tests: producers that note everything they do in a journal, and a reader for the check afterwards.

Producers speak the protocol of the address they are given. Where its acknowledgements do not tell the offset, the journal has
`NO_PLACE`.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from penstock import connect_async
from penstock.clients.loop_thread import LoopThread
from penstock.clients.options import ClientOptions
from penstock.clients.records import RecordMetadata
from penstock.clients.retry import NO_RETRY
from penstock.errors import (
    BatchFailed,
    ConnectionLost,
    OutcomeUnknown,
    PenstockError,
    ProtocolViolation,
    RequestTimeout,
    ServerError,
    Unreachable,
)
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing.checker import ReadRecord
from penstock.testing.journal import NO_PLACE, Journal

OUTCOME_UNKNOWN = (ConnectionLost, OutcomeUnknown, RequestTimeout, ServerError, ProtocolViolation)
"""Errors that leave open whether the record was stored; all others promise that it was not."""
PATIENCE: Final = 10
"""How many times the time for one answer all that is waited for may take."""
_BROKER_IS_GONE = (ConnectionLost, RequestTimeout, Unreachable)


@dataclass(slots=True)
class LoadSummary:
    """What a load has done so far, in records."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    unknown: int = 0


class ProducerLoad:
    """Producers, each with a connection of its own, that send batches one after another until `stop` or the broker's end.

    ```python
    with Journal(path) as journal, ProducerLoad(broker.url, journal, "orders") as load:
        load.wait_until_acked(1000)
        broker.kill9()
        load.wait_until_over()
    ```
    A producer whose connection is lost ends: later records stay in the journal as unknown.
    """

    def __init__(
        self,
        url: str,
        journal: Journal,
        topic: str,
        *,
        producers: int = 4,
        batch_records: int = 50,
        value_bytes: int = 100,
        keys: int = 0,
        request_timeout_s: float = 30.0,
    ) -> None:
        self._url = url
        self._journal = journal
        self._topic = topic
        self._producers = producers
        self._batch_records = batch_records
        self._value_bytes = value_bytes
        self._keys = keys
        self._options = ClientOptions(retry=NO_RETRY, request_timeout_s=request_timeout_s)
        self._name = secrets.token_hex(4)
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self._running = 0
        self._thread: LoopThread | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.summary = LoadSummary()

    def start(self) -> Self:
        """Connect every producer and begin."""
        self._thread = LoopThread("penstock load")
        self._thread.run(self._begin())
        return self

    def stop(self) -> LoadSummary:
        """Let every producer finish its batch, then end."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.run(self._finish())
            self._thread.close()
            self._thread = None
        return self.summary

    def wait_until_acked(self, records: int, timeout_s: float = 30.0) -> None:
        """Wait until this many records are acknowledged in all."""
        self._wait(
            lambda: self.summary.acked >= records or self._running == 0, timeout_s, f"{records} acknowledgements"
        )
        if self.summary.acked < records:
            raise AssertionError(
                f"the load ended after {self.summary.acked} acknowledgements, {records} were waited for"
            )

    def wait_until_answered(self, records: int, timeout_s: float = 30.0) -> None:
        """Wait until this many records are acknowledged, refused or lost sight of in all."""
        self._wait(lambda: self.summary.sent >= records or self._running == 0, timeout_s, f"{records} answers")

    def wait_until_refused(self, records: int, timeout_s: float = 30.0) -> None:
        """Wait until this many records are refused in all."""
        self._wait(lambda: self.summary.failed >= records, timeout_s, f"{records} refusals")

    def wait_until_over(self, timeout_s: float = 30.0) -> LoadSummary:
        """Wait until every producer has lost its broker."""
        self._wait(lambda: self._running == 0, timeout_s, "the end of all producers")
        return self.summary

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _wait(self, reached: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait as long as records are answered, at most `timeout_s` for the next: how fast a broker is depends on the machine."""
        started_s = time.monotonic()
        deadline_s = started_s + PATIENCE * timeout_s
        with self._progress:
            while not reached():
                if not self._progress.wait(min(timeout_s, deadline_s - time.monotonic())):
                    waited_s = time.monotonic() - started_s
                    raise AssertionError(f"{what} did not come within {waited_s:.3g} s; so far {self.summary}")

    async def _begin(self) -> None:
        clients = [await connect_async(self._url, options=self._options) for _ in range(self._producers)]
        self._running = len(clients)
        self._tasks = [
            asyncio.create_task(self._produce(f"{self._name}-{number}", client))
            for number, client in enumerate(clients)
        ]

    async def _finish(self) -> None:
        await asyncio.gather(*self._tasks)

    async def _produce(self, producer: str, client: Any) -> None:
        first = 0
        try:
            while not self._stopping.is_set():
                values = [self._value(producer, number) for number in range(first, first + self._batch_records)]
                keys = [self._key(number) for number in range(first, first + self._batch_records)]
                first += self._batch_records
                if not await self._send(producer, client, values, keys):
                    return
        finally:
            await client.close()
            with self._progress:
                self._running -= 1
                self._progress.notify_all()

    async def _send(self, producer: str, client: Any, values: list[bytes], keys: list[bytes | None]) -> bool:
        """Send one batch and note what became of it; returns whether the broker is still there."""
        ids = await asyncio.to_thread(self._journal.sending, producer, self._topic, values, keys)
        results: list[RecordMetadata | PenstockError | None]
        try:
            stored = await client.send_many(self._topic, list(zip(keys, values, strict=True)) if self._keys else values)
            results = list(stored) if isinstance(stored, list) else [None] * len(values)
        except BatchFailed as error:
            results = list(error.results)
        except PenstockError as error:
            results = [error] * len(values)
        await asyncio.to_thread(self._note, ids, results)
        return not any(isinstance(result, _BROKER_IS_GONE) for result in results)

    def _note(self, ids: range, results: list[RecordMetadata | PenstockError | None]) -> None:
        acked: list[tuple[int, tuple[int, int]]] = []
        failed: list[int] = []
        unknown: list[int] = []
        reason = ""
        for number, result in zip(ids, results, strict=True):
            if not isinstance(result, PenstockError):
                acked.append((number, NO_PLACE if result is None else (result.partition, result.offset)))
                continue
            reason = reason or str(result)
            (unknown if isinstance(result, OUTCOME_UNKNOWN) else failed).append(number)
        if acked:
            self._journal.acked([number for number, _ in acked], [place for _, place in acked])
        if failed:
            self._journal.failed(failed, reason)
        if unknown:
            self._journal.unknown(unknown, reason)
        with self._progress:
            self.summary.sent += len(ids)
            self.summary.acked += len(acked)
            self.summary.failed += len(failed)
            self.summary.unknown += len(unknown)
            self._progress.notify_all()

    def _value(self, producer: str, number: int) -> bytes:
        return f"{producer}-{number}-".encode().ljust(self._value_bytes, b".")

    def _key(self, number: int) -> bytes | None:
        return f"key-{number % self._keys}".encode() if self._keys else None


def read_everything(url: str, topics: Iterable[str]) -> Iterator[ReadRecord]:
    """Every record of these topics, over FlyMQ, as `check` takes it. A topic that does not exist has none."""
    with FlyMQClient(url) as client:
        existing = set(client.topics())
        for topic in topics:
            if topic in existing:
                for batch in client.batches(topic):
                    for record in batch:
                        yield ReadRecord(topic, record.partition, record.offset, record.key, record.value or b"")

"""Transactions over many topics, two at a time, until the broker dies; and what must hold when it is back.

Each has a thousand records over every partition of twenty topics, and moves the offset of a group. What was begun, sent and acknowledged is
noted here, outside the broker. Of a transaction whose commit was not answered the broker itself must know, when asked again, what became
of it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import PenstockError, TransactionNotFound
from penstock.protocols.flymq.sync import FlyMQClient, Transaction
from penstock.testing.process import BrokerProcess

TOPICS = {f"topic-{number}": 1 + number % 3 for number in range(20)}
RECORDS = 1000
AT_ONCE = 2
VALUE_BYTES = 256
# Small enough that segments, journals and indexes are begun and finished within a second of load.
CONFIG = """
[log]
segment_bytes = "64 KiB"
journal_bytes = "1 MiB"
checkpoint_bytes = "1 MiB"
maintenance_interval_s = 0.1
[admin]
bind = "127.0.0.1:0"
""" + "".join(f'[[topics]]\nname = "{name}"\npartitions = {count}\n' for name, count in TOPICS.items())

_OPTIONS = ClientOptions(retry=NO_RETRY, request_timeout_s=20.0)


@dataclass(slots=True)
class Attempt:
    """One transaction. Its number is in the value of each record."""

    worker: int
    number: int
    transaction: Transaction | None = None
    state: Literal["open", "committing", "acked"] = "open"


class TransactionLoad:
    def __init__(self, directory: Path) -> None:
        self.broker = BrokerProcess(directory / "data", config=CONFIG)
        self.attempts: list[Attempt] = []
        self._lock = threading.Lock()
        self._acked = threading.Condition(self._lock)

    def close(self) -> None:
        self.broker.close()

    @contextmanager
    def running(self, *, until_it_dies: bool = False) -> Iterator[None]:
        """Transactions, one after another in each of two clients, until the block ends, or until the broker does."""
        over = threading.Event()
        workers = [threading.Thread(target=self._work, args=(worker, over)) for worker in range(AT_ONCE)]
        for thread in workers:
            thread.start()
        try:
            yield
        finally:
            if not until_it_dies:
                over.set()
            for thread in workers:
                thread.join()

    def wait_until_acked(self, more: int) -> None:
        with self._lock:
            enough = self._count_acked() + more
            assert self._acked.wait_for(lambda: self._count_acked() >= enough, 60), "the broker commits nothing"

    def _count_acked(self) -> int:
        return sum(attempt.state == "acked" for attempt in self.attempts)

    def _work(self, worker: int, over: threading.Event) -> None:
        try:
            with FlyMQClient(self.broker.url, options=_OPTIONS) as client:
                while not over.is_set():
                    self._one(client, worker)
        except PenstockError:
            return  # the broker is gone, which is what these tests are about

    def _one(self, client: FlyMQClient, worker: int) -> None:
        with self._lock:
            attempt = Attempt(worker, len(self.attempts))
            self.attempts.append(attempt)
        attempt.transaction = client.transaction().begin()
        share = RECORDS // len(TOPICS)
        for at, topic in enumerate(TOPICS):
            rows = range(at * share, (at + 1) * share)
            attempt.transaction.send_many(
                topic, [(b"%d/%d" % (attempt.number, row)).ljust(VALUE_BYTES) for row in rows]
            )
        attempt.transaction.commit_offset("topic-0", f"group-{worker}", 0, attempt.number)
        attempt.state = "committing"
        attempt.transaction.commit()
        with self._lock:
            attempt.state = "acked"
            self._acked.notify_all()

    # -- when it is back -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """All or nothing of each transaction, all of those that were acknowledged, nothing twice."""
        with FlyMQClient(self.broker.url) as client:
            found = Counter(record.value or b"" for topic in TOPICS for record in client.records(topic))
            twice = [value for value, count in found.items() if count > 1]
            assert not twice, f"{len(twice)} records are there more than once, {twice[0]!r} is"
            rows = Counter(int(value.partition(b"/")[0]) for value in found)
            moved: dict[int, int] = {}
            for attempt in self.attempts:
                held = rows.pop(attempt.number, 0)
                assert held in (0, RECORDS), f"{held} of {RECORDS} records of transaction {attempt.number} are there"
                assert held or attempt.state != "acked", f"transaction {attempt.number} was acknowledged and is gone"
                assert not held or attempt.state != "open", (
                    f"transaction {attempt.number} was not committed and is there"
                )
                assert self._committed(client, attempt) == bool(held)
                if held:
                    moved[attempt.worker] = attempt.number
            assert not rows, "records of transactions that never were"
            for worker, number in moved.items():
                assert client.committed("topic-0", f"group-{worker}", 0) == number

    def _committed(self, client: FlyMQClient, attempt: Attempt) -> bool:
        """What the broker says when it is asked to commit once more."""
        if attempt.transaction is None:
            return False
        try:
            client.transaction(attempt.transaction.id).commit()
        except TransactionNotFound:
            return False
        return True

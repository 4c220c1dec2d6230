"""What `cluster_faults` loads a cluster with, beside the five protocols of the demo: transactions, producers that keep their client, and
readers that acknowledge."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import ClassVar, Final

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY, RetryPolicy
from penstock.errors import ConnectionLost, EntryNotFound, PenstockError, TransactionNotFound
from penstock.protocols.blipmq.client import Message
from penstock.protocols.blipmq.sync import BlipMQClient
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing.process import BrokerProcess
from scripts.demo.cluster import PAUSE_S, Channel
from scripts.demo.intake import TOPIC
from scripts.demo.speakers import BlipMQ, FlyMQ, Speaker

TRANSACTION: Final = b"transaction "
TRANSACTION_RECORDS: Final = 6
PATIENT: Final = ClientOptions(retry=RetryPolicy(attempts_max=1000, elapsed_s_max=120.0, delay_s_max=0.5))
READERS_PER_NODE: Final = 2
POLLED_MAX: Final = 256
POLL_PAUSE_S: Final = 0.05
WORK_S: Final = 0.05
"""From a delivery to its acknowledgement: most faults come upon a reader that has one to make."""
READING: Final = ClientOptions(retry=NO_RETRY)
# An acknowledgement that a frozen node finds when it wakes up is in time by its own clock, and nothing becomes a dead letter.
SUBSCRIPTIONS: Final = "[subscriptions]\nbackoff_ms = 20_000\ndeliveries_max = 1_000_000\n"


def numbered(prefix: bytes, count: int, over: threading.Event) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    for chunk in itertools.count():
        if over.is_set():
            return
        yield [(b"key %d" % number, prefix + b"%d-%d" % (chunk, number)) for number in range(count)]


class Transactions(FlyMQ):
    """Each chunk is a transaction over several partitions."""

    def send(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        with self.client.transaction() as transaction:
            transaction.send_many(topic, records)


def torn_transactions(stored: Counter[bytes]) -> str:
    """A transaction that was sent again may be there twice, but as a whole."""
    counts: dict[bytes, list[int]] = {}
    for value, count in stored.items():
        if value.startswith(TRANSACTION):
            counts.setdefault(value.rpartition(b"-")[0], []).append(count)
    torn = [each for each in counts.values() if len(each) != TRANSACTION_RECORDS or len(set(each)) != 1]
    return f"{len(torn)} transactions are there in part" if torn else ""


class Returning(Channel):
    """A channel that can be told to connect to its own node again."""

    _told = False

    def return_home(self) -> None:
        self._told = True

    def _send(self, chunk: Sequence[tuple[bytes, bytes]]) -> None:
        if self._told:
            self._told = False
            self._disconnect()
        super()._send(chunk)


def refusals(channel: Channel, before: Counter[str]) -> str:
    """What a channel was refused with since `before`. That connections end, and open transactions if the node led, is no refusal."""
    expected = {ConnectionLost.__name__, *([TransactionNotFound.__name__] if channel.kind is Transactions else [])}
    found = {name: count for name, count in (channel.errors - before).items() if name not in expected}
    return f"{channel.kind.name} was refused when a node was stopped: {found}" if found else ""


class IdempotentProducer(Channel):
    """Sends over one client for as long as it lives. That connects and sends again by itself; what fails in the end is not sent again by
    anybody, and may be stored, once."""

    def __init__(
        self, number: int, node: BrokerProcess, url: str, chunks: Iterable[Sequence[tuple[bytes, bytes]]]
    ) -> None:
        super().__init__(number, FlyMQ, [node], chunks)
        self._url = url

    def run(self) -> None:
        try:
            with FlyMQClient(self._url, options=PATIENT) as client:
                for chunk in self._chunks:
                    self._send_once(client, chunk)
                    time.sleep(PAUSE_S)
        except Exception as error:
            self.failure = f"an idempotent producer gave up: {error}"
            raise

    def _send_once(self, client: FlyMQClient, chunk: Sequence[tuple[bytes, bytes]]) -> None:
        values = [value for _, value in chunk]
        try:
            client.send_many(TOPIC, chunk)
        except PenstockError as error:
            self.errors[type(error).__name__] += 1
            self.sent_again.update(values)
        else:
            self.acknowledged += values

    def stored_again(self, stored: Counter[bytes]) -> str:
        values = {*self.acknowledged, *self.sent_again}
        twice = sum(stored[value] > 1 for value in values)
        return f"{twice} of {len(values):,} values of an idempotent producer are stored twice" if twice else ""


class Readers:
    """One subscription, and readers of it on each node. They acknowledge everything that they are given, after a moment.

    A reader notes an acknowledgement as confirmed once a PONG has followed it. What is delivered to a POLL that was sent after that was
    settled for whoever confirmed it, and for nobody else.
    """

    kind: ClassVar[type[Speaker]] = BlipMQ

    def __init__(self, nodes: Sequence[BrokerProcess], subscription: int) -> None:
        self.delivered: dict[int, bytes] = {}
        """Values by delivery tag, which is that of one record for good."""
        self.acknowledged: dict[int, float] = {}
        """When the acknowledgement of a tag was confirmed."""
        self.delivered_again: list[bytes] = []
        """Values that were delivered to a POLL that was sent after the confirmation."""
        self.empty_s = 0.0
        """When the last POLL was sent to which nothing was delivered."""
        self.failure: str | None = None
        self._nodes = nodes
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._subscription = subscription
        self._threads = [
            threading.Thread(target=self._run, args=(node,), daemon=True)
            for node in nodes
            for _ in range(READERS_PER_NODE)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, own: BrokerProcess) -> None:
        try:
            while not self._over.wait(POLL_PAUSE_S):
                node = own if own.running else next((each for each in self._nodes if each.running), own)
                with suppress(PenstockError, OSError), BlipMQClient(BlipMQ.url(node), options=READING) as client:
                    self._read(client)
        except Exception as error:
            self.failure = f"a reader gave up: {error!r}"
            raise

    def _read(self, client: BlipMQClient) -> None:
        while not self._over.is_set():
            asked_s = time.monotonic()
            messages = client.poll(self._subscription, POLLED_MAX)
            self.note_delivered(messages, asked_s)
            if not messages:
                self.empty_s = asked_s
                self._over.wait(POLL_PAUSE_S)
                continue
            self._over.wait(WORK_S)
            with suppress(EntryNotFound):  # some are in flight no more: which of them, a batch does not tell
                client.ack(self._subscription, *(message.tag for message in messages if message.tag is not None))
                self.note_confirmed(messages)

    def note_delivered(self, messages: Iterable[Message], asked_s: float) -> None:
        with self._lock:
            for message in messages:
                assert message.tag is not None
                self.delivered[message.tag] = message.value
                if self.acknowledged.get(message.tag, asked_s) < asked_s:
                    self.delivered_again.append(message.value)

    def note_confirmed(self, messages: Iterable[Message]) -> None:
        with self._lock:
            self.acknowledged |= {message.tag: time.monotonic() for message in messages if message.tag is not None}

    def what_is_wrong(self, stored: Counter[bytes]) -> str:
        delivered = Counter(self.delivered.values())
        never, unknown = (stored - delivered).total(), (delivered - stored).total()
        if not (never or unknown or self.delivered_again):
            return ""
        return (
            f"of {stored.total():,} messages {never} were never delivered, {len(self.delivered_again)} were delivered again after the "
            f"confirmation of their acknowledgement, and {unknown} deliveries are of none that is stored"
        )

"""Publishing how far a query has read, as the offsets of a group: `penstock group describe` and `/metrics` then show its lag."""

from __future__ import annotations

import threading

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.connection import ConnectionSettings, pooled_client
from penstock.spark.offsets import Positions


def publish(client: FlyMQClient, group: str, positions: Positions) -> None:
    offsets = [
        (topic, group, partition, offset)
        for topic, numbers in positions.items()
        for partition, offset in numbers.items()
    ]
    if len(offsets) == 1:
        client.commit(*offsets[0])
    elif offsets:
        # Together: one flush, however many partitions there are.
        with client.transaction() as transaction:
            for each in offsets:
                transaction.commit_offset(*each)


class BackgroundPublisher:
    """Publishes in a thread of its own, so that no trigger waits until the broker has the offsets on disk.

    At most one is on its way; of those that come meanwhile only the last is published after it, and what is published already is not again:
    Spark tells each source of every batch, also of those it has given nothing to. A broker that refuses stops nobody.
    """

    def __init__(self, settings: ConnectionSettings, group: str) -> None:
        self._settings = settings
        self._group = group
        self._lock = threading.Lock()
        self._waiting: Positions | None = None
        self._published: Positions | None = None
        self._at_work = False
        self._idle = threading.Event()
        self._idle.set()

    def __reduce__(self) -> tuple[type[BackgroundPublisher], tuple[ConnectionSettings, str]]:
        return BackgroundPublisher, (self._settings, self._group)  # in another process it begins again

    def publish(self, positions: Positions) -> None:
        with self._lock:
            self._waiting = positions
            if self._at_work or positions == self._published:
                return
            self._at_work = True
            self._idle.clear()
        threading.Thread(target=self._work, name="penstock-publish", daemon=True).start()

    def wait(self, timeout_s: float) -> None:
        """Return once nothing waits to be published, or after the timeout."""
        self._idle.wait(timeout_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                positions, self._waiting = self._waiting, None
                if positions is None or positions == self._published:
                    self._at_work = False
                    self._idle.set()
                    return
            try:
                publish(pooled_client(self._settings), self._group, positions)
                self._published = positions
            except Exception as error:  # noqa: BLE001 - whatever it is, the next offsets are published by this thread
                import structlog  # slow to import, and rarely needed

                structlog.get_logger(__name__).warning(
                    "group_offsets_not_published", group=self._group, error=str(error)
                )

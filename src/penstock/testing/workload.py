"""A load that reaches every part of the log, and the check of what a broker must still hold after a fault.

Four kinds of topic: `single` (one partition: commits flush its own segment), `spread` (six: commits go through the journal),
`compacted` and `retained`, whose small segments are sealed, rewritten and deleted all the time. Producers speak FlyMQ, RustLog and
BlipMQ. The first two topics are checked record by record; of the others, the part that they promise. A group commits offsets, and
topics are created and deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import PenstockError
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing.checker import ReadRecord, Report, Rule, check, count
from penstock.testing.journal import Journal
from penstock.testing.load import ProducerLoad, read_everything
from penstock.testing.process import BrokerProcess

SINGLE, SPREAD, COMPACTED, RETAINED = "single", "spread", "compacted", "retained"
GROUP: Final = "group"
KEYS: Final = 50
VALUE_BYTES: Final = 100
_API_KEY: Final = "workload"
# Small enough that every kind of file is begun, finished, rewritten and deleted within a second of load.
_CONFIG: Final = f"""
[log]
segment_bytes = "64 KiB"
journal_bytes = "1 MiB"
checkpoint_bytes = "1 MiB"
reserve_bytes = "512 KiB"
maintenance_interval_s = 0.1
compact_dirty_ratio = 0.1
[listeners.rustlog]
bind = "127.0.0.1:0"
[listeners.blipmq]
bind = "127.0.0.1:0"
api_keys = ["{_API_KEY}"]
[[topics]]
name = "{SINGLE}"
[[topics]]
name = "{SPREAD}"
partitions = 6
[[topics]]
name = "{COMPACTED}"
cleanup = "compact"
[[topics]]
name = "{RETAINED}"
retention_bytes = "128 KiB"
"""

_OPTIONS = ClientOptions(retry=NO_RETRY, request_timeout_s=20.0)


def _plain(url: str) -> str:
    """Return the address for producers that are not idempotent: their records go to a segment, and not to the journal first."""
    return f"{url}?idempotent=false"


class Workload:
    """Load on one broker over several lives. Everything is noted outside its directory, so the check believes no one else."""

    def __init__(self, directory: Path, config: str = "") -> None:
        """`config` is TOML without sections, as in `engine = "kafka"`."""
        self.broker = BrokerProcess(directory / "data", config=f"{config}\n{_CONFIG}", keep_port=False)
        self.journal = Journal(directory / "journal")
        self._compacted: dict[bytes, list[bytes]] = {}
        self._compacted_acked: dict[bytes, int] = {}
        self._offset_sent = 0
        self._offset_acked = 0
        self._round = 0

    def close(self) -> None:
        self.broker.close()
        self.journal.close()

    @contextmanager
    def running(self, value_bytes: int = VALUE_BYTES) -> Iterator[ProducerLoad]:
        """Run every kind of load at once, until the block ends or the broker does; gives that of `single` over FlyMQ."""
        self._round += 1
        over = threading.Event()
        flymq, addresses = self.broker.url, self.broker.addresses
        rustlog, blipmq = f"rustlog://{addresses['rustlog']}", f"blipmq://{_API_KEY}@{addresses['blipmq']}"
        with ExitStack() as stack:
            load = stack.enter_context(self._producers(_plain(flymq), SINGLE, producers=2, value_bytes=value_bytes))
            stack.enter_context(self._producers(flymq, SPREAD, producers=2, keys=40, value_bytes=value_bytes))
            stack.enter_context(self._producers(rustlog, SPREAD, value_bytes=value_bytes))
            stack.enter_context(self._producers(blipmq, SINGLE, value_bytes=value_bytes))
            for chore in (self._write_compacted, self._write_retained, self._commit_offsets, self._churn_topics):
                thread = threading.Thread(target=self._until_over, args=(over, chore))
                thread.start()
                stack.callback(thread.join)
            stack.callback(over.set)
            yield load

    def producing(self, topic: str) -> ProducerLoad:
        """Producers of one topic over FlyMQ and nothing else."""
        return self._producers(_plain(self.broker.url), topic, producers=2)

    def _producers(
        self, url: str, topic: str, *, producers: int = 1, keys: int = 0, value_bytes: int = VALUE_BYTES
    ) -> ProducerLoad:
        return ProducerLoad(
            url, self.journal, topic, producers=producers, batch_records=20, keys=keys, value_bytes=value_bytes
        )

    def _until_over(self, over: threading.Event, chore: Callable[[FlyMQClient, int], None]) -> None:
        try:
            with FlyMQClient(self.broker.url, options=_OPTIONS) as client:
                turn = 0
                while not over.is_set():
                    chore(client, turn)
                    turn += 1
        except PenstockError:
            return  # the broker is gone or refuses writes, which is what this is about

    def _write_compacted(self, client: FlyMQClient, turn: int) -> None:
        key = f"key-{turn % KEYS}".encode()
        values = self._compacted.setdefault(key, [])
        value = f"{self._round}/{turn}".encode().ljust(500, b"+")
        values.append(value)
        client.send(COMPACTED, value, key=key)
        self._compacted_acked[key] = len(values) - 1

    def _write_retained(self, client: FlyMQClient, turn: int) -> None:
        client.send_many(RETAINED, [f"{self._round}/{turn}/{row}".encode().ljust(400, b"-") for row in range(50)])

    def _commit_offsets(self, client: FlyMQClient, turn: int) -> None:
        self._offset_sent += 1
        client.commit(SINGLE, GROUP, 0, self._offset_sent)
        self._offset_acked = self._offset_sent

    def _churn_topics(self, client: FlyMQClient, turn: int) -> None:
        name = f"short-lived-{turn % 3}"
        client.create_topic(name, 2)
        client.send(name, b"gone soon")
        client.delete_topic(name)

    # -- afterwards ------------------------------------------------------------------------------------------------------

    def check(self) -> Report:
        """Check that the broker, which runs again, holds what it promised."""
        errors: list[str] = []
        report = check(self.journal, {"flymq": self._read(errors)})
        with FlyMQClient(self.broker.url) as client:
            self._check_compacted(client, report)
            self._check_retained(client, report)
            committed = client.committed(SINGLE, GROUP, 0) or 0
            if not self._offset_acked <= committed <= self._offset_sent:
                report.add(
                    Rule.OFFSET_IS_KEPT,
                    f"offset {self._offset_acked} was acknowledged, {self._offset_sent} was sent last, {committed} is stored",
                )
        for error in errors:
            report.add(Rule.READ_TO_THE_END, error)
        return report

    def _read(self, errors: list[str]) -> Iterator[ReadRecord]:
        """Every record that can be read: what is behind a damaged block is as lost as what is in it."""
        for topic in (SINGLE, SPREAD):
            try:
                yield from read_everything(self.broker.url, [topic])
            except PenstockError as error:
                errors.append(f"{topic}: {error}")

    def sent(self) -> Report:
        """Return the counts of what was sent so far and what was answered, with no check of what the broker holds."""
        return count(self.journal.attempts())

    def _check_compacted(self, client: FlyMQClient, report: Report) -> None:
        existing = COMPACTED in client.topics()
        latest: dict[bytes | None, bytes] = (
            {record.key: record.value or b"" for record in client.records(COMPACTED)} if existing else {}
        )
        for key, acked in self._compacted_acked.items():
            if latest.get(key) not in self._compacted[key][acked:]:
                report.add(Rule.LATEST_IS_KEPT, f"{key!r} went back before its last acknowledged value")

    def _check_retained(self, client: FlyMQClient, report: Report) -> None:
        if RETAINED not in client.topics():
            return
        before = -1
        for record in client.records(RETAINED):
            if record.offset <= before:
                report.add(Rule.ORDER_IS_KEPT, f"offset {record.offset} of {RETAINED} follows {before}")
            value = record.value or b""
            if not value.endswith(b"-"):
                report.add(Rule.NOTHING_INVENTED, f"{RETAINED} has {value[:40]!r} at offset {record.offset}")
            before = record.offset

    def read_all(self) -> list[ReadRecord]:
        return list(read_everything(self.broker.url, [SINGLE, SPREAD]))

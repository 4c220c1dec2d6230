"""A topic gets partitions and other retention under load, while a group of three members and a Spark stream read on.

    python -m tests.crash.topic_changes --rounds 20

A writer appends numbered records of some keys. Each round adds a partition and changes how much retention keeps, at moments of its own,
and continues once both kinds of readers have read a number of records more. Nobody is started again. In the end:

- every acknowledged record is at the offset of its acknowledgement: the members processed it there, Spark read it there once;
- members and Spark have read nothing else, and the group has committed the end of each partition;
- in each partition the members processed offsets in order, and the records of a key are in the order in which they were written;
- between two changes of the number of partitions, all records of a key are in one partition, as docs/cli.md says;
- retention has deleted segments, and partitions that were added have records.

The writer waits for slow readers, so that retention, which keeps much more than that, deletes nothing that is not read.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from penstock.protocols.flymq.client.consumer import TopicPartition
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess
from tests.crash.torture import NoProgress, Spark

TOPIC, COPIES, GROUP = "orders", "copies", "billing"
MEMBERS = 3
PARTITIONS = 2
KEYS = [b"key-%d" % number for number in range(24)]
VALUE_BYTES = 4096
BACKLOG_RECORDS_MAX = 20 * len(KEYS)
"""What the slowest reader may have left unread: 2 MB."""
RETENTION_BYTES = (2560 << 10, 3584 << 10)
"""Of each partition, in turns: more than the whole backlog."""
SEGMENT_BYTES = 128 << 10
ROUND_RECORDS = 60 * len(KEYS)
"""Read by all between two changes."""
CHANGE_S_MAX = 0.5
WAIT_S_MAX = 120.0
LOOK_S = 0.02
SESSION_S = 60.0
"""A busy machine must not end a session."""
CONFIG = """
[log]
maintenance_interval_s = 0.5
"""


class Place(NamedTuple):
    partition: int
    offset: int


class Numbered(NamedTuple):
    """The record of a key with a number: what is written in it."""

    key: str
    number: int


# --- who writes, and who reads ---


class Worker(ABC):
    """Works in a thread of its own until it is told to stop."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._done = self._thread.submit(self._run)
        self._thread.shutdown(wait=False)

    @abstractmethod
    def _run(self) -> None:
        """What it does."""

    def check(self) -> None:
        """Raises what has ended it."""
        if self._done.done():
            self._done.result()

    def stop(self) -> None:
        self.stopping.set()
        self._done.result(WAIT_S_MAX)


class Writer(Worker):
    """Writes one record of each key at a time, and notes where each was acknowledged."""

    def __init__(self, client: FlyMQClient, read_by_all: Callable[[], int]) -> None:
        self._client = client
        self._read_by_all = read_by_all
        self.places: dict[Place, Numbered] = {}
        self.next = 0
        """The number of the batch that is written next, or just now."""
        super().__init__()

    def _run(self) -> None:
        padding = b"x" * VALUE_BYTES
        while not self.stopping.is_set():
            if len(self.places) - self._read_by_all() > BACKLOG_RECORDS_MAX:
                time.sleep(LOOK_S)
                continue
            number = self.next
            batch = [(key, b"%d %s" % (number, padding)) for key in KEYS]
            placed = self._client.send_many(TOPIC, batch)
            for (key, _), each in zip(batch, placed, strict=True):
                self.places[Place(each.partition, each.offset)] = Numbered(key.decode(), number)
            self.next = number + 1


class Member(Worker):
    """A member of the group, in a thread of its own. It is never started again."""

    def __init__(self, client: FlyMQClient, processed: list[tuple[Place, Numbered]]) -> None:
        self._client = client
        self._processed = processed
        self.lost: list[TopicPartition] = []
        self.ids: set[str] = set()
        super().__init__()

    def _run(self) -> None:
        with self._client.consumer(
            [TOPIC], group=GROUP, session_timeout_s=SESSION_S, on_lost=self.lost.extend
        ) as consumer:
            while not self.stopping.is_set():
                for record in consumer.poll(timeout_s=0.1):
                    number = int((record.value or b"").partition(b" ")[0])
                    numbered = Numbered((record.key or b"").decode(), number)
                    self._processed.append((Place(record.partition, record.offset), numbered))
                self.ids.add(consumer.member_id)


def stream(address: str, checkpoint: Path, scratch: Path) -> None:
    """A Spark driver with one query, which copies places and numbers to a topic; says `running` and its run id when it is asked."""
    import penstock.spark
    from tests.spark.jvm import FAST_MASTER, FAST_SETTINGS

    config = {**FAST_SETTINGS, "spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch)}
    spark = penstock.spark.session("topic-changes", FAST_MASTER, config)
    server = {"penstock.bootstrap": address}
    rows = spark.readStream.format("penstock").options(**server, subscribe=TOPIC, startingOffsets="earliest").load()
    number = "substring_index(CAST(value AS STRING), ' ', 1)"
    copies = rows.selectExpr(
        f"CAST(concat_ws(' ', partition, offset, CAST(key AS STRING), {number}) AS BINARY) AS value"
    )
    writing = copies.writeStream.format("penstock").options(**server, topic=COPIES, checkpointLocation=str(checkpoint))
    query = writing.start()
    _say("ready")
    for command in sys.stdin:
        if command.strip() == "quit":
            break
        _say(f"running {query.runId}" if query.isActive else f"ended: {str(query.exception())[:2000]!r}")
    query.stop()
    _say("bye")
    spark.stop()


# --- the run ---


class TopicChanges:
    """A broker, its readers and its writer; `round` changes the topic under them, and `finish` says what was found."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self._broker = BrokerProcess(directory / "data", config=CONFIG).start()
        self._clients = [self._broker.connect() for _ in range(MEMBERS + 2)]
        self._admin = self._clients[0]
        self._admin.create_topic(TOPIC, PARTITIONS, segment_bytes=SEGMENT_BYTES)
        self._admin.create_topic(COPIES)
        self._partitions = PARTITIONS
        self._epochs: list[tuple[int, int]] = []
        """For each change of the number of partitions: the batch before and behind which all go by one number."""
        self._processed: list[tuple[Place, Numbered]] = []
        self._spark = Spark(
            "tests.crash.topic_changes",
            directory,
            "--stream",
            self._broker.address,
            str(directory / "checkpoint"),
            str(directory / "scratch"),
        )
        self._spark.start()
        self._run = self._spark.tell("state")
        self._members = [Member(client, self._processed) for client in self._clients[2:]]
        self._writer = Writer(self._clients[1], self._read_by_all)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in (self._writer, *self._members):
            worker.stopping.set()
        self._spark.close()
        self._broker.close()
        for client in self._clients:
            client.close()

    def round(self) -> str:
        """Add a partition and change retention while everybody works; returns once all have read on."""
        time.sleep(self._chance.uniform(0, CHANGE_S_MAX))
        before = self._writer.next
        self._partitions += 1
        self._admin.add_partitions(TOPIC, self._partitions)
        self._epochs.append((before, self._writer.next))
        time.sleep(self._chance.uniform(0, CHANGE_S_MAX))
        retention_bytes = RETENTION_BYTES[self._partitions % len(RETENTION_BYTES)]
        self._admin.alter_topic(TOPIC, retention_bytes=retention_bytes, retention_ms="7d")
        self._read_on(ROUND_RECORDS)
        return (
            f"{self._partitions} partitions, retention {retention_bytes >> 10} KiB: {len(self._writer.places)} records written, "
            f"{len(self._processed)} processed by members, {self._copied()} read by Spark"
        )

    def finish(self) -> str:
        """Stop writing, let everybody read to the end, and check what they have. Raises AssertionError for what must never be."""
        self._writer.stop()
        written = self._writer.places
        self._wait(lambda: self._read_by_all() >= len(written) and self._deleted())
        assert self._spark.tell("state") == self._run, "the query has ended or was started again"
        assert self._spark.tell("quit") == "bye"
        for member in self._members:
            member.stop()
            assert len(member.ids) == 1, f"a member joined again: {member.ids}"
            assert not member.lost, f"a member lost partitions: {member.lost}"
        self._check_offsets(written)
        check_members(written, self._processed)
        copies = [_parsed(record.value or b"") for record in self._admin.records(COPIES)]
        check_same("Spark", written, copies)
        check_keys(written, self._epochs)
        return (
            f"{len(written)} records in {self._partitions} partitions, {self._deleted()} of them deleted by retention; "
            f"{MEMBERS} members processed {len(self._processed)}, Spark read {len(copies)}: none lost, none twice, in order"
        )

    def _check_offsets(self, written: dict[Place, Numbered]) -> None:
        described = self._admin.describe_topic(TOPIC).partitions
        ends = [each.next_offset for each in described]
        assert sum(ends) == len(written), "something was stored that nobody wrote"
        assert {Place(each.partition, offset) for each in described for offset in range(each.next_offset)} == set(
            written
        )
        assert all(ends), f"a partition has no records: {ends}"
        [status] = self._admin.monitoring.groups(GROUP)
        assert [each.committed for each in status.partitions] == ends, "the group has not committed the end"

    def _deleted(self) -> int:
        """Records that retention has deleted."""
        return sum(each.start_offset for each in self._admin.describe_topic(TOPIC).partitions)

    def _read_by_all(self) -> int:
        """Records that the slowest reader has read."""
        return min(len(self._processed), self._copied())

    def _copied(self) -> int:
        return sum(each.next_offset for each in self._clients[1].describe_topic(COPIES).partitions)

    def _read_on(self, records: int) -> None:
        wanted = self._read_by_all() + records
        self._wait(lambda: self._read_by_all() >= wanted)

    def _wait(self, done: Callable[[], object]) -> None:
        until_s = time.monotonic() + WAIT_S_MAX
        while not done():
            for worker in (self._writer, *self._members):
                worker.check()
            if time.monotonic() > until_s:
                raise NoProgress(
                    f"no progress: {len(self._writer.places)} records written, {len(self._processed)} processed by members, "
                    f"{self._copied()} read by Spark, {self._deleted()} deleted by retention; the query is {self._spark.tell('state')}"
                )
            time.sleep(LOOK_S)


# --- what must be so ---


def check_members(written: dict[Place, Numbered], processed: Sequence[tuple[Place, Numbered]]) -> None:
    """Each record was processed where it was acknowledged, once, and in each partition in the order of the offsets."""
    check_same("members", written, processed)
    last: dict[int, int] = {}
    for place, _ in processed:
        assert place.offset > last.get(place.partition, -1), f"processed out of order: {place}"
        last[place.partition] = place.offset


def check_same(who: str, written: dict[Place, Numbered], read: Sequence[tuple[Place, Numbered]]) -> None:
    found = dict(read)
    missing = [place for place in written if place not in found]
    assert not missing, f"{who} lost {len(missing)} records, such as {min(missing)}"
    other = [place for place, numbered in read if written.get(place) != numbered]
    assert not other, f"{who} read {len(other)} records that were not written so, such as {min(other)}"
    twice = [place for place, times in Counter(place for place, _ in read).items() if times > 1]
    assert not twice, f"{who} read {len(twice)} records twice, such as {min(twice)}"


def check_keys(written: dict[Place, Numbered], epochs: Iterable[tuple[int, int]]) -> None:
    """The numbers of a key rise with the offsets of a partition; between two changes all of them are in one partition.

    Batches that were on their way during a change went by the old number of partitions or by the new one.
    """
    by_key: dict[str, list[tuple[Place, int]]] = {}
    for place in sorted(written):
        numbered = written[place]
        by_key.setdefault(numbered.key, []).append((place, numbered.number))
    bounds = list(epochs)
    starts = [0, *(after + 1 for _, after in bounds)]
    ends = [*(before for before, _ in bounds), sys.maxsize]
    for key, places in by_key.items():
        for partition in {place.partition for place, _ in places}:
            numbers = [number for place, number in places if place.partition == partition]
            assert numbers == sorted(numbers), f"{key} is out of order in partition {partition}"
        for start, end in zip(starts, ends, strict=True):
            homes = {place.partition for place, number in places if start <= number < end}
            assert len(homes) <= 1, f"{key} was in partitions {sorted(homes)} between two changes"


def _parsed(copy: bytes) -> tuple[Place, Numbered]:
    partition, offset, key, number = copy.decode().split(" ")
    return Place(int(partition), int(offset)), Numbered(key, int(number))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--stream",
        nargs=3,
        metavar=("ADDRESS", "CHECKPOINT", "SCRATCH"),
        help="run as the Spark driver (used by the command itself)",
    )
    given = parser.parse_args()
    if given.stream:
        stream(given.stream[0], *map(Path, given.stream[1:]))
        return
    with tempfile.TemporaryDirectory(prefix="penstock-changes-") as directory:
        started_s = time.monotonic()
        with TopicChanges(Path(directory), given.seed) as changes:
            for number in range(1, given.rounds + 1):
                _say(f"round {number}: {changes.round()}")
            _say(changes.finish())
        _say(f"{given.rounds} rounds in {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()

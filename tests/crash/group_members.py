"""Members of one consumer group as processes that are killed and stopped, under a broker that is killed.

`python -m tests.crash.group_members --rounds 100` runs more rounds than the tests do, and prints what happened. Each round writes records
to 12 partitions while a fault happens (a member is killed, a member is stopped for longer than its session, the broker is killed), waits
until the group has committed everything, and checks what the members have logged:

- each record was processed at least once, and nothing is committed that was not;
- a partition was taken up only after its owner had given it up, or had lost its session;
- no commit was acknowledged that a member sent after another one had taken up the partition.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.clients.options import ClientOptions
from penstock.clients.retry import RetryPolicy
from penstock.errors import ConsumerFenced, PenstockError
from penstock.protocols.flymq.client.client import AsyncFlyMQClient
from penstock.protocols.flymq.client.consumer import TopicPartition
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing.process import BrokerProcess

TOPIC = "work"
GROUP = "members"
PARTITIONS = 12
MEMBERS = 3
SESSION_S = 1.5
WORK_S = 0.1
ROUND_RECORDS = 240
ROUND_S_MAX = 90.0
FAULTS = ("kill member", "stop member", "kill broker")
OPTIONS = ClientOptions(retry=RetryPolicy(attempts_max=100, elapsed_s_max=60.0, delay_s_max=0.2))


class Event(NamedTuple):
    """What a member has logged. A commit has the time at which it was sent, and is logged once it was acknowledged."""

    time_s: float
    member: str
    kind: str
    partition: int
    offset: int


# --- a member ---


async def consume(url: str, log: Path) -> None:
    """Read, log, commit and log again, forever."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(kind: str, partitions: Sequence[tuple[int, int]], time_s: float | None = None) -> None:
        now_s = time.monotonic() if time_s is None else time_s
        lines = [f"{now_s!r} {kind} {partition} {offset}\n" for partition, offset in partitions]
        os.write(file, "".join(lines).encode())

    def noting(kind: str) -> Callable[[Sequence[TopicPartition]], None]:
        return lambda partitions: note(kind, [(each.partition, 0) for each in partitions])

    async with AsyncFlyMQClient(url, options=OPTIONS) as client:
        consumer = client.consumer(
            [TOPIC],
            group=GROUP,
            auto_commit=False,
            session_timeout_s=SESSION_S,
            on_assigned=noting("assigned"),
            on_revoked=noting("revoked"),
            on_lost=noting("lost"),
        )
        while True:
            records = await consumer.poll(20)
            note("processed", [(record.partition, record.offset) for record in records])
            await asyncio.sleep(WORK_S)
            after = {record.partition: record.offset + 1 for record in records}
            sent_s = time.monotonic()
            try:
                await consumer.commit({TopicPartition(TOPIC, each): offset for each, offset in after.items()})
            except ConsumerFenced:
                note("fenced", list(after.items()), sent_s)
            except PenstockError as error:
                if not error.retriable:
                    raise
            else:
                note("committed", list(after.items()), sent_s)


class MemberProcess:
    """A member as a process, with a log of its own."""

    def __init__(self, url: str, log: Path) -> None:
        self.log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.group_members", "--member", url, str(log)],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def kill9(self) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def check_running(self) -> None:
        if self._process.poll() is not None:
            raise AssertionError(f"a member has ended: {self._process.communicate()[1].decode()}")

    def events(self) -> list[Event]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        parts = [line.split() for line in lines]
        return [
            Event(float(time_s), self.log.stem, kind, int(index), int(offset)) for time_s, kind, index, offset in parts
        ]


# --- rounds ---


class Rounds:
    """A broker and three members, and everything that members have logged in their lives."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._broker = BrokerProcess(directory / "data").start()
        self._members: list[MemberProcess] = []
        self._gone: list[MemberProcess] = []
        self._produced = 0
        with self._broker.connect() as client:
            client.create_topic(TOPIC, PARTITIONS)
        for _ in range(MEMBERS):
            self._add_member()
        self._wait(lambda status: len(status.members) == MEMBERS and status.state == "stable")

    def round(self, fault: str) -> None:
        """Write records, do what the fault says in between, and check once everything is committed."""
        self._produce(ROUND_RECORDS // 2)
        time.sleep(self._chance.uniform(0.0, 0.1))
        if fault == "kill member":
            victim = self._members.pop(self._chance.randrange(MEMBERS))
            victim.kill9()
            self._gone.append(victim)
            self._produce(ROUND_RECORDS // 2)
            self._add_member()
        elif fault == "stop member":
            victim = self._chance.choice(self._members)
            self._stop_at_work(victim)
            self._produce(ROUND_RECORDS // 2)
            time.sleep(SESSION_S + self._chance.uniform(0.0, 1.0))
            victim.resume()
        else:
            self._broker.kill9()
            self._broker.start()
            self._produce(ROUND_RECORDS // 2)
        self._wait(lambda status: sum(each.lag for each in status.partitions) == 0 and len(status.members) == MEMBERS)
        self.check()

    def check(self) -> None:
        """Raises AssertionError for what must never happen."""
        events = sorted(event for member in [*self._gone, *self._members] for event in member.events())
        with self._broker.connect() as client:
            [status] = client.monitoring.groups(GROUP)
        processed = {(event.partition, event.offset) for event in events if event.kind == "processed"}
        assert sum(each.next_offset for each in status.partitions) == self._produced
        for each in status.partitions:
            missing = [offset for offset in range(each.committed) if (each.partition, offset) not in processed]
            assert not missing, f"partition {each.partition}: committed and never processed: {missing}"
        for partition in range(PARTITIONS):
            _check_partition([event for event in events if event.partition == partition])

    @property
    def counts(self) -> Counter[str]:
        return Counter(event.kind for member in [*self._gone, *self._members] for event in member.events())

    def close(self) -> None:
        for member in self._members:
            member.kill9()
        self._broker.close()

    def _stop_at_work(self, member: MemberProcess) -> None:
        """Stop a member between reading records and committing them, so that its commit comes late."""
        until_s = time.monotonic() + ROUND_S_MAX
        while True:
            before = len(member.events())
            self._produce(PARTITIONS)
            while len(member.events()) == before:
                assert time.monotonic() < until_s, "the member reads nothing"
                time.sleep(0.001)
            member.stop()
            if member.events()[-1].kind == "processed":
                return
            member.resume()

    def _add_member(self) -> None:
        number = len(self._members) + len(self._gone)
        self._members.append(MemberProcess(self._broker.url, self._directory / f"member-{number}.log"))

    def _produce(self, count: int) -> None:
        with FlyMQClient(self._broker.url, options=OPTIONS) as client:
            for first in range(0, count, PARTITIONS):
                client.send_many(TOPIC, [b"%d" % number for number in range(first, first + PARTITIONS)])
        self._produced += count

    def _wait(self, done: Callable[..., bool]) -> None:
        until_s = time.monotonic() + ROUND_S_MAX
        with FlyMQClient(self._broker.url, options=OPTIONS) as client:
            while True:
                statuses = client.monitoring.groups(GROUP)
                if statuses and done(statuses[0]):
                    return
                for member in self._members:
                    member.check_running()
                assert time.monotonic() < until_s, f"not done within {ROUND_S_MAX} s: {statuses}"
                time.sleep(0.05)


def _check_partition(events: Sequence[Event]) -> None:
    owner: str | None = None
    expired: set[str] = set()
    """Members whose partition another one took up: they must learn that they have lost it."""
    for event in events:
        if event.kind == "assigned":
            if owner not in (None, event.member):
                expired.add(str(owner))
            owner = event.member
            expired.discard(event.member)
        elif event.kind == "lost":
            expired.discard(event.member)
        elif event.kind == "revoked":
            assert event.member not in expired, (
                f"a partition was taken from {event.member}, which had a session: {event}"
            )
        elif event.kind == "committed":
            assert owner in (None, event.member), f"a commit was accepted although {owner} had the partition: {event}"
        if event.kind in ("revoked", "lost") and owner == event.member:
            owner = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--member", nargs=2, metavar=("URL", "LOG"), help="run as a member (used by the command itself)"
    )
    arguments = parser.parse_args()
    if arguments.member:
        asyncio.run(consume(arguments.member[0], Path(arguments.member[1])))
        return
    with tempfile.TemporaryDirectory(prefix="penstock-members-") as directory:
        rounds = Rounds(Path(directory), arguments.seed)
        started_s = time.monotonic()
        try:
            for number in range(arguments.rounds):
                rounds.round(FAULTS[number % len(FAULTS)])
                sys.stdout.write(f"round {number + 1}: {dict(sorted(rounds.counts.items()))}\n")
                sys.stdout.flush()
        finally:
            rounds.close()
        sys.stdout.write(f"{arguments.rounds} rounds in {time.monotonic() - started_s:.0f} s, no violation\n")


if __name__ == "__main__":
    main()

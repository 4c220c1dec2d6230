"""Kill and freeze parts of a cluster, three brokers of Kafka and three nodes, under a load over all protocols.

    python -m tests.crash.cluster_faults --rounds 12

Five channels send numbered values over the five protocols, and a sixth sends transactions over FlyMQ. In each round one part fails: a
broker of Kafka is killed, the node that leads is killed, one that follows is killed, or the node that leads is stopped (SIGSTOP) until
another has taken its place, and continued. The part is back before the next round. A round ends when every channel has been answered since
the fault; how long that took is printed. At the end every acknowledged value must be there, twice only if its sender sent it again, and
every transaction as a whole. Ends with 1 otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.kafka import KafkaCluster
from penstock.testing.process import BrokerProcess
from scripts.demo.cluster import (
    BROKERS,
    CHUNK,
    PARTITIONS,
    Channel,
    acknowledged,
    alive,
    leader_of,
    make_nodes,
    stored_values,
    what_is_wrong,
)
from scripts.demo.intake import TOPIC
from scripts.demo.speakers import SPEAKERS, FlyMQ, Speaker

FROZEN_S_MAX = 60.0
ROUND_S_MAX = 180.0
TRANSACTION = b"transaction "


class Transactions(FlyMQ):
    """Each chunk is a transaction over all partitions."""

    def send(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        with self.client.transaction() as transaction:
            for number, (key, value) in enumerate(records):
                transaction.send(topic, value, key=key, partition=number % PARTITIONS)


def numbered(prefix: bytes, over: threading.Event) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    for chunk in itertools.count():
        if over.is_set():
            return
        yield [(b"key %d" % number, prefix + b"%d-%d" % (chunk, number)) for number in range(CHUNK)]


Repair = Callable[[], None]


class Faults:
    """Each makes one part fail, and returns what brings it back."""

    def __init__(self, kafka: KafkaCluster, nodes: Sequence[BrokerProcess], random_: random.Random) -> None:
        self._kafka = kafka
        self._nodes = nodes
        self._random = random_

    def kafka_broker_killed(self) -> Repair:
        broker = self._random.choice(self._kafka.brokers)
        broker.kill()
        return broker.start

    def leading_node_killed(self) -> Repair:
        return _killed(leader_of(self._nodes))

    def following_node_killed(self) -> Repair:
        leader = leader_of(self._nodes)
        return _killed(self._random.choice([node for node in self._nodes if node is not leader]))

    def leading_node_frozen(self) -> Repair:
        frozen = leader_of(self._nodes)
        other = next(node for node in self._nodes if node is not frozen)
        frozen.pause()
        return partial(_continue_once_replaced, frozen, other)


def _killed(node: BrokerProcess) -> Repair:
    node.kill9()

    def start() -> None:
        node.start()

    return start


def _continue_once_replaced(frozen: BrokerProcess, other: BrokerProcess) -> None:
    try:
        deadline = time.monotonic() + FROZEN_S_MAX
        with other.connect() as client:
            while client.access.cluster_status().leader in {frozen.data_dir.name, ""}:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"nobody took the place of a frozen node within {FROZEN_S_MAX:g} s")
                time.sleep(0.1)
    finally:
        frozen.resume()


def play_round(fault: Callable[[], Repair], channels: Sequence[Channel]) -> float:
    """Let a part fail and bring it back; returns how long it took until every channel was answered. Raises if one of these fails."""
    repair = fault()
    at = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        # What was under way when it happened may be answered yet: the chunk after it is not.
        since = {channel: len(channel.acknowledged) + CHUNK for channel in channels}
        repaired = threads.submit(repair)
        wait_for_answers(channels, since)
        seconds = time.monotonic() - at
        repaired.result()
    return seconds


def wait_for_answers(channels: Sequence[Channel], since: dict[Channel, int]) -> None:
    deadline = time.monotonic() + ROUND_S_MAX
    for channel in channels:
        while len(channel.acknowledged) <= since[channel]:
            if channel.failure is not None:
                raise RuntimeError(channel.failure)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{channel.kind.name} was not answered within {ROUND_S_MAX:g} s")
            time.sleep(0.02)


def run(rounds: int, seed: int) -> int:
    chance = random.Random(seed)
    over = threading.Event()
    recovered: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as name, ExitStack() as running:
        kafka = running.enter_context(KafkaCluster(Path(name) / "kafka", BROKERS, light=True))
        nodes = [running.enter_context(node) for node in make_nodes(Path(name), kafka.bootstrap)]
        with nodes[0].connect() as client:
            client.create_topic(TOPIC, PARTITIONS)
        kinds: list[tuple[type[Speaker], bytes]] = [(kind, kind.name.encode() + b" ") for kind in SPEAKERS]
        kinds.append((Transactions, TRANSACTION))
        channels = [Channel(number, kind, nodes, numbered(prefix, over)) for number, (kind, prefix) in enumerate(kinds)]
        for channel in channels:
            channel.start()
        wait_for_answers(channels, dict.fromkeys(channels, 0))
        faults = Faults(kafka, nodes, chance)
        for number in range(rounds):
            fault = (
                faults.kafka_broker_killed,
                faults.leading_node_killed,
                faults.following_node_killed,
                faults.leading_node_frozen,
            )[number % 4]
            seconds = play_round(fault, channels)
            recovered.setdefault(fault.__name__, []).append(seconds)
            _say(f"round {number + 1}: {fault.__name__}, all channels answered after {seconds:.1f} s")
        over.set()
        for channel in channels:
            channel.join()
        stored = stored_values(alive(nodes)[0])
    wrong = [each.failure for each in channels if each.failure] + [what_is_wrong(stored, channels)]
    wrong.append(torn_transactions(stored))
    for fault_name, seconds_each in recovered.items():
        _say(
            f"{fault_name}: {len(seconds_each)} times, until all channels were answered {statistics.median(seconds_each):.1f} s "
            f"(median), {max(seconds_each):.1f} s (longest)"
        )
    again = sum(len(channel.sent_again) for channel in channels)
    twice = sum(count > 1 for count in stored.values())
    _say(f"{acknowledged(channels):,} values acknowledged, {again:,} sent again, of which {twice:,} are stored twice")
    problems = [each for each in wrong if each]
    _say("\n".join(problems) or "0 lost, 0 twice that were sent once, every transaction whole")
    return bool(problems)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def torn_transactions(stored: Counter[bytes]) -> str:
    """A transaction that was sent again may be there twice, but as a whole."""
    counts: dict[bytes, list[int]] = {}
    for value, count in stored.items():
        if value.startswith(TRANSACTION):
            counts.setdefault(value.split(b"-")[0], []).append(count)
    torn = [each for each in counts.values() if len(each) != CHUNK or len(set(each)) != 1]
    return f"{len(torn)} transactions are there in part" if torn else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    _say(f"seed {arguments.seed}")
    sys.exit(run(arguments.rounds, arguments.seed))


if __name__ == "__main__":
    main()

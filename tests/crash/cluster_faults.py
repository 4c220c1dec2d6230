"""Kill and freeze parts of a cluster, three brokers of Kafka and three nodes, under a load over all protocols.

    python -m tests.crash.cluster_faults --rounds 22

Five channels send numbered values over the five protocols; two more send transactions without a pause. Each has a client that knows all
nodes and begins with one of its own. An idempotent producer at each node sends over one client from beginning to end, and readers at each
node acknowledge what one subscription of BlipMQ delivers. In each round one part fails: a broker of Kafka is killed, at random or the one
that coordinates a transaction that has just begun; the node that leads is killed, or one that follows; the node that leads is stopped
(SIGSTOP) until another has taken its place, and continued; the network between it and Kafka is cut for as long; or one that follows, and
owns subscriptions, is cut off or stopped for a while; or the network between the node that leads and the other nodes is cut, while all of
them reach Kafka. And all nodes are stopped (SIGTERM) and started again, one after the other, a round each, as for an upgrade: then a
channel may lose its connection or an open transaction, and sees no other error. Before other rounds, channels return to their own node. The
answers to idempotent producers are held back before the fault, and their connections are reset after it. The part is back before the next
round. A round ends when every channel has been answered since the fault; how long that took is printed.

At the end the node that leads is killed once more. Every acknowledged value must be there, twice only if its sender sent it again without
the number of an idempotent producer, and every transaction as a whole. Every value must have been delivered, and none whose acknowledgement
was confirmed once more. Ends with 1 otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from bench.kafka import KafkaCluster
from bench.processes import HOST, free_port
from penstock.clients.loop_thread import LoopThread
from penstock.protocols.blipmq.sync import BlipMQClient
from penstock.testing.process import BrokerProcess
from scripts.demo.cluster import (
    BROKERS,
    CHUNK,
    NODES,
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
from scripts.demo.speakers import SPEAKERS, BlipMQ, Speaker
from tests.crash.cluster_channels import (
    SUBSCRIPTIONS,
    TRANSACTION,
    TRANSACTION_RECORDS,
    IdempotentProducer,
    Readers,
    Returning,
    Transactions,
    numbered,
    refusals,
    torn_transactions,
)
from tests.crash.kafka_transactions import TransactionLog
from tests.crash.relay import Relay

REPLACED_S_MAX = 60.0
CUT_S = 15.0
"""How long a node stays cut off if no other takes its place: longer than any request to Kafka or to another node waits for its answer."""
PEER_HOSTS = {node: f"127.0.1.{number}" for number, node in enumerate(NODES, 1)}
ROUND_S_MAX = 180.0
DELIVERED_S_MAX = 180.0
HELD_BACK_S = 0.1
"""How long answers to idempotent producers are held back before a fault: what they have asked for is stored by then."""
TRANSACTION_CHANNELS = 2
CHUNK_PAUSE_S = 0.02
TRANSACTIONAL_IDS = "penstock.txn."
_REPEATED = re.compile(r"^penstock_producer_requests_repeated_total (\d+)", re.MULTILINE)


class Answered(Protocol):
    """What is to be answered after each fault."""

    @property
    def kind(self) -> type[Speaker]: ...

    @property
    def acknowledged(self) -> Sized: ...

    @property
    def failure(self) -> str | None: ...


Repair = Callable[[], None]
FAULTS: Final = (
    "kafka_broker_killed",
    "leading_node_killed",
    "following_node_killed",
    *["node_stopped"] * len(NODES),
    "leading_node_frozen",
    "transaction_coordinator_killed",
    "leading_node_cut_off",
    "following_node_cut_off",
    "following_node_frozen",
    "leading_node_unreachable_for_nodes",
)
"""Methods of `Faults`."""


class Links:
    """The network between nodes and brokers of Kafka: a relay for each pair, which a broker tells its node as the broker's own address.
    The network between nodes: a relay in front of each, with the same port at an address of its own that the node advertises. And that
    between a node and its idempotent producers."""

    def __init__(self) -> None:
        self._thread = LoopThread("relays")
        self._relays: dict[str, list[Relay]] = {node: [] for node in NODES}
        self._peers: dict[str, Relay] = {}
        self._producers: list[Relay] = []
        self._peer_ports = {node: free_port() for node in NODES}
        self._ports = {broker: {node: free_port() for node in NODES} for broker in range(1, BROKERS + 1)}

    @property
    def listeners(self) -> dict[int, dict[str, str]]:
        """By broker: the names of its listeners and what clients are told to be their addresses."""
        return {
            broker: {node.upper(): f"{HOST}:{port}" for node, port in ports.items()}
            for broker, ports in self._ports.items()
        }

    @property
    def bootstrap(self) -> dict[str, list[str]]:
        """By node: where it finds the brokers."""
        return {node: [f"{HOST}:{ports[node]}" for ports in self._ports.values()] for node in NODES}

    @property
    def clusters(self) -> dict[str, str]:
        """By node: its address for other nodes, as settings."""
        return {
            node: f'bind = "{HOST}:{port}"\nadvertise = "{PEER_HOSTS[node]}"' for node, port in self._peer_ports.items()
        }

    def open(self, kafka: KafkaCluster) -> None:
        for node, port in self._peer_ports.items():
            relay = self._peers[node] = Relay(HOST, port)
            self._thread.run(relay.start(port, PEER_HOSTS[node]))
        for broker, ports in zip(kafka.brokers, self._ports.values(), strict=True):
            for node, port in ports.items():
                relay = Relay(HOST, int(broker.addresses[node.upper()].rpartition(":")[2]))
                self._thread.run(relay.start(port))
                self._relays[node].append(relay)

    def for_producers(self, node: BrokerProcess) -> str:
        """Return the URL of a relay in front of a node that listens."""
        host, _, port = node.address.rpartition(":")
        relay = Relay(host, int(port))
        self._producers.append(relay)
        return f"flymq://{self._thread.run(relay.start())}"

    def hold_back_from_producers(self) -> None:
        for relay in self._producers:
            self._thread.run(relay.hold_answers())
        time.sleep(HELD_BACK_S)

    def cut_off_producers(self) -> None:
        for relay in self._producers:
            self._thread.run(relay.cut(0.0))

    def cut(self, node: str) -> None:
        for relay in self._relays[node]:
            self._thread.run(relay.hold())

    def mend(self, node: str) -> None:
        for relay in self._relays[node]:
            self._thread.run(relay.release())

    def cut_from_nodes(self, node: str) -> None:
        self._thread.run(self._peers[node].hold())

    def mend_to_nodes(self, node: str) -> None:
        self._thread.run(self._peers[node].release())

    def close(self) -> None:
        for relay in (*self._producers, *self._peers.values(), *itertools.chain.from_iterable(self._relays.values())):
            self._thread.run(relay.close())
        self._thread.close()


class Faults:
    """Each makes one part fail, and returns what brings it back."""

    def __init__(
        self, kafka: KafkaCluster, nodes: Sequence[BrokerProcess], links: Links, random_: random.Random
    ) -> None:
        self._kafka = kafka
        self._nodes = nodes
        self._links = links
        self._random = random_
        self._in_turn = itertools.cycle(nodes)
        self.transactions_hit = 0
        """How often a coordinator had not finished a transaction when it was killed."""

    def named(self, names: Iterable[str]) -> Sequence[Callable[[], Repair]]:
        return [getattr(self, name) for name in names]

    def kafka_broker_killed(self) -> Repair:
        broker = self._random.choice(self._kafka.brokers)
        broker.kill()
        return broker.start

    def transaction_coordinator_killed(self) -> Repair:
        log = TransactionLog(self._kafka.bootstrap, TRANSACTIONAL_IDS)
        broker = self._kafka.brokers[log.wait_until_begun() - 1]
        broker.kill()

        def start() -> None:
            try:
                broker.start()
                self.transactions_hit += log.was_unfinished()
            finally:
                log.close()

        return start

    def leading_node_killed(self) -> Repair:
        return _killed(leader_of(self._nodes))

    def following_node_killed(self) -> Repair:
        return _killed(self._following())

    def node_stopped(self) -> Repair:
        """The next node, the first one after the last."""
        node = next(self._in_turn)
        code = node.terminate()
        if code:
            raise RuntimeError(f"{node.data_dir.name} ended with {code} where it was to stop")
        return partial(_start, node)

    def leading_node_frozen(self) -> Repair:
        leader = leader_of(self._nodes)
        leader.pause()
        return partial(self._once_replaced, leader, leader.resume)

    def leading_node_cut_off(self) -> Repair:
        leader = leader_of(self._nodes)
        self._links.cut(leader.data_dir.name)
        return partial(self._once_replaced, leader, partial(self._links.mend, leader.data_dir.name))

    def following_node_cut_off(self) -> Repair:
        node = self._following().data_dir.name
        self._links.cut(node)
        return partial(self._later, partial(self._links.mend, node))

    def following_node_frozen(self) -> Repair:
        node = self._following()
        node.pause()
        return partial(self._later, node.resume)

    def leading_node_unreachable_for_nodes(self) -> Repair:
        node = leader_of(self._nodes).data_dir.name
        self._links.cut_from_nodes(node)
        return partial(self._later, partial(self._links.mend_to_nodes, node))

    def _later(self, repair: Repair) -> None:
        time.sleep(CUT_S)
        repair()

    def _following(self) -> BrokerProcess:
        leader = leader_of(self._nodes)
        return self._random.choice([node for node in self._nodes if node is not leader])

    def _once_replaced(self, former: BrokerProcess, repair: Repair) -> None:
        """Repair it when another node leads, as the others see it."""
        other = next(node for node in self._nodes if node is not former)
        deadline = time.monotonic() + REPLACED_S_MAX
        try:
            with other.connect() as client:
                while client.access.cluster_status().leader in {former.data_dir.name, ""}:
                    if time.monotonic() > deadline:
                        raise RuntimeError(
                            f"nobody took the place of {former.data_dir.name} within {REPLACED_S_MAX:g} s"
                        )
                    time.sleep(0.1)
        finally:
            repair()


def _killed(node: BrokerProcess) -> Repair:
    node.kill9()
    return partial(_start, node)


def _start(node: BrokerProcess) -> None:
    node.start()


def play_round(fault: Callable[[], Repair], channels: Sequence[Answered]) -> float:
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


def wait_for_answers(channels: Sequence[Answered], since: Mapping[Answered, int]) -> None:
    deadline = time.monotonic() + ROUND_S_MAX
    for channel in channels:
        while len(channel.acknowledged) <= since[channel]:
            if channel.failure is not None:
                raise RuntimeError(channel.failure)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{channel.kind.name} was not answered within {ROUND_S_MAX:g} s")
            time.sleep(0.02)


class Repeated:
    """Counts requests of idempotent producers that nodes have recognized as stored before; those of a node that starts again meanwhile are
    not counted."""

    def __init__(self, nodes: Sequence[BrokerProcess]) -> None:
        self._nodes = nodes
        self._seen = [0] * len(nodes)
        self.count = 0

    def look(self) -> None:
        for number, node in enumerate(self._nodes):
            with suppress(OSError), urllib.request.urlopen(f"http://{node.addresses['admin']}/metrics") as page:
                found = _REPEATED.search(page.read().decode())
                now = 0 if found is None else int(found[1])
                self.count += now - self._seen[number] if now >= self._seen[number] else now
                self._seen[number] = now


class Load:
    """Everything that sends and reads, on nodes that run."""

    def __init__(self, nodes: Sequence[BrokerProcess], links: Links) -> None:
        self._nodes = nodes
        self._over = threading.Event()
        with nodes[0].connect() as client:
            client.create_topic(TOPIC, PARTITIONS)
        with BlipMQClient(BlipMQ.url(nodes[0])) as client:
            self.readers = Readers(nodes, client.subscribe(TOPIC))
        kinds: list[tuple[type[Speaker], bytes]] = [(kind, kind.name.encode() + b" ") for kind in SPEAKERS]
        self.returning = [
            Returning(number, kind, nodes, numbered(prefix, CHUNK, self._over), pause_s=CHUNK_PAUSE_S)
            for number, (kind, prefix) in enumerate(kinds)
        ]
        self.returning += [
            Returning(
                number,
                Transactions,
                nodes,
                numbered(TRANSACTION + b"%d-" % number, TRANSACTION_RECORDS, self._over),
                pause_s=0.0,
            )
            for number in range(TRANSACTION_CHANNELS)
        ]
        self.producers = [
            IdempotentProducer(
                number, node, links.for_producers(node), numbered(b"once %d-" % number, CHUNK, self._over)
            )
            for number, node in enumerate(nodes)
        ]
        self.senders: list[Channel] = [*self.returning, *self.producers]

    @property
    def channels(self) -> Sequence[Answered]:
        return [*self.senders, self.readers]

    def start(self) -> None:
        for sender in self.senders:
            sender.start()
        self.readers.start()
        wait_for_answers(self.channels, dict.fromkeys(self.channels, 0))

    def return_home(self) -> None:
        for channel in self.returning:
            channel.return_home()
        wait_for_answers(self.channels, {channel: len(channel.acknowledged) + CHUNK for channel in self.channels})

    def stop(self) -> list[str]:
        """End it; returns what is wrong with what is stored and what was delivered."""
        self._over.set()
        for sender in self.senders:
            sender.join()
        stored = stored_values(alive(self._nodes)[0])
        self._wait_for_readers(lambda: len(self.readers.delivered) >= stored.total())
        leader_of(self._nodes).kill9()
        killed_s = time.monotonic()
        # Who leads next delivers at once what is not acknowledged in the log.
        self._wait_for_readers(lambda: self.readers.empty_s > killed_s)
        self.readers.stop()
        twice = sum(count > 1 for count in stored.values())
        again = sum(len(sender.sent_again) for sender in self.senders if sender not in self.producers)
        given_up = sum(len(producer.sent_again) for producer in self.producers)
        _say(f"{acknowledged(self.senders):,} values acknowledged, {again:,} sent again by their senders")
        _say(f"{twice:,} of these are stored twice; {given_up:,} of idempotent producers got no answer")
        _say(
            f"{len(self.readers.delivered):,} delivered, {len(self.readers.acknowledged):,} acknowledgements confirmed"
        )
        return [
            *(each.failure for each in self.channels if each.failure),
            what_is_wrong(stored, self.senders),
            torn_transactions(stored),
            *(producer.stored_again(stored) for producer in self.producers),
            self.readers.what_is_wrong(stored),
        ]

    def _wait_for_readers(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DELIVERED_S_MAX
        while not until() and time.monotonic() < deadline:
            time.sleep(0.1)


def run(rounds: int, seed: int, names: Sequence[str]) -> int:
    chance = random.Random(seed)
    recovered: dict[str, list[float]] = {}
    refused: list[str] = []
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as name, ExitStack() as running:
        links = Links()
        kafka = running.enter_context(KafkaCluster(Path(name) / "kafka", BROKERS, light=True, relayed=links.listeners))
        links.open(kafka)
        running.callback(links.close)
        made = make_nodes(Path(name), links.bootstrap, links.clusters, SUBSCRIPTIONS)
        nodes = [running.enter_context(node) for node in made]
        load = Load(nodes, links)
        load.start()
        repeated = Repeated(nodes)
        faults = Faults(kafka, nodes, links, chance)
        kinds = faults.named(names)
        for number in range(rounds):
            fault = kinds[number % len(kinds)]
            if fault != faults.node_stopped:
                load.return_home()
            before = {sender: Counter(sender.errors) for sender in load.senders}
            links.hold_back_from_producers()
            seconds = play_round(partial(_cut_off_after, fault, links), load.channels)
            repeated.look()
            if fault == faults.node_stopped:
                refused += [refusals(sender, before[sender]) for sender in load.senders]
            recovered.setdefault(fault.__name__, []).append(seconds)
            _say(f"round {number + 1}: {fault.__name__}, all channels answered after {seconds:.1f} s")
        wrong = [*refused, *load.stop()]
    for fault_name, seconds_each in recovered.items():
        _say(
            f"{fault_name}: {len(seconds_each)} times, until all channels were answered {statistics.median(seconds_each):.1f} s "
            f"(median), {max(seconds_each):.1f} s (longest)"
        )
    _say(f"{faults.transactions_hit} times the coordinator was killed before it had finished a transaction")
    _say(f"{repeated.count:,} requests of idempotent producers came again and had been stored")
    problems = [each for each in wrong if each]
    _say(
        "\n".join(problems)
        or "0 lost, 0 twice that were sent once, every transaction whole, no confirmed delivery repeated"
    )
    return bool(problems)


def _cut_off_after(fault: Callable[[], Repair], links: Links) -> Repair:
    try:
        return fault()
    finally:
        links.cut_off_producers()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=22)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--faults", nargs="+", choices=sorted({*FAULTS}), default=FAULTS, help="in turn, one a round")
    arguments = parser.parse_args()
    _say(f"seed {arguments.seed}")
    sys.exit(run(arguments.rounds, arguments.seed, arguments.faults))


if __name__ == "__main__":
    main()

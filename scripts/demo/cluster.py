"""See a cluster work: `make demo-cluster`. Three brokers of Kafka, three nodes in front of them, orders over every protocol, and one of
each killed meanwhile.

Everything happens in a temporary directory and on free ports. Every channel has a client that knows all nodes and fails over when
its own is gone; the channel sends again what was not acknowledged. At the end each acknowledged order must be there, and the demo ends with
an error if one is not.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.kafka import KafkaCluster, KafkaMissing
from bench.processes import HOST, free_port
from penstock.clock import SystemClock
from penstock.errors import JavaMissing, PenstockError
from penstock.net.certificates import own_certificate
from penstock.spark.java import find_java
from penstock.testing.process import BrokerProcess
from scripts.demo import travel
from scripts.demo.intake import TOPIC
from scripts.demo.narration import DemoFailed, Narrator
from scripts.demo.orders import CHANNELS, orders_of
from scripts.demo.speakers import SPEAKERS, Speaker, configuration

NODES: Final = ("node1", "node2", "node3")
BROKERS: Final = 3
PARTITIONS: Final = 3
ORDERS_PER_CHANNEL: Final = 4_000
CHUNK: Final = 50
PAUSE_S: Final = 0.1
"""Between chunks, so that there is a load for as long as things are killed."""
SEND_S_MAX: Final = 120.0
"""For one chunk, over all attempts."""
LEADER_S_MAX: Final = 60.0
BROKER_KILLED_AT, NODE_KILLED_AT = 0.25, 0.5
"""Shares of the orders that are acknowledged when one is killed."""


def main() -> None:
    try:
        find_java(os.environ)
    except JavaMissing as missing:
        raise SystemExit(f"the demo runs Kafka and Spark: {missing}") from None
    narrator = Narrator(Console())
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name, ExitStack() as running:
        directory = Path(name)
        narrator.step("Three brokers of Kafka", "Each has a copy of every record; a write needs two of them.")
        try:
            kafka = running.enter_context(KafkaCluster(directory / "kafka", BROKERS, light=True))
        except KafkaMissing as missing:
            raise SystemExit(f"the demo runs Kafka: {missing}") from None
        narrator.say(f"ready after {narrator.seconds:.0f} s: {', '.join(kafka.bootstrap)}")
        narrator.step("Three nodes", "Each speaks five protocols. They keep nothing: the log is in Kafka.")
        nodes = [running.enter_context(node) for node in make_nodes(directory, dict.fromkeys(NODES, kafka.bootstrap))]
        show_nodes(narrator, nodes)
        show_matrix(narrator, nodes)
        channels = send_while_parts_fail(narrator, kafka, nodes)
        check_stored(narrator, nodes, channels)
        read_with_spark(narrator, nodes, channels)
    narrator.step("Your turn", f"All of this took {narrator.seconds:.0f} s, and left nothing behind.")
    narrator.say("docs/kafka.md says how to set up a cluster, and docs/migrate.md how to move a broker's log to it")


def make_nodes(
    directory: Path,
    bootstrap: Mapping[str, Sequence[str]],
    clusters: Mapping[str, str] | None = None,
    more: str = "",
) -> list[BrokerProcess]:
    """Nodes that differ only by their name and the addresses that each is given: of Kafka, and in `clusters` of itself for the others, as
    settings of `[cluster]`. `more` are further sections of the configuration, the same for all.

    QUIC clients may have their TLS connection with any of them, so all have one certificate. A node that is started again has the ports of
    before, which clients know.
    """
    made = own_certificate(directory, SystemClock())
    nodes = []
    for name in NODES:
        data_dir = directory / name
        data_dir.mkdir()
        for file in (made.cert, made.key):
            shutil.copy2(file, data_dir)
        tls = f'tls = {{ cert = "{made.cert}", key = "{made.key}" }}\n'
        listeners = re.sub(f"{HOST}:0", lambda _: f"{HOST}:{free_port()}", configuration())
        for protocol in ("fujin", "felix"):
            listeners = listeners.replace(f"[listeners.{protocol}]\n", f"[listeners.{protocol}]\n{tls}")
        cluster = 'bind = "127.0.0.1:0"' if clusters is None else clusters[name]
        config = (
            f'engine = "kafka"\n\n[kafka]\nbootstrap = {list(bootstrap[name])}\nreplication = {BROKERS}\n\n'
            f'[cluster]\n{cluster}\nnode = "{name}"\nsecret = "the secret of the demo"\n\n{listeners}\n{more}'
        )
        nodes.append(BrokerProcess(data_dir, config=config, start_s_max=120.0))
    return nodes


def alive(nodes: Sequence[BrokerProcess]) -> list[BrokerProcess]:
    return [node for node in nodes if node.running]


def show_nodes(narrator: Narrator, nodes: Sequence[BrokerProcess]) -> None:
    with alive(nodes)[0].connect() as client:
        status = client.access.cluster_status()
        while not all(address for _, address, _ in status.nodes):  # one that has just joined
            time.sleep(0.1)
            status = client.access.cluster_status()
    narrator.table(
        "penstock cluster",
        ("node", "address", "state", "role"),
        ((*node, "leads" if node[0] == status.leader else "follows") for node in status.nodes),
    )


def show_matrix(narrator: Narrator, nodes: Sequence[BrokerProcess]) -> None:
    narrator.step(
        "Every protocol reads what every other wrote, on any node", "Writers and readers are on different nodes."
    )
    with nodes[0].connect() as client:
        client.create_topic(TOPIC, PARTITIONS)
        for topic in travel.TOPICS:
            client.create_topic(topic)
    with ExitStack() as clients:
        speakers = [
            clients.enter_context(speaker(nodes[number % len(nodes)])) for number, speaker in enumerate(SPEAKERS)
        ]
        travel.show_matrix(narrator, speakers)
        travel.show_relay(narrator, speakers)


class Channel(threading.Thread):
    """A part of the shop that sends its orders until each is acknowledged, over one client, first to a node of its own."""

    def __init__(
        self,
        number: int,
        kind: type[Speaker],
        nodes: Sequence[BrokerProcess],
        chunks: Iterable[Sequence[tuple[bytes, bytes]]],
        pause_s: float = PAUSE_S,
    ) -> None:
        super().__init__(name=CHANNELS[kind.name], daemon=True)
        self.kind = kind
        self.acknowledged: list[bytes] = []
        """Values."""
        self.sent_again: set[bytes] = set()
        """Values that may be stored twice: nobody said whether they were stored the first time."""
        self.errors: Counter[str] = Counter()
        """What was raised before values were sent again, by the name of the class."""
        self.longest_s = 0.0
        self.failure: str | None = None
        first = number % len(nodes)
        self._nodes = [*nodes[first:], *nodes[:first]]
        self._chunks = chunks
        self._pause_s = pause_s
        self._speaker: Speaker | None = None

    def run(self) -> None:
        try:
            for chunk in self._chunks:
                at = time.monotonic()
                self._send(chunk)
                self.longest_s = max(self.longest_s, time.monotonic() - at)
                self.acknowledged += [value for _, value in chunk]
                time.sleep(self._pause_s)
        except Exception as error:
            self.failure = f"{self.kind.name} gave up: {error}"
            raise
        finally:
            self._disconnect()

    def _send(self, chunk: Sequence[tuple[bytes, bytes]]) -> None:
        deadline = time.monotonic() + SEND_S_MAX
        while True:
            try:
                self._connected().send(TOPIC, chunk)
                return
            except PenstockError as error:
                if time.monotonic() > deadline:
                    raise
                self.errors[type(error).__name__] += 1
                if self._speaker is not None:
                    self.sent_again.update(value for _, value in chunk)
                time.sleep(PAUSE_S)

    def _connected(self) -> Speaker:
        if self._speaker is None:
            self._speaker = self.kind(*self._nodes)
        return self._speaker

    def _disconnect(self) -> None:
        speaker, self._speaker = self._speaker, None
        if speaker is not None:
            speaker.client.close()


def a_day(number: int, kind: type[Speaker]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    orders = orders_of(CHANNELS[kind.name], ORDERS_PER_CHANNEL, number * ORDERS_PER_CHANNEL).records
    return (orders[first : first + CHUNK] for first in range(0, ORDERS_PER_CHANNEL, CHUNK))


def leader_of(nodes: Sequence[BrokerProcess]) -> BrokerProcess:
    """Return the node that leads, once a node that runs knows of one."""
    deadline = time.monotonic() + LEADER_S_MAX
    with alive(nodes)[0].connect() as client:
        while (leader := client.access.cluster_status().leader) not in NODES:
            if time.monotonic() > deadline:
                raise DemoFailed(f"no node has led for {LEADER_S_MAX:g} s")
            time.sleep(0.1)
    return nodes[NODES.index(leader)]


def send_while_parts_fail(narrator: Narrator, kafka: KafkaCluster, nodes: Sequence[BrokerProcess]) -> list[Channel]:
    narrator.step(
        "A day of orders, and two failures", "Each part of a shop has its own protocol, on a node of its own."
    )
    channels = [Channel(number, kind, nodes, a_day(number, kind)) for number, kind in enumerate(SPEAKERS)]
    for channel in channels:
        channel.start()
    wait_until_acknowledged(channels, BROKER_KILLED_AT)
    kafka.brokers[0].kill()
    narrator.say(f"{acknowledged(channels):,} orders acknowledged: [red]a broker of Kafka killed (kill -9)[/red]")
    wait_until_acknowledged(channels, NODE_KILLED_AT)
    leader = leader_of(nodes)
    leader.kill9()
    narrator.say(
        f"{acknowledged(channels):,} orders acknowledged: [red]{leader.data_dir.name}, which leads, killed (kill -9)[/red]"
    )
    for channel in channels:
        channel.join()
        if channel.failure is not None:
            raise DemoFailed(channel.failure)
    narrator.table(
        "every order was acknowledged",
        ("channel", "protocol", "orders", "sent again", "longest wait in s"),
        (
            (channel.name, channel.kind.name, len(channel.acknowledged), len(channel.sent_again), channel.longest_s)
            for channel in channels
        ),
    )
    show_nodes(narrator, nodes)
    return channels


def acknowledged(channels: Sequence[Channel]) -> int:
    return sum(len(channel.acknowledged) for channel in channels)


def wait_until_acknowledged(channels: Sequence[Channel], share: float) -> None:
    while acknowledged(channels) < share * ORDERS_PER_CHANNEL * len(channels):
        if not any(channel.is_alive() for channel in channels):
            raise DemoFailed(next((each.failure for each in channels if each.failure), "nobody sends any more"))
        time.sleep(0.05)


def check_stored(narrator: Narrator, nodes: Sequence[BrokerProcess], channels: Sequence[Channel]) -> None:
    narrator.step("What is in the log", "Read from a node that is left.")
    stored = stored_values(alive(nodes)[0])
    wrong = what_is_wrong(stored, channels)
    if wrong:
        raise DemoFailed(wrong)
    twice = sum(count > 1 for count in stored.values())
    again = sum(len(channel.sent_again) for channel in channels)
    narrator.say(
        f"[green]all {acknowledged(channels):,} acknowledged orders are there, none lost[/green]; {twice:,} are there twice, all of "
        f"them among the {again:,} that were sent again"
    )


def stored_values(node: BrokerProcess) -> Counter[bytes]:
    with node.connect() as client:
        return Counter(record.value or b"" for record in client.records(TOPIC))


def what_is_wrong(stored: Counter[bytes], channels: Sequence[Channel]) -> str:
    """Empty if every acknowledged value is stored, and twice only if it was sent again."""
    expected = {value for channel in channels for value in channel.acknowledged}
    maybe_twice = set().union(*(channel.sent_again for channel in channels))
    lost = len(expected - stored.keys())
    unknown = len(stored.keys() - expected - maybe_twice)
    twice = sum(count > 1 and value not in maybe_twice for value, count in stored.items())
    if not (lost or unknown or twice):
        return ""
    return (
        f"{len(expected):,} orders were acknowledged; {lost} are lost, {twice} that were sent once are there twice, "
        f"and {unknown} were never sent"
    )


def read_with_spark(narrator: Narrator, nodes: Sequence[BrokerProcess], channels: Sequence[Channel]) -> None:
    narrator.step(
        "The same in Spark", "The topic is a table. Spark knows all nodes, too, and reads through one that is left."
    )
    import penstock.spark

    spark = penstock.spark.session()
    try:
        records = (
            spark.read.format("penstock")
            .option("penstock.bootstrap", ",".join(node.address for node in nodes))
            .option("subscribe", TOPIC)
            .load()
        )
        rows = records.select("value").distinct().count()
    finally:
        spark.stop()
    expected = acknowledged(channels)
    if rows != expected:
        raise DemoFailed(f"Spark finds {rows:,} different orders where {expected:,} were sent")
    narrator.say(f"[green]Spark finds {rows:,} different orders: all of them[/green]")


if __name__ == "__main__":
    main()

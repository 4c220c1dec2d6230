"""Two nodes on one Kafka: what is written over any protocol on one is read over any protocol on the other, and one takes the place of
the other."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import felix
import pytest

from bench.kafka import Kafka
from bench.processes import free_port
from penstock.clients.options import ClientOptions
from penstock.errors import ConnectionLost, EntryNotFound, PenstockError
from penstock.log.kafka.names import kafka_name
from penstock.protocols.blipmq.client import AsyncBlipMQClient, Message
from penstock.protocols.blipmq.codec import encode_publish
from penstock.protocols.blipmq.sync import BlipMQClient
from penstock.protocols.felix.client.client import AsyncFelixClient
from penstock.protocols.fujin.client.client import AsyncFujinClient
from penstock.testing import BrokerProcess
from tests.interop.protocols import SPEAKERS, GroupSpeaker, Published, Seen, Speaker
from tests.interop.test_deployed_blipmq import deployed, received
from tests.kafka import foreign
from tests.kafka.nodes import Certificates, NodeThread, node_process

PREFIX = "cluster."


@pytest.fixture(scope="module")
def nodes(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeThread]]:
    certificates = Certificates(tmp_path_factory.mktemp("nodes"))
    with ExitStack() as running:
        yield [
            running.enter_context(NodeThread(kafka, PREFIX, name, certificates, admin=True)) for name in ("one", "two")
        ]


@pytest.mark.parametrize("leader_writes", [True, False], ids=["leader writes", "leader reads"])
@pytest.mark.parametrize("reads", [pytest.param(speaker, id=speaker.name) for speaker in SPEAKERS])
def test_what_all_protocols_write_on_one_node_is_read_on_the_other(
    nodes: list[NodeThread], reads: type[Speaker], leader_writes: bool
) -> None:
    writes_on, reads_on = nodes if leader_writes else reversed(nodes)
    assert writes_on.leads is leader_writes
    topic = f"{'to' if leader_writes else 'from'}-{reads.name.replace('+', '-')}"
    writes_on.connect().create_topic(topic)
    with ExitStack() as clients:
        reader = clients.enter_context(closing(reads(reads_on, topic)))
        values = []
        for speaker in SPEAKERS:
            writer = clients.enter_context(closing(speaker(writes_on, topic)))
            values.append(f"over {writer.name}".encode())
            writer.publish([Published(None, values[-1])])
        seen: list[Seen] = []
        while len(seen) < len(values):  # a node shows what another has acknowledged within milliseconds
            found = reader.read(len(values))
            seen = found if isinstance(reader, GroupSpeaker) else [*seen, *found]
    assert [each.value for each in seen] == values


def test_a_client_finds_what_it_has_changed_on_the_node_that_passed_it_on(nodes: list[NodeThread]) -> None:
    client = nodes[1].connect()
    client.create_topic("state", partitions=2)
    with client.transaction() as transaction:
        transaction.send("state", b"a", partition=0)
        transaction.send("state", b"b", partition=1)
    assert [record.value for record in client.records("state")] == [b"a", b"b"]
    client.commit("state", "shop", 0, 1)
    assert client.committed("state", "shop", 0) == 1
    client.schemas.register("order", '{"type": "object"}')
    assert client.schemas.get("order", 1).version == 1
    client.access.create_user("ada", "a good password", ["consumer"])
    assert "ada" in [user.user for user in client.access.users()]
    status = client.access.cluster_status()
    assert (status.name, status.leader, [node[0] for node in status.nodes]) == ("kafka", "one", ["one", "two"])


def test_the_admin_address_of_a_node_that_follows_names_the_one_that_leads(nodes: list[NodeThread]) -> None:
    one, two = (node.addresses["admin"] for node in nodes)
    with urllib.request.urlopen(f"http://{two}/readyz") as ready:
        assert json.load(ready)["ready"]
    with urllib.request.urlopen(f"http://{two}/api/v1/topics") as topics:
        assert topics.url == f"http://{one}/api/v1/topics"


def use_from_outside(node: NodeThread, kafka: Kafka, topic: str, turn: int) -> None:
    """Clients that we did not write: felix-client, one that behaves as deployed ones of BlipMQ do, and librdkafka."""
    name = f"t1/{topic}"
    client = felix.Client(node.addresses["felix"], tenant_id="t1", token="", ca_file=str(node.certificate))
    with client.subscribe("t1", "default", topic) as subscription, deployed(node) as blipmq:
        polled = blipmq.subscribe(name)
        values = [b"felix %d" % turn, b"blipmq %d" % turn]
        client.publish("t1", "default", topic, values[0], ack="per_message")
        blipmq.send(encode_publish(9, 1, name, values[1]))
        events = [subscription.next_event(timeout=20) for _ in values]
        assert [event and event.payload for event in events] == values
        assert received(blipmq, polled, 2) == values
    theirs = [record.value for record in foreign.read_all(kafka, kafka_name(name, node.prefix))]
    assert theirs[-2:] == values


def test_clients_of_others_are_served_by_a_node_that_follows_and_then_leads(
    kafka: Kafka, prefix: str, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    with NodeThread(kafka, prefix, "one", certificates) as one, NodeThread(kafka, prefix, "two", certificates) as two:
        assert (one.leads, two.leads) == (True, False)
        one.connect().create_topic("t1/demo")
        use_from_outside(two, kafka, "demo", 1)
        one.stop()
        two.connect().create_topic("later")  # waits for the node that leads next
        assert two.leads
        use_from_outside(two, kafka, "demo", 2)


@pytest.fixture
def processes(kafka: Kafka, prefix: str, tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    with ExitStack() as running:
        yield [running.enter_context(node_process(tmp_path, kafka, prefix, name)) for name in ("one", "two")]


def test_a_node_takes_over_from_one_that_is_killed_and_from_one_that_is_frozen(processes: list[BrokerProcess]) -> None:
    one, two = processes
    client = two.connect()
    client.create_topic("orders")
    acknowledged: list[bytes] = []
    stop = threading.Event()

    def load() -> None:
        with two.connect() as sending:
            while not stop.is_set():
                value = b"%d" % len(acknowledged)
                sending.send("orders", value)
                acknowledged.append(value)

    sender = threading.Thread(target=load)
    sender.start()
    try:
        one.kill9()
        client.create_topic("after-the-kill")  # waits for the node that leads next
        assert client.access.cluster_status().leader == "two"
        one.start()
        other = one.connect()
        other.create_topic("passed-on")
    finally:
        stop.set()
        sender.join()
    assert [record.value for record in other.records("orders")] == acknowledged
    two.pause()
    other.create_topic("after-the-freeze")
    assert other.access.cluster_status().leader == "one"
    two.resume()
    while "server_restarted" not in two.output:
        assert other.access.cluster_status().leader == "one"
    with two.connect() as woken:
        woken.create_topic("after-all")
        assert woken.access.cluster_status().leader == "one"
        names = {"orders", "after-the-kill", "passed-on", "after-the-freeze", "after-all"}
        assert set(woken.topics()) == names


def next_delivery(client: BlipMQClient, subscription: int) -> Message:
    while True:
        with suppress(ConnectionLost):  # the node that leads was lost
            for message in client.poll(subscription):
                return message


def test_a_node_that_wakes_up_confirms_no_acknowledgement_of_what_its_successor_delivers(
    kafka: Kafka, prefix: str, tmp_path: Path
) -> None:
    # By the clock of the node that is frozen, the acknowledgement is in time.
    patient = "[subscriptions]\nbackoff_ms = 600_000"
    options = ClientOptions(request_timeout_s=60)
    with ExitStack() as running:
        nodes = [node_process(tmp_path, kafka, prefix, name, {"blipmq": 0}, patient) for name in ("one", "two")]
        urls = [f"blipmq://dev-key@{running.enter_context(node).addresses['blipmq']}" for node in nodes]
        first, second = (running.enter_context(BlipMQClient(url, options=options)) for url in urls)
        subscription = first.subscribe("orders")
        first.send_many("orders", [b"confirmed", b"too late"])
        messages = first.poll(subscription, 2)
        tags = [message.tag or 0 for message in messages]
        first.ack(subscription, tags[0])
        nodes[0].pause()
        with ThreadPoolExecutor(1) as threads:
            acknowledging = threads.submit(first.ack, subscription, tags[1])
            again = next_delivery(second, subscription)
            nodes[0].resume()
            with pytest.raises(PenstockError):
                acknowledging.result()
        assert again == messages[1]
        second.ack(subscription, tags[1])
        assert second.poll(subscription) == []


async def test_no_acknowledged_record_and_no_delivery_is_lost_with_the_node_that_leads(
    kafka: Kafka, prefix: str, tmp_path: Path
) -> None:
    """Clients of the other node publish over three protocols and read a subscription, while it is killed and for a while after."""
    ports = {protocol: free_port() for protocol in ("blipmq", "fujin", "felix")}
    acknowledged: list[bytes] = []
    seen: set[bytes] = set()
    stopped = asyncio.Event()

    async def publish(name: str, send: Callable[[bytes], Awaitable[object]]) -> None:
        while not stopped.is_set():
            value = b"%s %d" % (name.encode(), len(acknowledged))
            await send(value)
            acknowledged.append(value)

    async def read(client: AsyncBlipMQClient, subscription: int) -> None:
        while not (stopped.is_set() and seen.issuperset(acknowledged)):
            with suppress(ConnectionLost, EntryNotFound):  # what was polled or acknowledged then comes again
                messages = await client.poll(subscription, 64)
                seen.update(message.value for message in messages)
                await client.ack(subscription, *(message.tag for message in messages if message.tag is not None))

    with (
        node_process(tmp_path, kafka, prefix, "one", dict.fromkeys(ports, 0)) as one,
        node_process(tmp_path, kafka, prefix, "two", ports) as two,
    ):
        two.connect().create_topic("t1/orders")
        trust = f"?ca={tmp_path / 'two' / 'dev-certificate.pem'}"
        async with (
            AsyncBlipMQClient(f"blipmq://dev-key@127.0.0.1:{ports['blipmq']}") as reader,
            AsyncBlipMQClient(f"blipmq://dev-key@127.0.0.1:{ports['blipmq']}") as blipmq,
            AsyncFujinClient(f"fujin://127.0.0.1:{ports['fujin']}{trust}") as fujin,
            AsyncFelixClient(f"felix://t1:dev-key@127.0.0.1:{ports['felix']}{trust}") as felix_client,
        ):
            subscription = await reader.subscribe("t1/orders")
            tasks = [
                asyncio.create_task(publish("blipmq", partial(blipmq.send, "t1/orders"))),
                asyncio.create_task(publish("fujin", partial(fujin.send, "t1/orders"))),
                asyncio.create_task(publish("felix", partial(felix_client.send, "orders"))),
                asyncio.create_task(read(reader, subscription)),
            ]
            while len(seen) < 100:
                await asyncio.sleep(0)
            one.kill9()
            before = len(acknowledged)
            client = await asyncio.to_thread(two.connect)
            await asyncio.to_thread(client.create_topic, "after-the-kill")  # waits for the node that leads next
            assert len(acknowledged) > before, "who only publishes does not wait"
            stopped.set()
            await asyncio.gather(*tasks)
        stored = [record.value for record in two.connect().records("t1/orders")]
    assert sorted(value or b"" for value in stored) == sorted(acknowledged)

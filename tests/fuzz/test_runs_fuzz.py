"""Requests that are sent together fare as if each had been sent alone, over every protocol and whatever is wrong with some of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.limits import BrokerLimits
from penstock.broker.schemas import validation
from penstock.log.api import TopicConfig
from penstock.net.session import SessionFactory
from penstock.protocols.blipmq import codec as blipmq_codec
from penstock.protocols.blipmq.session import BlipMQ
from penstock.protocols.felix.codec.frames import encode_message
from penstock.protocols.felix.codec.messages import PublishBatch
from penstock.protocols.felix.session import Felix
from penstock.protocols.flymq.codec.record_layouts import encode_produce
from penstock.protocols.flymq.operations.transactions import encode_txn_produces
from penstock.protocols.flymq.server.dispatch import Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.fujin.session import Fujin
from penstock.protocols.rustlog.codec import binary_client, json_client
from penstock.protocols.rustlog.session import RustLog
from tests.broker.producing import read_values
from tests.fuzz.loop_cost import Peer, one_stream
from tests.fuzz.stage import Stage, a_stage
from tests.protocols.fujin import requests as fujin_requests

ANSWERED_S_MAX = 50.0
API_KEY = "dev-key"
LIMITS = BrokerLimits(record_bytes_max=100, key_bytes_max=50, transaction_records_max=6)
SCHEMA = '{"type": "integer"}'
REQUESTS_MAX = 10

VALUES = st.sampled_from([b"1", b"22", b"333", b"4444", b"5" * 101, b"not a number"])
BATCHES = st.lists(VALUES, min_size=1, max_size=3)
KEYS = st.sampled_from([b"k", b"key", None, b"k" * 51])
PARTITIONS = st.sampled_from([-1, -1, 0, 1, 7])


class Settings(NamedTuple):
    """What a topic asks of its records, and whether a worker checks them."""

    config: TopicConfig
    schema: bool
    in_worker: bool


def topics(partitions: Sequence[int]) -> st.SearchStrategy[Settings]:
    return st.builds(
        Settings,
        st.builds(TopicConfig, partitions=st.sampled_from(partitions), cleanup=st.sampled_from(["delete", "compact"])),
        st.booleans(),
        # A check in the worker takes a thousand times as long.
        st.integers(0, 7).map(lambda number: number == 0),
    )


def many(requests: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(requests, min_size=2, max_size=REQUESTS_MAX)


class RecordingPeer(Peer):
    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    def send(self, data: bytes, *, end: bool = False) -> None:
        super().send(data, end=end)
        self.sent += data


numbers = count()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with a_stage(tmp_path_factory.mktemp("runs") / "data", LIMITS) as stage:
        stage.run(stage.broker.schemas.register(ANONYMOUS, "numbers", "json", SCHEMA))
        yield stage


async def hear(peer: RecordingPeer) -> None:
    """Wait until all is answered."""
    async with asyncio.timeout(ANSWERED_S_MAX):
        while peer.held_bytes:
            await peer.answered.wait()
        for _ in range(5):  # what was answered last leaves with the turn
            await asyncio.sleep(0)


class Outcome(NamedTuple):
    replies: bytes
    stored: list[list[bytes | None]]


def outcome(
    stage: Stage,
    listener: SessionFactory,
    topic: Settings,
    name: str,
    greeting: bytes,
    reads: Callable[[str, str], list[bytes]],
) -> Outcome:
    """Send each of `reads`, which are made of the names of a topic and a transaction, when the one before is answered."""
    broker = stage.broker

    async def converse() -> Outcome:
        await broker.topics.create(ANONYMOUS, name, topic.config, "numbers" if topic.schema else None)
        transaction = broker.transactions.begin(ANONYMOUS)
        peer = RecordingPeer()
        session = listener(peer)
        session.receive(greeting)
        await hear(peer)
        for read in reads(name, transaction):
            session.receive(read)
            await hear(peer)
        session.closed()
        await broker.transactions.commit(ANONYMOUS, transaction)
        partitions = range(topic.config.partitions)
        stored = [await read_values(broker.records.partition(ANONYMOUS, name, index)) for index in partitions]
        await broker.topics.delete(ANONYMOUS, name)
        return Outcome(re.sub(rb"txn-[0-9a-f]{32}", b"txn", peer.sent).replace(name.encode(), b"topic"), stored)

    return stage.run(converse())


def check(
    stage: Stage,
    listener: SessionFactory,
    topic: Settings,
    encode: Callable[[str, str], list[bytes]],
    greeting: bytes = b"",
) -> None:
    number = next(numbers)
    on_loop_cost_max = validation.ON_LOOP_COST_MAX
    if topic.in_worker:
        validation.ON_LOOP_COST_MAX = -1  # type: ignore[misc]
    try:
        alone = outcome(stage, listener, topic, f"alone{number:06}", greeting, encode)
        together = outcome(
            stage,
            listener,
            topic,
            f"every{number:06}",
            greeting,
            lambda name, transaction: [b"".join(encode(name, transaction))],
        )
    finally:
        validation.ON_LOOP_COST_MAX = on_loop_cost_max  # type: ignore[misc]
    assert together == alone


@settings(max_examples=60)
@given(topics([1, 3]), many(st.tuples(VALUES, KEYS, PARTITIONS)))
def test_over_flymq(stage: Stage, topic: Settings, records: list[tuple[bytes, bytes | None, int]]) -> None:
    flymq = FlyMQ(stage.broker, clock=stage.clock, node=Node("node-1", lambda: "192.0.2.9:9092"))
    check(stage, flymq, topic, lambda name, _: [encode_produce(name, *record) for record in records])
    assert flymq.stats.internal_errors == 0


@settings(max_examples=60)
@given(topics([1, 3]), many(st.tuples(VALUES, KEYS, PARTITIONS)))
def test_over_flymq_in_a_transaction(
    stage: Stage, topic: Settings, records: list[tuple[bytes, bytes | None, int]]
) -> None:
    flymq = FlyMQ(stage.broker, clock=stage.clock, node=Node("node-1", lambda: "192.0.2.9:9092"))

    def encode(name: str, transaction: str) -> list[bytes]:
        return [
            encode_txn_produces(transaction, name, [value], None if key is None else [key], partition)
            for value, key, partition in records
        ]

    check(stage, flymq, topic, encode)
    assert flymq.stats.internal_errors == 0


@settings(max_examples=60)
@given(topics([1, 3]), st.integers(0, 1), many(VALUES))
def test_over_blipmq(stage: Stage, topic: Settings, qos: int, values: list[bytes]) -> None:
    blipmq = BlipMQ(stage.broker, clock=stage.clock, api_keys=[API_KEY])
    login = blipmq_codec.encode_hello(1, 1) + blipmq_codec.encode_auth(2, API_KEY)

    def encode(name: str, _: str) -> list[bytes]:
        publishes = [blipmq_codec.encode_publish(10 + row, qos, name, value) for row, value in enumerate(values)]
        # A PONG behind publishes of QoS 0 that a worker checks does not wait for them.
        return publishes if topic.in_worker else [*publishes, blipmq_codec.encode_ping(9)]

    check(stage, blipmq, topic, encode, login)
    assert blipmq.stats.internal_errors == 0


@settings(max_examples=60)
@given(
    topics([1, 3]),
    many(st.tuples(st.sampled_from([binary_client, json_client]), st.sampled_from([0, 0, 0, 1, 7]), BATCHES)),
)
def test_over_rustlog(stage: Stage, topic: Settings, batches: list[tuple[Any, int, list[bytes]]]) -> None:
    rustlog = RustLog(stage.broker, clock=stage.clock)

    def encode(name: str, _: str) -> list[bytes]:
        return [client.encode_produce(name, partition, values) for client, partition, values in batches]

    check(stage, rustlog, topic, encode)
    assert rustlog.stats.internal_errors == 0


@settings(max_examples=60)
@given(topics([1, 3]), many(VALUES), st.booleans())
def test_over_fujin(stage: Stage, topic: Settings, values: list[bytes], in_transaction: bool) -> None:
    fujin = Fujin(stage.broker)

    def encode(name: str, _: str) -> list[bytes]:
        writes = [fujin_requests.write(10 + row, name.encode(), value) for row, value in enumerate(values)]
        return [fujin_requests.begin(1), *writes, fujin_requests.commit(2)] if in_transaction else writes

    check(stage, one_stream(fujin), topic, encode, fujin_requests.CONNECT_WRITER)
    assert fujin.stats.internal_errors == 0


@settings(max_examples=60)
@given(topics([1]), many(st.tuples(BATCHES, KEYS)))
def test_over_felix(stage: Stage, topic: Settings, batches: list[tuple[list[bytes], bytes | None]]) -> None:
    """One partition only: batches without a key that come together go to one partition, and the next run to the next."""
    felix = Felix(stage.broker, clock=stage.clock)

    def encode(name: str, _: str) -> list[bytes]:
        requests = []
        for number, (payloads, key) in enumerate(batches):
            where: Any = {"tenant_id": "default", "namespace": "default", "stream": name}
            keyed: Any = {} if key is None else {"key": key}
            requests.append(encode_message(PublishBatch(**where, **keyed, payloads=payloads, request_id=number)))
        return requests

    check(stage, one_stream(felix), topic, encode)
    assert felix.stats.internal_errors == 0

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.cluster import ClusterStatus
from penstock.broker.limits import BrokerLimits
from penstock.errors import NotSupported, OutcomeUnknown, PenstockError
from penstock.log.api import TopicConfig
from penstock.protocols.flymq.operations.operation import encode_request
from penstock.protocols.flymq.operations.topics import ClusterMetadata
from penstock.protocols.flymq.server.dispatch import Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import produce
from tests.engines import make_engine
from tests.open_access import OpenAccess
from tests.protocols.flymq.conversation import Conversation


@pytest.mark.embedded
async def test_the_status_counts_topics_of_users_and_says_what_takes_no_writes(
    tmp_path: Path, clock: ManualClock
) -> None:
    disk = FaultyDisk()
    engine = make_engine(tmp_path / "data", clock=clock, disk=disk)
    await engine.start()
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=3))
    await broker.topics.create(ANONYMOUS, "other", TopicConfig())
    await broker.audit.written()
    assert broker.cluster.status(ANONYMOUS) == ClusterStatus("standalone", (), 2, 4, 0)
    disk.fail_next_fsync()
    [placement] = await produce(broker, "orders", [b"x"], partition=1)
    assert isinstance(placement.result, OutcomeUnknown)
    assert broker.cluster.status(ANONYMOUS).partitions_failed == 1
    talk = Conversation(FlyMQ(broker, clock=clock, node=Node("node-1", lambda: "192.0.2.9:9092")))
    reply = await talk.ask(encode_request(ClusterMetadata("orders")))
    assert (reply.payload.count(b"online"), reply.payload.count(b"offline")) == (2, 1)
    await broker.close()
    try:
        await engine.close()
    except PenstockError:
        pass  # a log whose disk failed closes with that error


@pytest.mark.embedded
async def test_one_node_stays_one_node(broker: Broker) -> None:
    with pytest.raises(NotSupported, match="the way to more nodes is the Kafka engine"):
        broker.cluster.join(ANONYMOUS, "192.0.2.10:9093")
    with pytest.raises(NotSupported, match="the way to more nodes is the Kafka engine"):
        broker.cluster.leave(ANONYMOUS)

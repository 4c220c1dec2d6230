"""`penstock cluster` against a real broker: one node. Several are in tests/kafka."""

from __future__ import annotations

import json

from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def test_a_broker_of_its_own_is_the_only_node_and_leads(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders", 3)
    shown = run("cluster")
    assert shown.code == 0
    heading, node = shown.text.splitlines()
    assert heading.split() == ["node", "address", "state", "role", "shards"]
    assert node.split()[1] == broker.address
    assert node.split()[3:] == ["leads", "all"]
    document = json.loads(run("cluster", "--json").out)
    assert (document["topics"], document["partitions"], document["partitions_failed"]) == (1, 3, 0)
    assert [each["leads"] for each in document["nodes"]] == [True]

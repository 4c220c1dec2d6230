from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import ConnectionLost
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess
from penstock.testing.crashing import CRASHED
from penstock.testing.diskfaults import CountOperations, PowerCut


def test_a_broker_counts_the_operations_of_its_disk(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker.start(disk=CountOperations(str(tmp_path / "counts"))).connect() as client:
        client.send("orders", b"one")
    assert broker.terminate() == 0
    counts = json.loads((tmp_path / "counts").read_bytes())
    assert counts["other create marker"] == 1
    assert counts["commit flush segment"] >= 1
    broker.close()


def send_until_it_dies(client: FlyMQClient) -> int:
    """Send numbers, one after another; returns how many were acknowledged."""
    for number in itertools.count():
        try:
            client.send("orders", b"%d" % number)
        except ConnectionLost:
            return number
    raise AssertionError


@pytest.mark.timeout(120)
def test_a_power_cut_ends_the_process_and_leaves_what_a_machine_would_find(tmp_path: Path) -> None:
    image = tmp_path / "image"
    broker = BrokerProcess(tmp_path / "data")
    broker.start(disk=PowerCut(cut_at=600, image=str(image), loss=0.99, seed=1))
    with broker.connect(ClientOptions(retry=NO_RETRY)) as client:
        sent = send_until_it_dies(client)
    assert broker.wait_exit() == CRASHED
    broker.close()
    with BrokerProcess(image) as recovered, recovered.connect() as client:
        found = [record.value for record in client.records("orders")]
    assert found[:sent] == [b"%d" % number for number in range(sent)]
    assert sent <= len(found) <= sent + 1

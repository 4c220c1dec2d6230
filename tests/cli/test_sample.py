"""What the admin address of a broker tells, and what else may answer there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.cli.sample import fetch
from penstock.errors import ProtocolViolation, Unreachable
from penstock.testing import RunningBroker

READY = '{"ready": true, "state": "ready"}'
BUILD = 'penstock_build_info{version="1"} 1\n'


def test_a_sample_has_listeners_topics_groups_and_disk() -> None:
    with RunningBroker(admin=True) as broker:
        client = broker.connect()
        client.create_topic("orders", 2)
        client.send_many("orders", [b"one", b"two", b"three"])
        client.commit("orders", "billing", 0, 1)
        client.send_later("orders", b"later", 60.0)
        sample = fetch(f"http://{broker.addresses['admin']}")
        assert (sample.ready, sample.state, sample.problems) == (True, "ready", [])
        assert sample.listeners["flymq"].address == broker.addresses["flymq"]
        assert sample.listeners["flymq"].connections == sample.connections == 1
        orders = sample.topics["orders"]
        assert (orders.partitions, orders.records, orders.end_offsets) == (2, 3, 3)
        assert [(each.group, each.topic, each.lag) for each in sample.groups] == [("billing", "orders", 2)]
        assert not any(name.startswith("__") for name in sample.topics)
        assert sample.delayed_pending == 1
        assert sample.disk_size_bytes is not None
        assert sample.disk_free_bytes is not None
        assert 0 < sample.disk_free_bytes < sample.disk_size_bytes
        assert sample.version
        assert sample.memory_bytes > 0


def test_nobody_there_is_said_with_what_to_do() -> None:
    with pytest.raises(
        Unreachable, match=r"cannot reach the admin address http://127\.0\.0\.1:1 \(Connection refused\)"
    ):
        fetch("http://127.0.0.1:1")


@contextmanager
def answering(*bodies: str, status: str = "200 OK") -> Iterator[str]:
    """A server that gives one answer a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for body in bodies:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(4096)
                    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
                    connection.sendall(head.encode() + body.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("bodies", [["hello"], ["[]"], [READY, "no metrics here {{{\n"], [READY, "other 1\n"]])
def test_something_else_that_answers_is_not_taken_for_a_broker(bodies: list[str]) -> None:
    with answering(*bodies) as url, pytest.raises(ProtocolViolation, match="--admin"):
        fetch(url)


def test_a_page_that_is_not_there_is_not_taken_for_a_broker() -> None:
    with answering("", status="404 Not Found") as url, pytest.raises(ProtocolViolation, match="404"):
        fetch(url)


def test_what_is_wrong_is_told_in_sentences() -> None:
    readiness = (
        '{"ready": false, "state": "ready", "failed": 3, '
        '"failed_partitions": [{"topic": "t", "partition": 1, "failure": "disk"}], '
        '"failing_tasks": [{"task": "sweep", "failure": "OSError: x"}]}'
    )
    with answering(readiness, BUILD) as url:
        assert fetch(url).problems == [
            "partition 1 of topic t refuses writes: disk",
            "2 more partitions refuse writes",
            "background task sweep fails: OSError: x",
        ]
    with answering('{"ready": false, "state": "stopping"}', BUILD) as url:
        assert fetch(url).problems == ["the broker is stopping"]


def test_lag_of_a_group_adds_up_and_names_are_taken_as_they_are() -> None:
    metrics = BUILD + "".join(
        f'penstock_group_lag_records{{group="a \\"b\\"",topic="t\\n",partition="{index}"}} 5\n'
        f'penstock_group_lag_seconds{{group="a \\"b\\"",topic="t\\n",partition="{index}"}} {index}\n'
        for index in range(3)
    )
    with answering(READY, metrics) as url:
        [group] = fetch(url).groups
    assert (group.group, group.topic, group.lag, group.seconds) == ('a "b"', "t\n", 15, 2.0)

"""The clients that tasks of Spark share in one process."""

from __future__ import annotations

import socket
import threading

import pytest

from penstock.errors import Unreachable
from penstock.spark.connection import ConnectionSettings, pooled_client
from penstock.testing import RunningBroker
from tests.spark.pooled_clients import close_pooled_clients


def test_a_host_that_does_not_answer_holds_up_no_task_of_another_broker() -> None:
    refused: list[str] = []

    def task(settings: ConnectionSettings) -> None:
        try:
            pooled_client(settings)
        except Unreachable as error:
            refused.append(str(error))

    with RunningBroker() as broker, socket.create_server(("127.0.0.1", 0)) as silent:
        of_silent = ConnectionSettings(f"127.0.0.1:{silent.getsockname()[1]}", user="ann", password="pw")
        tasks = [threading.Thread(target=task, args=(of_silent,)) for _ in range(2)]
        for each in tasks:
            each.start()
        accepted, _ = silent.accept()
        try:
            client = pooled_client(ConnectionSettings(broker.address))
            assert client is pooled_client(ConnectionSettings(broker.address))
            assert client.topics() == []
            assert not refused
        finally:
            accepted.close()
            silent.accept()[0].close()
            for each in tasks:
                each.join()
            close_pooled_clients()
        assert len(refused) == 2


@pytest.mark.parametrize("in_order", [False, True])
def test_a_client_takes_hosts_in_the_order_that_was_asked_for(in_order: bool) -> None:
    address = ",".join(f"host{number}" for number in range(8))
    url = ConnectionSettings(address, in_order=in_order).url
    assert url == f"flymq://{address}{'?hosts=in-order' if in_order else ''}"

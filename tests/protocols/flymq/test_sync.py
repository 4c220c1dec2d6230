from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import trustme

import penstock
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.clients.url import client_tls
from penstock.errors import InvalidRequest, TopicNotFound, Unreachable
from penstock.testing import RunningBroker


def test_a_program_without_a_loop_can_do_everything(penstock_broker: RunningBroker) -> None:
    with penstock.connect(penstock_broker.url) as client:
        client.create_topic("orders", 2)
        assert client.send("orders", b"one", key=b"k").offset == 0
        assert [each.offset for each in client.send_many("orders", [b"two", b"three"], partition=1)] != []
        assert sorted(record.value for record in client.records("orders")) == [b"one", b"three", b"two"]
        assert sum(map(len, client.batches("orders"))) == 3
        assert client.fetch("orders", 1, 0).next_offset == client.describe_topic("orders").partitions[1].next_offset
        assert client.topics() == ["orders"]
        assert client.subscribe("orders", "g", 1) == 0
        client.commit("orders", "g", 1, 1)
        assert client.committed("orders", "g", 1) == 1
        assert client.reset("orders", "g", 1, "earliest") == 0
        assert client.seek_to_time("orders", None, 1, 0) == 0
        assert client.lag("orders", "g", 1).committed == 0
        assert [each.group for each in client.groups()] == ["g"]
        assert client.describe_group("g", "orders") == client.describe_group("g")
        client.delete_group("g")
        assert client.ping() > 0
        client.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            client.describe_topic("orders")
        assert str(client.address) == penstock_broker.url


def test_an_iteration_that_is_left_early_leaves_nothing_behind(penstock_broker: RunningBroker) -> None:
    with penstock.connect(penstock_broker.url) as client:
        client.send_many("orders", [b"%d" % number for number in range(10)])
        assert [record.offset for record in islice(client.records("orders", follow=True), 3)] == [0, 1, 2]
        unfinished = client.records("orders", follow=True)
        assert next(unfinished).offset == 0


def test_an_interrupt_ends_a_follower_and_leaves_the_client_usable(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send("orders", b"one")
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    interrupt = threading.Timer(0.05, signal.pthread_kill, (main_thread, signal.SIGINT))
    records = client.records("orders", follow=True)
    assert next(records).value == b"one"
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        next(records)
    interrupt.join()
    assert client.topics() == ["orders"]


def test_threads_may_share_a_client(penstock_broker: RunningBroker) -> None:
    with penstock.connect(penstock_broker.url) as client:
        offsets: list[int] = []

        def produce() -> None:
            offsets.extend(client.send("orders", b"x").offset for _ in range(20))

        threads = [threading.Thread(target=produce) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offsets) == list(range(100))


def test_a_closed_client_says_so(penstock_broker: RunningBroker) -> None:
    client = penstock.connect(penstock_broker.url)
    client.close()
    client.close()
    with pytest.raises(InvalidRequest, match="closed"):
        client.topics()


def test_an_address_where_nothing_listens_is_told_at_once(penstock_broker: RunningBroker) -> None:
    penstock_broker.stop()
    before = set(threading.enumerate())
    with pytest.raises(Unreachable, match=r"nothing listens there; is the broker running\?"):
        penstock.connect(f"flymq://{penstock_broker._binds['flymq']}")
    assert set(threading.enumerate()) <= before


def test_a_client_reconnects_after_a_restart(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send("orders", b"one")
    penstock_broker.restart()
    assert client.topics() == ["orders"]
    assert client.send("orders", b"two").offset == 1


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (
            "kafka://127.0.0.1",
            r"no client for 'kafka://'; supported are flymq://, flymqs://, blipmq://",
        ),
        ("127.0.0.1:9092", r"no client for '127.0.0.1:9092'"),
    ],
)
async def test_schemes_without_a_client_are_refused_with_those_that_have_one(url: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        penstock.connect(url)
    with pytest.raises(InvalidRequest, match=reason):
        await penstock.connect_async(url)


def test_a_tls_listener_is_verified(penstock_broker_factory: Callable[..., RunningBroker], tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    listener = {"bind": "127.0.0.1:0", "tls": {"cert": cert, "key": key}}
    broker = penstock_broker_factory(listeners={"flymq": listener})
    with penstock.connect(f"flymqs://{broker.address}?ca={ca}") as client:
        assert client.send("orders", b"one").offset == 0
    with penstock.connect(f"flymq://{broker.address}", tls=client_tls(ca=str(ca))) as client:
        assert client.topics() == ["orders"]
    with pytest.raises(Unreachable, match=r"its certificate is not trusted .* \?ca=FILE"):
        penstock.connect(f"flymqs://{broker.address}")
    with pytest.raises(Unreachable):
        penstock.connect(f"flymqs://{penstock_broker_factory().address}?ca={ca}", options=ClientOptions(retry=NO_RETRY))

from __future__ import annotations

import errno
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock.clock import SystemClock
from penstock.errors import (
    ConnectionLost,
    InvalidRequest,
    NoSpace,
    NotWritten,
    OutcomeUnknown,
    PenstockError,
    Unreachable,
)
from penstock.testing import ManualClock, RunningBroker
from penstock.testing.clock import START_MS


def values(broker: RunningBroker, topic: str = "orders") -> list[bytes]:
    return [record.value or b"" for record in broker.connect().records(topic)]


def test_the_fixture_is_a_real_broker(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send("orders", b"one")
    assert values(penstock_broker) == [b"one"]
    assert penstock_broker.url == f"flymq://{penstock_broker.address}"
    assert (penstock_broker.data_dir / "topics").is_dir()


def test_the_factory_takes_any_setting_and_makes_any_number(
    penstock_broker_factory: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    first = penstock_broker_factory(tmp_path / "data", topics=[{"name": "orders", "partitions": 3}])
    second = penstock_broker_factory(durability="none")
    assert len(first.connect().describe_topic("orders").partitions) == 3
    second.connect().send("orders", b"one")
    assert second.connect().describe_topic("orders").config["durability"] == "none"
    assert first.data_dir == tmp_path / "data"


def test_a_temporary_directory_is_removed_and_a_given_one_kept(tmp_path: Path) -> None:
    with RunningBroker() as temporary, RunningBroker(tmp_path / "kept") as kept:
        assert temporary.data_dir.is_dir()
    assert not temporary.data_dir.exists()
    assert kept.data_dir.is_dir()


def test_closing_ends_its_threads_and_clients() -> None:
    before = set(threading.enumerate())
    with RunningBroker() as broker:
        client = broker.connect()
        client.send("orders", b"one")
    assert set(threading.enumerate()) <= before
    with pytest.raises(InvalidRequest, match="closed"):
        client.topics()


def test_time_stands_still_until_it_is_moved() -> None:
    with RunningBroker(clock=ManualClock()) as broker:
        client = broker.connect()
        assert client.send("orders", b"one").timestamp_ms == START_MS
        broker.clock.advance(2.5)
        assert client.send("orders", b"two").timestamp_ms == START_MS + 2500


def test_a_clock_that_moves_by_itself_cannot_be_moved() -> None:
    with RunningBroker(clock=SystemClock()) as broker:
        broker.connect().send("orders", b"one")
        with pytest.raises(InvalidRequest, match="moves by itself"):
            broker.clock.advance(1)


def test_a_restart_keeps_records_address_and_clients(penstock_broker: RunningBroker) -> None:
    client, address = penstock_broker.connect(), penstock_broker.address
    client.send("orders", b"one")
    penstock_broker.restart()
    assert penstock_broker.address == address
    client.topics()
    client.send("orders", b"two")
    assert values(penstock_broker) == [b"one", b"two"]


def test_what_was_acknowledged_survives_a_kill(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send_many("orders", [b"%d" % number for number in range(100)])
    penstock_broker.kill()
    assert not (penstock_broker.data_dir / "clean-shutdown").exists()
    penstock_broker.start()
    assert values(penstock_broker) == [b"%d" % number for number in range(100)]


def test_a_kill_while_a_flush_waits_acknowledges_nothing(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send("orders", b"zero")
    with ThreadPoolExecutor() as pool, penstock_broker.disk.fsync_held() as waiting:
        sending = pool.submit(client.send, "orders", b"one")
        assert waiting.wait(5)
        assert not sending.done()
        penstock_broker.kill()
        assert isinstance(sending.exception(5), ConnectionLost | OutcomeUnknown)
    penstock_broker.start()
    assert values(penstock_broker)[0] == b"zero"


def test_a_broker_that_cannot_start_leaves_nothing_behind(penstock_broker: RunningBroker) -> None:
    before = set(threading.enumerate())
    second = RunningBroker(penstock_broker.data_dir)
    with pytest.raises(PenstockError, match="in use"):
        second.start()
    assert set(threading.enumerate()) <= before
    second.close()


def test_starting_twice_is_refused_and_stopping_twice_is_not(penstock_broker: RunningBroker) -> None:
    with pytest.raises(InvalidRequest, match="is running"):
        penstock_broker.start()
    penstock_broker.stop()
    penstock_broker.stop()
    with pytest.raises(Unreachable):
        penstock.connect(f"flymq://{penstock_broker._binds['flymq']}")


def test_the_admin_address_is_there_when_it_is_asked_for(penstock_broker_factory: Callable[..., RunningBroker]) -> None:
    broker = penstock_broker_factory(admin=True)
    with urllib.request.urlopen(f"http://{broker.server.addresses['admin']}/readyz", timeout=5) as reply:
        assert reply.status == 200
    assert "admin" not in penstock_broker_factory().server.addresses


# -- faults, as a producer sees them ---------------------------------------------------------------------------------------


def test_after_a_failed_flush_the_partition_refuses_writes_until_a_restart(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send("orders", b"zero")
    penstock_broker.disk.fail_next_fsync()
    with pytest.raises(OutcomeUnknown):
        client.send("orders", b"unknown")
    with pytest.raises(NotWritten):
        client.send("orders", b"refused")
    assert values(penstock_broker) == [b"zero"]
    penstock_broker.restart()
    client.topics()
    client.send("orders", b"after")
    assert values(penstock_broker)[0] == b"zero"
    assert values(penstock_broker)[-1] == b"after"


def test_a_failed_write_is_told_to_the_producer(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send("orders", b"zero")
    penstock_broker.disk.fail_next_write(errno.EIO)
    with pytest.raises(OutcomeUnknown):
        client.send("orders", b"one")


def test_a_full_disk_refuses_and_then_takes_the_same_record(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send("orders", b"zero")
    penstock_broker.disk.disk_full()
    with pytest.raises(NoSpace):
        client.send("orders", b"one")
    assert values(penstock_broker) == [b"zero"]
    penstock_broker.disk.disk_full_off()
    assert client.send("orders", b"one").offset == 1
    assert values(penstock_broker) == [b"zero", b"one"]


def test_short_writes_change_nothing(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    penstock_broker.disk.short_writes()
    client.send_many("orders", [b"%d" % number for number in range(1000)])
    penstock_broker.restart()
    assert values(penstock_broker) == [b"%d" % number for number in range(1000)]


def test_nothing_is_acknowledged_or_readable_before_it_is_flushed(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send("orders", b"zero")
    with ThreadPoolExecutor() as pool, penstock_broker.disk.fsync_held() as waiting:
        sending = pool.submit(client.send, "orders", b"one")
        assert waiting.wait(5)
        assert values(penstock_broker) == [b"zero"]
        assert not sending.done()
    assert sending.result(5).offset == 1
    assert values(penstock_broker) == [b"zero", b"one"]

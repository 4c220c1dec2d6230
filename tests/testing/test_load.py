from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import Unreachable
from penstock.testing import Journal, ProducerLoad, RunningBroker, check, read_everything


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal") as journal:
        yield journal


def verdict(broker: RunningBroker, journal: Journal) -> None:
    check(journal, {"flymq": read_everything(broker.url, ["orders"])}).raise_for_violations()


def test_a_load_that_is_stopped_leaves_nothing_unknown(penstock_broker: RunningBroker, journal: Journal) -> None:
    penstock_broker.connect().create_topic("orders", 3)
    with ProducerLoad(penstock_broker.url, journal, "orders", keys=5) as load:
        load.wait_until_acked(500)
    summary = load.stop()
    assert summary.acked == summary.sent >= 500
    report = check(journal, {"flymq": read_everything(penstock_broker.url, ["orders"])})
    report.raise_for_violations()
    assert report.read == report.acked == summary.acked


def test_a_load_ends_with_its_broker_and_the_check_holds(penstock_broker: RunningBroker, journal: Journal) -> None:
    with ProducerLoad(penstock_broker.url, journal, "orders", producers=3) as load:
        load.wait_until_acked(300)
        penstock_broker.kill()
        summary = load.wait_until_over()
    assert summary.acked >= 300
    penstock_broker.start()
    verdict(penstock_broker, journal)


def test_refused_records_are_noted_as_failed_and_the_load_continues(
    penstock_broker: RunningBroker, journal: Journal
) -> None:
    with ProducerLoad(penstock_broker.url, journal, "orders", producers=2, batch_records=10) as load:
        load.wait_until_acked(50)
        penstock_broker.disk.disk_full()
        load.wait_until_refused(50)
        penstock_broker.disk.disk_full_off()
        load.wait_until_acked(load.summary.acked + 50)
    verdict(penstock_broker, journal)


def test_records_around_a_failed_flush_are_unknown(penstock_broker: RunningBroker, journal: Journal) -> None:
    with ProducerLoad(penstock_broker.url, journal, "orders", producers=2, batch_records=10) as load:
        load.wait_until_acked(50)
        penstock_broker.disk.fail_next_fsync()
        load._wait(lambda: load.summary.unknown > 0, 30, "an unknown outcome")
    penstock_broker.restart()
    verdict(penstock_broker, journal)


def test_waiting_for_what_does_not_come_is_bounded(penstock_broker: RunningBroker, journal: Journal) -> None:
    with ProducerLoad(penstock_broker.url, journal, "orders", producers=1) as load:
        with pytest.raises(AssertionError, match=r"the end of all producers did not come within 0\.\d+ s"):
            load.wait_until_over(timeout_s=0.01)
        penstock_broker.kill()
        load.wait_until_over()
        with pytest.raises(AssertionError, match="the load ended after"):
            load.wait_until_acked(10**9)


def test_a_load_without_a_broker_does_not_start(penstock_broker: RunningBroker, journal: Journal) -> None:
    penstock_broker.stop()
    with pytest.raises(Unreachable):
        ProducerLoad(f"flymq://{penstock_broker._binds['flymq']}", journal, "orders").start()


def test_reading_a_topic_that_is_not_there_finds_nothing(penstock_broker: RunningBroker) -> None:
    assert list(read_everything(penstock_broker.url, ["orders"])) == []

"""One Spark session and one broker for all tests of a worker: another of either would cost more than most tests.

`spark` is the session, `broker` a broker process, `client` a client of it, `fresh_topic` makes names that no other test has;
`running` is a broker inside the test. A test that ends processes, or that stops the session, starts its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock.spark
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess, RunningBroker
from tests.spark.jvm import FAST_MASTER, FAST_SETTINGS
from tests.spark.pooled_clients import close_pooled_clients

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first query that runs Python starts a dozen processes; on a busy machine that alone can take most of a minute.
SPARK_TEST_S_MAX = 240


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.jvm)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_TEST_S_MAX))


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session writes what a history server would show."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, event_log: Path) -> Iterator[SparkSession]:
    """The session every test shares. What a test changes in its settings, it changes back."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    config = {
        **FAST_SETTINGS,
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(event_log),
    }
    session = penstock.spark.session("tests", FAST_MASTER, config)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def active_session(request: pytest.FixtureRequest) -> None:
    """Make the session the active one again: pipelines have sessions of their own, and which tests came before differs."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").createDataFrame([], "id int")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    """A broker of one test's own, for what can be asked without Spark."""
    with RunningBroker() as broker:
        yield broker
        close_pooled_clients()


@pytest.fixture(scope="session")
def client(broker: BrokerProcess) -> Iterator[FlyMQClient]:
    with broker.connect() as client:
        yield client


_numbers = itertools.count(1)


@pytest.fixture
def fresh_topic() -> Callable[..., str]:
    """Makes names of topics: `fresh_topic()`, or `fresh_topic("orders")` for one that says what it is for."""

    def name(purpose: str = "topic") -> str:
        return f"{purpose}-{next(_numbers)}"

    return name

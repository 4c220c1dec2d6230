"""What every test shares: the event loop it runs on, that it can be interrupted, what starts its broker processes, and that
Hypothesis finds the same each time.

`async def` tests and fixtures run through anyio's pytest plugin (`anyio_mode = "auto"` in pyproject.toml), on uvloop
because that is the loop of `penstock serve`. A test that waits for what never comes is cancelled and fails where it waits: pytest-timeout's
signal does not get through to a loop that has nothing to do.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from penstock.testing.forkserver import ForkServer
from penstock.testing.process import PRELOAD, BrokerProcess
from tests.distribution import ReplacingLoadFile, longest_first
from tests.engines import ENGINES, Choice, can_run, forget_logs, kafka_of_the_run

# A machine that is busy is no fault: nothing here may fail because it took long. The examples are the same in every run, so that a change
# is judged by what it changes; `make fuzz` looks for others.
settings.register_profile(
    "fuzzing", deadline=None, derandomize=False, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("steady", settings.get_profile("fuzzing"), derandomize=True)
settings.load_profile("steady")

# Assertions in what tests share (suites, conversations) explain themselves as those in test files do.
pytest.register_assert_rewrite(*(f"tests.{path.name}" for path in Path(__file__).parent.iterdir() if path.is_dir()))

# What a shell starts in the background ignores Ctrl-C, and so do its children; tests send that signal to both.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For what starts Spark: its Python processes start in half the time."""
    from penstock.spark.homes import link_home

    home = tmp_path_factory.mktemp("spark-home")
    link_home(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        yield


AFTERWARDS: Final = 1.5
"""How many times its timeout a cancelled test may take until its fixtures have ended."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine", choices=ENGINES, default=ENGINES[0], help="the engine of the tests of broker and sessions"
    )
    parser.addoption("--engine-seed", type=int, default=0, help="what a shared engine draws its chances from")


def pytest_configure(config: pytest.Config) -> None:
    Choice.engine = config.getoption("--engine")
    Choice.seed = config.getoption("--engine-seed")
    if Choice.engine == "kafka":
        if hasattr(config, "workerinput"):  # a worker of pytest-xdist
            Choice.kafka = config.workerinput["kafka"]
        else:
            parts = ExitStack()
            config.add_cleanup(parts.close)
            directory = parts.enter_context(TemporaryDirectory(prefix="penstock-kafka-", ignore_cleanup_errors=True))
            Choice.kafka = parts.enter_context(kafka_of_the_run(Path(directory) / "broker"))
    BrokerProcess.fork_server = ForkServer(PRELOAD)


def pytest_unconfigure() -> None:
    if BrokerProcess.fork_server is not None:
        BrokerProcess.fork_server.close()


def pytest_configure_node(node: Any) -> None:
    """What a worker of pytest-xdist is told."""
    node.workerinput["kafka"] = Choice.kafka


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ReplacingLoadFile | None:
    return ReplacingLoadFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_runtest_teardown() -> None:
    forget_logs()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not can_run(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if can_run(item)]
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        items[:] = longest_first(items, _limit_s)
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            limit_s = _limit_s(item)
            item.obj = _in_time(item.obj, limit_s)
            item.add_marker(pytest.mark.timeout(AFTERWARDS * limit_s), append=False)


def _limit_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker is not None else item.config.getini("timeout"))


def _in_time(
    test: Callable[..., Coroutine[Any, Any, None]], limit_s: float
) -> Callable[..., Coroutine[Any, Any, None]]:
    @functools.wraps(test)
    async def run(**given: Any) -> None:
        async with asyncio.timeout(limit_s):
            await test(**given)

    return run

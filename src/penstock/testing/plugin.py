"""The pytest plugin: `def test_orders(penstock_broker): ...`. Loaded by pytest itself wherever Penstock is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing.broker import RunningBroker


@pytest.fixture
def penstock_broker_factory() -> Iterator[Callable[..., RunningBroker]]:
    """Makes brokers: called with the arguments of `RunningBroker`, it returns a running one that the test's end closes."""
    from penstock.testing.broker import RunningBroker

    with ExitStack() as brokers:

        def start(*args: Any, **settings: Any) -> RunningBroker:
            return brokers.enter_context(RunningBroker(*args, **settings))

        yield start


@pytest.fixture
def penstock_broker(penstock_broker_factory: Callable[..., RunningBroker]) -> RunningBroker:
    """A running broker of the test's own, in a temporary directory; see `penstock.testing.RunningBroker`."""
    return penstock_broker_factory()

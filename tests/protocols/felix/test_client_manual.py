"""The manual's page on Felix: its programs run."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.testing import RunningBroker

PAGE = (Path(__file__).parents[3] / "docs" / "felix.md").read_text()


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(clock=SystemClock(), topics=[{"name": "orders"}, {"name": "t1/demo"}]) as broker:
        yield broker


def printed(program: str, broker: RunningBroker) -> list[str]:
    program = program.replace("127.0.0.1:5000", broker.addresses["felix"])
    program = program.replace("penstock-data/dev-certificate.pem", str(broker.certificate))
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(program, {})
    return output.getvalue().splitlines()


def test_its_program_runs(broker: RunningBroker) -> None:
    found = re.search(r"<<'END'\n(.*?)\nEND\n", PAGE, re.DOTALL)
    assert found is not None
    assert printed(found[1], broker) == ["0 b'one'", "1 b'two'", "2 b'three'", "b'hello'"]
    assert [record.key for record in broker.connect().records("orders")] == [None, b"customer-7", b"customer-7"]


def test_its_program_for_the_official_client_runs(broker: RunningBroker) -> None:
    found = re.search(r"```python\n(import felix\n.*?)```", PAGE, re.DOTALL)
    assert found is not None
    assert printed(found[1], broker) == ["b'hello'"]

"""The manual's page on Fujin: its program runs, and its settings are settings."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.config import FujinListener
from penstock.testing import RunningBroker

PAGE = (Path(__file__).parents[3] / "docs" / "fujin.md").read_text()


def test_its_program_runs() -> None:
    found = re.search(r"<<'END'\n(.*?)\nEND\n", PAGE, re.DOTALL)
    assert found is not None
    output = io.StringIO()
    with RunningBroker(clock=SystemClock()) as broker, contextlib.redirect_stdout(output):
        program = found[1].replace("127.0.0.1:4848", broker.addresses["fujin"])
        exec(program.replace("penstock-data/dev-certificate.pem", str(broker.certificate)), {})
        payments = [record.value for record in broker.connect().records("payments")]
    printed = [line for line in output.getvalue().splitlines() if line.startswith("b'")]
    assert printed == ["b'one'", "b'two'", "b'three'", "b'four'"]
    assert payments == [b"five"]


@pytest.mark.parametrize("settings", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_its_settings_are_settings(settings: str) -> None:
    FujinListener.model_validate(tomllib.loads(settings)["listeners"]["fujin"])

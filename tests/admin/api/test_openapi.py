"""The OpenAPI document: it describes every endpoint, and schemathesis finds no request that the broker answers otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.admin.api.openapi import document
from penstock.admin.api.table import ENDPOINTS, PREFIX
from penstock.errors import PenstockError
from tests.admin.api.asking import asking

EXAMPLES = os.environ.get("EXAMPLES", "4")
"""Requests for each endpoint; `make fuzz-api` asks for more."""
# Names have rules beyond what a schema can say, and on this machine nobody has to log in.
NOT_CHECKED = "positive_data_acceptance,ignored_auth"


def test_every_endpoint_is_described() -> None:
    described = document("1")
    operations = {(method.upper(), path) for path, each in described["paths"].items() for method in each}
    assert operations == {(each.method, PREFIX + each.path) for each in ENDPOINTS}
    assert len({each.name for each in ENDPOINTS}) == len(ENDPOINTS)
    assert all(each.summary.endswith(".") for each in ENDPOINTS)


def test_every_error_of_an_endpoint_is_described() -> None:
    for each in ENDPOINTS:
        assert all(issubclass(error, PenstockError) for error in each.errors)
    responses = document("1")["paths"][f"{PREFIX}/topics"]["post"]["responses"]
    assert {"201", "400", "401", "403", "404", "409", "429"} <= set(responses)


@pytest.mark.timeout(1800 if "EXAMPLES" in os.environ else 240)
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    with asking(durability="none") as ask:
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            *("run", f"http://{ask.broker.addresses['admin']}{PREFIX}/openapi.json"),
            *("--checks", "all", "--exclude-checks", NOT_CHECKED, "--phases", "fuzzing", "--seed", "1"),
            *("--max-examples", EXAMPLES, "--generation-database", "none", "--no-color"),
        ]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1700, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]

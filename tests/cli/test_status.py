"""A running broker on one screen, and the exit code of one that is not well."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.cli import sample as sampling
from penstock.cli.sample import Sample
from penstock.testing import RunningBroker
from tests.cli.conftest import Run


@pytest.fixture
def watched(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningBroker]:
    with RunningBroker(admin=True) as broker:
        monkeypatch.setenv("PENSTOCK_ADMIN_URL", f"http://{broker.addresses['admin']}")
        yield broker


def test_everything_is_on_one_screen(run: Run, watched: RunningBroker) -> None:
    client = watched.connect()
    client.create_topic("my orders", 2)
    client.send_many("my orders", [b"one", b"two"])
    client.commit("my orders", "billing", 0, 0)
    result = run("status")
    assert result.code == 0
    lines = result.text.splitlines()
    assert lines[0].startswith("penstock ")
    assert ": ready, up " in lines[0]
    assert "topics        1 (2 partitions, 2 records)" in lines
    assert any(line.startswith("disk ") and " free of " in line for line in lines)
    [flymq] = [line.split() for line in lines if line.startswith("flymq ")]
    assert flymq == ["flymq", watched.addresses["flymq"], "1", "2", "0"]
    assert lines[-1].split()[:4] == ["billing", "'my", "orders'", "2"]
    assert max(map(len, lines)) <= 80
    document = json.loads(run("status", "--json").out)
    assert (document["ready"], document["problems"], document["records"]) == (True, [], 2)
    listeners = {each["listener"]: each for each in document["listeners"]}
    assert [each["received_records"] for each in listeners.values()] == [2, 0, 0, 0, 0]
    assert listeners["flymq"]["received_bytes"] > 0
    assert document["groups"] == [
        {"group": "billing", "topic": "my orders", "lag": 2, "lag_s": document["groups"][0]["lag_s"]}
    ]


def test_a_broker_that_is_not_ready_ends_with_1_and_says_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ill = Sample(0.0, False, "ready", ["background task sweep fails: OSError: x\x1b"], "1")
    monkeypatch.setattr(sampling, "fetch", lambda url, access: ill)
    result = run("status")
    assert result.code == 1
    assert "not ready" in result.text
    assert "problem: background task sweep fails: OSError: x\\x1b\n" in result.text
    assert run("status", "--json").code == 1


def test_a_broker_that_is_not_there_ends_with_1(run: Run) -> None:
    result = run("status", "--admin", "127.0.0.1:1")
    assert (result.code, result.out) == (1, b"")
    assert "cannot reach the admin address http://127.0.0.1:1" in result.err


def test_the_admin_address_is_found_from_the_address_of_the_broker(run: Run) -> None:
    assert "http://127.0.0.2:9600" in run("status", "--server", "flymq://127.0.0.2:1").err
    assert "http://[::1]:9600" in run("status", "--server", "flymq://[::1]:1").err
    run("context", "create", "c", "--server", "127.0.0.3:1", "--admin", "127.0.0.4:2")
    assert "http://127.0.0.4:2" in run("status").err
    assert run("status", "--admin", "ftp://x").code == 2

"""`penstock cache` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.cache import felix_url
from penstock.testing import RunningBroker
from tests.cli.conftest import Run


@pytest.fixture
def felix_broker(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningBroker]:
    with RunningBroker() as broker:
        monkeypatch.setenv("PENSTOCK_SERVER", broker.felix_url)
        yield broker


def test_what_is_put_can_be_got(run: Run, felix_broker: RunningBroker) -> None:
    assert run("cache", "put", "greeting", "hello").text == "stored 5 bytes as greeting\n"
    assert run("cache", "get", "greeting").out == b"hello"
    assert json.loads(run("--json", "cache", "get", "greeting").out) == {"key": "greeting", "value": "hello"}


def test_what_is_deleted_is_gone(run: Run, felix_broker: RunningBroker) -> None:
    for key in ("greeting", "other"):
        run("cache", "put", key, "hello")
    assert run("cache", "delete", "greeting").text == "deleted 5 bytes of greeting\n"
    missing = run("cache", "delete", "greeting")
    assert missing.code == 1
    assert "there is no value for key greeting" in missing.err
    assert json.loads(run("--json", "cache", "delete", "greeting").out) == {"key": "greeting", "deleted": False}
    assert json.loads(run("--json", "cache", "delete", "other").out) == {"key": "other", "deleted": True}


def test_any_bytes_come_from_standard_input(run: Run, felix_broker: RunningBroker) -> None:
    data = bytes(range(256)) * 100
    put = json.loads(run("cache", "put", "blob", "-", "--ttl", "1h", "--json", input=data).out)
    assert put == {"key": "blob", "bytes": len(data), "ttl_ms": 3_600_000}
    assert run("cache", "get", "blob").out == data
    assert "value_base64" in json.loads(run("cache", "get", "blob", "--json").out)


def test_a_value_whose_time_is_over_is_not_there(run: Run, felix_broker: RunningBroker) -> None:
    run("cache", "put", "short", "v", "--ttl", "5m")
    felix_broker.clock.advance(301)
    missing = run("cache", "get", "short")
    assert (missing.code, missing.out) == (1, b"")
    assert "there is no value for key short" in missing.err
    assert json.loads(run("--json", "cache", "get", "short").out) == {"key": "short", "value": None}


def test_caches_and_namespaces_are_apart(run: Run, felix_broker: RunningBroker) -> None:
    run("cache", "put", "k", "here", "--cache", "prices", "--namespace", "shop")
    assert run("cache", "get", "k", "--cache", "prices", "--namespace", "shop").out == b"here"
    assert run("cache", "get", "k").code == 1


def test_a_time_that_is_none_is_refused(run: Run, felix_broker: RunningBroker) -> None:
    wrong = run("cache", "put", "k", "v", "--ttl", "soon")
    assert wrong.code == 2
    assert "--ttl" in wrong.err


def test_an_address_of_another_protocol_stands_for_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert felix_url("flymq://admin@127.0.0.1:9092") == "felix://127.0.0.1:5000"
    assert felix_url("flymq://[::1]:9092") == "felix://[::1]:5000"
    assert felix_url("flymq://admin@[::1]:9092,broker?ca=x.pem") == "felix://[::1]:5000,broker:5000"
    assert felix_url("felix://t1@broker:7000?ca=x.pem") == "felix://t1@broker:7000?ca=x.pem"


def test_a_broker_that_was_started_here_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock-data").mkdir()
    (tmp_path / "penstock-data" / "dev-certificate.pem").touch()
    assert felix_url("flymq://127.0.0.1:9092") == "felix://127.0.0.1:5000?ca=penstock-data/dev-certificate.pem"
    for scheme, port in (("flymq", 9092), ("felix", 5000)):
        ordered = felix_url(f"{scheme}://127.0.0.1:{port},127.0.0.2:{port}?hosts=in-order")
        own = "ca=penstock-data/dev-certificate.pem"
        assert ordered == f"felix://127.0.0.1:5000,127.0.0.2:5000?hosts=in-order&{own}"
    assert felix_url("felix://broker:5000") == "felix://broker:5000"
    assert felix_url("flymq://127.0.0.1,broker") == "felix://127.0.0.1:5000,broker:5000"


def test_a_broker_that_is_not_there_is_told(run: Run) -> None:
    missing = run("--server", "felix://127.0.0.1:1", "cache", "get", "k")
    assert missing.code == 1
    assert "--server felix://host:port" in missing.err

"""An address on the command line becomes settings of a pipeline; its password goes into none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidRequest
from penstock.spark.pipelines.broker_address import broker_address, with_broker
from penstock.spark.pipelines.model import Connection, Pipeline

FILE = {"name": "p", "topics": ["orders"], "directory": "d", "bronze": {}}


@pytest.mark.parametrize(
    ("url", "bootstrap", "connection", "password"),
    [
        ("broker:19092", "broker:19092", Connection(), None),
        ("flymq://broker", "broker:9092", Connection(), None),
        ("flymq://[::1]:9092?idempotent=false", "[::1]:9092", Connection(), None),
        ("flymq://al%40ce:s%3Acret@broker", "broker:9092", Connection(user="al@ce"), "s:cret"),
        ("flymqs://alice@broker", "broker:9092", Connection(user="alice", tls=True), None),
        (
            "flymqs://broker?ca=/etc/ca.pem&cert=/etc/c.pem&key=/etc/k.pem",
            "broker:9092",
            Connection(tls=True, ca="/etc/ca.pem", cert="/etc/c.pem", key="/etc/k.pem"),
            None,
        ),
    ],
)
def test_an_address_is_taken_apart(url: str, bootstrap: str, connection: Connection, password: str | None) -> None:
    assert broker_address(url) == (bootstrap, connection, password)


def test_files_are_taken_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ca.pem").symlink_to("..data/ca.pem")
    assert broker_address("flymqs://broker?ca=ca.pem").connection.ca == str(tmp_path / "ca.pem"), "links are kept"


def test_an_address_of_another_protocol_is_refused_without_its_password() -> None:
    with pytest.raises(InvalidRequest, match="is not the address of a FlyMQ listener") as refused:
        broker_address("kafka://alice:secret@broker:9092")
    assert "secret" not in str(refused.value)


def test_an_address_wins_over_the_file_and_leaves_what_it_does_not_say() -> None:
    connection = {"user": "carol", "tls": True, "ca": "/etc/ca.pem"}
    pipeline = Pipeline.model_validate({**FILE, "bootstrap": "one:9092", "connection": connection})
    moved = with_broker(pipeline, broker_address("two:9092"))
    assert (moved.bootstrap, moved.connection) == ("two:9092", pipeline.connection)
    other = with_broker(pipeline, broker_address("flymqs://bob:secret@two"))
    assert other.connection == Connection(user="bob", tls=True, ca="/etc/ca.pem")
    assert "secret" not in repr(other)

"""The settings of a session; `test_session_live.py` has one that runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest

import penstock.spark
from penstock.errors import ConfigError, JavaMissing
from penstock.spark.sessions import ON_THIS_MACHINE, build_session, is_local, settings
from penstock.spark.source import PenstockDataSource


def test_without_a_master_it_is_a_local_session_with_everything_that_helps_there() -> None:
    chosen = settings("app", processors=8)
    assert (chosen["spark.app.name"], chosen["spark.master"]) == ("app", "local[*]")
    assert chosen["spark.python.unix.domain.socket.enabled"] == "true"
    assert chosen["spark.sql.shuffle.partitions"] == "8"
    assert ON_THIS_MACHINE.items() <= chosen.items()


@pytest.mark.parametrize("given", [{"master": "spark://host:7077"}, {"config": {"spark.master": "yarn"}}])
def test_on_a_cluster_what_only_makes_sense_here_is_left_out(given: dict[str, Any]) -> None:
    chosen = settings("app", **given)
    assert not ON_THIS_MACHINE.keys() & chosen.keys()
    assert "spark.sql.shuffle.partitions" not in chosen
    assert "RocksDB" in chosen["spark.sql.streaming.stateStore.providerClass"]


def test_what_the_caller_gives_wins() -> None:
    chosen = settings(
        "app", "local[2]", {"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "3"}, processors=64
    )
    assert (chosen["spark.ui.enabled"], chosen["spark.sql.shuffle.partitions"]) == ("true", "3")
    assert settings("app", processors=64)["spark.sql.shuffle.partitions"] == "16"


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[2]", True), ("local[*]", True), ("spark://h:1", False), ("yarn", False)],
)
def test_local_masters_are_told_from_clusters(master: str, local: bool) -> None:
    assert is_local(master) is local


def test_without_spark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.sessions.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "penstock\[spark\]"'):
        penstock.spark.session()


def test_without_java_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.sessions.running_session", lambda: None)
    assert importlib.util.find_spec("pyspark") is not None
    with pytest.raises(JavaMissing):
        build_session(environment={"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(("master", "times"), [("local[2]", 0), ("spark://head:7077", 1), ("yarn", 1)])
def test_on_a_cluster_the_source_is_registered(master: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session = MagicMock()
    session.conf.get.side_effect = {"spark.master": master}.get
    monkeypatch.setattr("penstock.spark.sessions.running_session", lambda: session)
    assert build_session() is session
    assert session.dataSource.register.call_args_list == [call(PenstockDataSource)] * times

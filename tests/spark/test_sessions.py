"""The settings of a session; `test_session_live.py` has one that runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest

import penstock.spark
from penstock.errors import ConfigError, InvalidRequest, JavaMissing
from penstock.spark.options import PARALLELISM
from penstock.spark.session_options import session_defaults, with_session_defaults
from penstock.spark.sessions import (
    JAVA_OPTIONS,
    ON_THIS_MACHINE,
    VFORK,
    build_session,
    is_local,
    register_source,
    remote_server,
    settings,
)
from penstock.spark.source import PenstockDataSource


def builder_of_sessions() -> MagicMock:
    """Makes sessions without settings."""
    made = MagicMock()
    made.config.return_value.getOrCreate.return_value.conf.get.return_value = None
    return made


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


@pytest.mark.parametrize(
    ("master", "config", "before", "python"),
    [
        ("local[2]", {}, {}, sys.executable),
        ("local[2]", {}, {"PYSPARK_PYTHON": "/other"}, "/other"),
        ("spark://head:7077", {}, {}, None),
        ("spark://head:7077", {"spark.pyspark.python": "/all"}, {"PYSPARK_PYTHON": "/other"}, "/all"),
    ],
)
def test_the_interpreter_is_that_of_the_setting_else_of_the_environment(
    master: str,
    config: dict[str, str],
    before: dict[str, str],
    python: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark.sql import SparkSession

    environment = {**before, "PYSPARK_GATEWAY_PORT": "1"}
    monkeypatch.setattr("penstock.spark.sessions.running_session", lambda: None)
    monkeypatch.setattr(SparkSession, "builder", builder_of_sessions())
    build_session("app", master, config, environment=environment)
    assert environment.get("PYSPARK_PYTHON") == python


@pytest.mark.parametrize(
    ("master", "version", "before", "options"),
    [
        ("local[2]", 17, None, VFORK),
        ("local[2]", 21, "-Xss4m", f"{VFORK} -Xss4m"),
        ("local[2]", 25, "-Xss4m", "-Xss4m"),
        ("spark://head:7077", 17, None, None),
    ],
)
def test_a_virtual_machine_here_forks_cheaply_if_it_is_one_that_can(
    master: str,
    version: int,
    before: str | None,
    options: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark.sql import SparkSession

    builder = builder_of_sessions()
    seen: list[str | None] = []
    environment = {"SPARK_HOME": str(tmp_path)} | ({} if before is None else {JAVA_OPTIONS: before})
    made = builder.config.return_value.getOrCreate.return_value

    def start_java() -> Any:
        seen.append(environment.get(JAVA_OPTIONS))
        return made

    builder.config.return_value.getOrCreate.side_effect = start_java
    monkeypatch.setattr("penstock.spark.sessions.running_session", lambda: None)
    monkeypatch.setattr("penstock.spark.sessions.find_java", lambda environment: tmp_path)
    monkeypatch.setattr("penstock.spark.sessions.java_version", lambda home: version)
    monkeypatch.setattr(SparkSession, "builder", builder)
    build_session("app", master, environment=environment)
    assert seen == [options]
    assert environment.get(JAVA_OPTIONS) == before, "what else this process starts has the options that it would have"
    assert "spark.driver.extraJavaOptions" not in builder.config.call_args.kwargs["map"], "it is the user's"


@pytest.mark.parametrize(("master", "times"), [("local[2]", 0), ("spark://head:7077", 1), ("yarn", 1)])
def test_on_a_cluster_the_source_is_registered(master: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session = MagicMock()
    session.conf.get.side_effect = {"spark.master": master}.get
    session.sparkContext.defaultParallelism = 48
    monkeypatch.setattr("penstock.spark.sessions.running_session", lambda: session)
    assert build_session() is session
    made = [each.args[0] for each in session.dataSource.register.call_args_list]
    options = [each({"subscribe": "orders"}).options for each in made]
    assert options == [{"subscribe": "orders", PARALLELISM: "48"}] * times


def test_a_session_of_spark_connect_does_not_tell_how_many_tasks_run_at_once() -> None:
    session = MagicMock()
    del session.sparkContext
    session.conf.get.side_effect = {}.get
    register_source(session)
    assert session.dataSource.register.call_args_list == [call(PenstockDataSource)]


def test_a_session_that_names_its_broker_has_a_source_that_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"spark.master": "local[2]", "spark.penstock.bootstrap": "broker:1234", "spark.penstock.tls": "true"}
    session = MagicMock()
    session.conf.get.side_effect = conf.get
    monkeypatch.setattr("penstock.spark.sessions.running_session", lambda: session)
    build_session()
    [(registered,)] = [each.args for each in session.dataSource.register.call_args_list]
    assert registered.name() == "penstock"
    tasks = {PARALLELISM: str(session.sparkContext.defaultParallelism)}
    assert registered({}).options == {"penstock.bootstrap": "broker:1234", "penstock.tls": "true", **tasks}
    own = {"PENSTOCK.Bootstrap": "other:1", "subscribe": "orders"}
    assert registered(dict(own)).options == {"penstock.tls": "true", **tasks, **own}
    assert PenstockDataSource({}).options == {}, "other sessions know nothing of it"


def test_a_password_stays_in_the_process_that_registers_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"spark.penstock.user": "ann", "spark.penstock.password": "s3cret"}
    session = MagicMock()
    session.conf.get.side_effect = conf.get
    session.conf.set.side_effect = conf.__setitem__
    for _ in range(2):
        register_source(session)
        assert session.dataSource.register.call_args.args[0]({}).options["penstock.password"] == "s3cret"
        assert "s3cret" not in conf["spark.penstock.password"]
    assert session_defaults(session) == {"penstock.user": "ann", "penstock.password": "s3cret"}
    monkeypatch.setattr("penstock.spark.session_options._held", {})
    with pytest.raises(InvalidRequest, match=r"was set by another process, .* or the option penstock\.password"):
        session_defaults(session)
    own = {"Penstock.Password": "other"}
    assert with_session_defaults(session, own) == {"penstock.user": "ann", **own}, "as the message says"


def test_a_password_is_not_on_the_command_line_of_java_and_no_setting_that_differs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Settings of a new session are arguments of its virtual machine, which everybody can read."""
    from pyspark.sql import SparkSession

    builder, session = MagicMock(), MagicMock()
    builder.config.return_value.getOrCreate.return_value = session
    monkeypatch.setattr("penstock.spark.sessions.running_session", lambda: None)
    monkeypatch.setattr(SparkSession, "builder", builder)
    config = {"spark.penstock.user": "ann", "spark.penstock.password": "s3cret"}
    conf: dict[str, Any] = {}

    def take_settings(**given: Any) -> Any:
        conf.update(given["map"])
        return builder.config.return_value

    builder.config.side_effect = take_settings
    session.conf.get.side_effect = conf.get
    build_session("app", "local[2]", config, environment={"PYSPARK_GATEWAY_PORT": "1"})
    assert "s3cret" not in str(builder.config.call_args)
    assert session.dataSource.register.call_args.args[0]({}).options["penstock.password"] == "s3cret"
    monkeypatch.setattr("penstock.spark.sessions.running_session", lambda: session)
    build_session("app", "local[2]", config)
    assert caplog.messages == []
    build_session("app", "local[2]", {**config, "spark.penstock.password": "other"})
    assert "without these settings: spark.penstock.password;" in caplog.text


@pytest.mark.parametrize(
    ("master", "config", "environment", "remote"),
    [
        (None, {}, {}, None),
        (None, {"spark.remote": "sc://a"}, {"SPARK_REMOTE": "sc://b"}, "sc://a"),
        (None, {}, {"SPARK_REMOTE": "sc://b"}, "sc://b"),
        ("local[2]", {}, {"SPARK_REMOTE": "sc://b"}, None),
        (None, {"spark.master": "yarn"}, {"SPARK_REMOTE": "sc://b"}, None),
    ],
)
def test_a_server_is_asked_for_by_its_setting_or_the_environment(
    master: str | None, config: dict[str, str], environment: dict[str, str], remote: str | None
) -> None:
    assert remote_server(master, config, environment) == remote


def test_a_session_of_a_server_has_no_master_and_asks_for_no_java(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen = settings("app", None, {"spark.sql.ansi.enabled": "true"}, remote="sc://a")
    assert chosen == {
        "spark.app.name": "app",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.remote": "sc://a",
    }
    made: list[Any] = []
    monkeypatch.setattr("penstock.spark.sessions._connected", made.append)
    build_session(config={"spark.remote": "sc://a"}, environment={"JAVA_HOME": str(tmp_path)})
    assert made[0]["spark.remote"] == "sc://a"
    with pytest.raises(ConfigError, match="a master or a remote server"):
        build_session(master="yarn", config={"spark.remote": "sc://a"})

"""The shared session does what a session must: it runs Python on executors, keeps streaming state in RocksDB, and stays as it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

import penstock.spark
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.java import java_version
from penstock.spark.sessions import VFORK, VFORK_JAVA_MAX
from penstock.testing import BrokerProcess, RunningBroker
from tests.crash.standalone_cluster import wait_for
from tests.spark.jvm import FAST_SETTINGS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def _package(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyspark

    list(batches)
    yield pa.record_batch([[pyspark.__file__]], names=["file"])


def _doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        yield pa.record_batch([pc.multiply(batch.column(0), 2)], names=["id"])


def test_executors_run_the_python_of_the_driver(spark: SparkSession) -> None:
    doubled = spark.range(5).mapInArrow(_doubled, "id long")
    assert sorted(row.id for row in doubled.collect()) == [0, 2, 4, 6, 8]


def test_executors_have_the_compiled_modules_of_the_driver(spark: SparkSession) -> None:
    """And not those of a zip, which each of them would compile."""
    found = spark.range(1).mapInArrow(_package, "file string").collect()
    assert {row.file for row in found} == {pyspark.__file__}


def test_the_virtual_machine_forks_cheaply_and_has_the_options_of_the_user(spark: SparkSession) -> None:
    assert spark.sparkContext._jvm is not None
    machine = spark.sparkContext._jvm.java.lang
    found = list(machine.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    version = java_version(Path(os.environ["JAVA_HOME"]))
    assert version is not None
    assert (VFORK in found) is (version <= VFORK_JAVA_MAX)
    assert set(FAST_SETTINGS["spark.driver.extraJavaOptions"].split()) <= set(found)


def test_the_state_of_streams_is_kept_in_rocksdb(spark: SparkSession) -> None:
    assert str(spark.conf.get("spark.sql.streaming.stateStore.providerClass")).endswith("RocksDBStateStoreProvider")


def test_a_running_session_is_used_as_it_is_and_what_differs_is_named(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    zone = "spark.sql.session.timeZone"
    spark.conf.set(zone, "Europe/Berlin")
    before = dict(spark.conf.getAll)
    try:
        again = penstock.spark.session("another", config={"spark.hadoop.fs.s3a.secret.key": "s3cret"})
        assert again is spark
        assert dict(again.conf.getAll) == before
    finally:
        spark.conf.set(zone, "UTC")
    [warning] = [record.getMessage() for record in caplog.records if record.name == "penstock.spark.sessions"]
    assert "is used as it is" in warning
    assert zone in warning
    assert "spark.hadoop.fs.s3a.secret.key" in warning
    assert "spark.master" not in warning, "no other was asked for"
    assert "s3cret" not in warning


def test_a_registered_source_reads_and_writes(
    spark: SparkSession, broker: BrokerProcess, client: FlyMQClient, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic("registered")
    client.create_topic(topic, 1)
    client.send_many(topic, [b"1", b"2"])
    session = spark.newSession()
    penstock.spark.register(session)
    options = {"penstock.bootstrap": broker.address, "subscribe": topic}
    rows = session.read.format("penstock").options(**options).load()
    rows.select("value").write.format("penstock").options(**{**options, "topic": topic}).mode("append").save()
    assert sorted(record.value or b"" for record in client.records(topic)) == [b"1", b"1", b"2", b"2"]


def test_credentials_are_in_no_event_log_and_no_error(
    spark: SparkSession, event_log: Path, fresh_topic: Callable[..., str]
) -> None:
    """Neither those of the session nor those of a query, a view or a stream; there are queries that fail, too."""
    topic, secrets = fresh_topic("guarded"), ("s3cr3t-of-the-session", "s3cr3t-of-the-query", "s3cr3t-of-the-address")
    session = spark.newSession()
    with RunningBroker(dev=True, listeners={"flymq": {"auth": "required"}}) as broker:
        with FlyMQClient(f"flymq://admin:admin@{broker.address}") as admin:
            admin.create_topic(topic, 1)
            for user, password in zip(("ann", "bob"), secrets[:2], strict=True):
                admin.access.create_user(user, password, ["admin"])
        settings = {"bootstrap": broker.address, "user": "ann", "password": secrets[0]}
        for name, value in settings.items():
            session.conf.set(f"spark.penstock.{name}", value)
        penstock.spark.register(session)
        rows = session.sql("SELECT 'a value' AS value")
        rows.write.format("penstock").option("topic", topic).mode("append").save()
        login = {"penstock.user": "bob", "penstock.password": secrets[1]}
        assert session.read.format("penstock").options(**login, subscribe=topic).load().count() == 1
        view = f"OPTIONS ('penstock.user' 'bob', 'penstock.password' '{secrets[1]}', subscribe '{topic}')"
        session.sql(f"CREATE TEMPORARY VIEW guarded USING penstock {view}")
        assert session.sql("SELECT count(*) FROM guarded").collect() == [(1,)]
        wrong = {**login, "penstock.user": "nobody"}
        with pytest.raises(Exception, match="invalid username or password") as refused:
            session.read.format("penstock").options(**wrong, subscribe=topic).load().count()
        assert not any(secret in str(refused.value) for secret in secrets)
        address = {"penstock.bootstrap": f"flymq://ann:{secrets[2]}@{broker.address}"}
        with pytest.raises(Exception, match=r"set penstock\.user and penstock\.password") as refused:
            session.read.format("penstock").options(**address, subscribe=topic).load().count()
        assert secrets[2] not in str(refused.value)
    session.range(1).withColumnRenamed("id", "written_last").collect()
    wait_for("writing the event log", lambda: "written_last" in _text(event_log))
    text = _text(event_log)
    assert topic in text
    assert not [secret for secret in secrets if secret in text]


def test_a_table_with_a_password_in_its_address_is_not_in_the_catalog(spark: SparkSession) -> None:
    session = spark.newSession()
    penstock.spark.register(session)
    with pytest.raises(Exception, match=r"set penstock\.user and penstock\.password"):
        session.sql("CREATE TABLE addressed USING penstock OPTIONS ('penstock.bootstrap' 'flymq://ann:s@127.0.0.1:9')")
    assert not session.catalog.tableExists("addressed")


def _text(directory: Path) -> str:
    return "".join(file.read_text() for file in directory.rglob("*") if file.is_file())

"""The source and the sink over Spark Connect: a real server, and a client in a process that has no virtual machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.java import find_java
from penstock.testing import BrokerProcess
from tests.crash.process_tree import kill_with_descendants
from tests.crash.standalone_cluster import wait_for
from tests.spark.jvm import FAST_MASTER, FAST_SETTINGS

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
STARTED = re.compile(r"Spark Connect server started at:.*?(\d+)$", re.MULTILINE)
CLIENT_S_MAX = 240.0
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(400), pytest.mark.usefixtures("spark_home")]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of this test's own, as its topics have names that others use."""
    with BrokerProcess(tmp_path / "data") as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[FlyMQClient]:
    with broker.connect() as client:
        yield client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server that listens on this machine alone."""
    import pyspark

    settings = {
        **{name: value for name, value in FAST_SETTINGS.items() if name != "spark.log.level"},
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(tmp_path / "local"),
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    command = [submit, "--master", FAST_MASTER, *given, "--class", SERVER, "spark-internal"]
    environment = {**os.environ, "JAVA_HOME": str(find_java(os.environ)), "PYSPARK_PYTHON": sys.executable}
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=ROOT)
    try:
        wait_for(
            "starting the server", lambda: process.poll() is not None or STARTED.search(log.read_text()) is not None
        )
        started = STARTED.search(log.read_text())
        assert started is not None, log.read_text()
        yield f"sc://127.0.0.1:{started[1]}"
    finally:
        kill_with_descendants(process)


def test_everything_but_pipelines_works_over_spark_connect(
    server: str, broker: BrokerProcess, client: FlyMQClient, tmp_path: Path
) -> None:
    for topic in ("written", "copied", "refused", "orders"):
        client.create_topic(topic, 2)
    client.schemas.register("orders", '{"type": "object", "properties": {"id": {"type": "integer"}}}')
    client.send_many("orders", [b'{"id": %d}' % number for number in range(10)])
    write_deltalake(tmp_path / "table", pa.table({"id": list(range(5))}))

    command = [sys.executable, "-m", "tests.spark.connect_client", server, broker.address, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CLIENT_S_MAX, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{(tmp_path / 'server.log').read_text()[-4000:]}"
    found = json.loads(done.stdout.splitlines()[-1])

    numbers = sorted(str(number) for number in range(100))
    assert found["written"] == numbers
    assert found["copied"] == numbers
    assert found["resumed"] == 101
    assert "Spark Connect does not tell which query a batch belongs to" in found["refused"]
    assert found["same session"]
    assert found["orders"] == list(range(10))
    assert found["table"] == list(range(5))
    assert found["table as a stream"] == list(range(5))
    assert sum(1 for _ in client.records("refused")) == 0

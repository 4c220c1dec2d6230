"""An Apache Kafka of our own on this machine, from what scripts/install-kafka fetched: brokers that are controllers in the same process.

The settings are those Kafka comes with, but for what few brokers need; so is the way it is started (heap of 1 GB, G1). That a write is
acknowledged means, as everywhere with Kafka, that it is in the page cache of every replica in sync. A broker that stands alone is the only
one; of a `KafkaCluster`, all are replicas.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.processes import HOST, START_S_MAX, Program, Stoppable, free_port
from penstock.spark.java import find_java

CACHE: Final = Path(__file__).parent.parent / ".cache" / "kafka"
HEAP: Final = "1g"
JVM_FLAGS: Final = (
    "-server",
    f"-Xms{HEAP}",
    f"-Xmx{HEAP}",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Djava.awt.headless=true",
)
LIGHT_JVM_FLAGS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)
"""For tests, which want it soon and small: started in half the time, and never as fast."""
LIGHT_SETTINGS: Final = {"controller.quorum.append.linger.ms": "0"}
"""A topic is made in a few milliseconds, and not in 30."""
FORMATTED: Final = CACHE / "formatted"
"""A data directory as the storage tool makes it, which takes seconds: a broker begins with a copy."""
API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""A request that every broker answers, once it answers anything: its size, ApiVersions, version 0, id 1, no client id."""
CLUSTER_ID: Final = base64.urlsafe_b64encode(uuid.uuid5(uuid.NAMESPACE_DNS, "penstock").bytes).decode().rstrip("=")
"""Of every cluster here: brokers with different ids would refuse each other."""


class KafkaMissing(RuntimeError):
    """Kafka was not fetched; the message says how."""


def connector_jars() -> list[Path]:
    """Spark's Kafka connector and what it needs beside Spark itself."""
    return _jars("connector")


def versions() -> str:
    """Of the broker and the connector, as they were fetched."""
    try:
        lines = (CACHE / "versions.txt").read_text().splitlines()[1:]
    except OSError:
        return "not installed"
    return ", ".join(line.removeprefix("org.apache.spark:") for line in lines)


class Kafka(Program):
    """A broker that runs from here on, on a free port, with its data in a directory of ours. Topics are made by being named."""

    def __init__(
        self,
        directory: Path,
        partitions: int,
        *,
        light: bool = False,
        settings: Mapping[str, str] | None = None,
        secured: Mapping[str, str] | None = None,
        relayed: Mapping[str, str] | None = None,
        node: int = 1,
        controllers: Mapping[int, int] | None = None,
    ) -> None:
        """`partitions` is how many a topic gets. `settings` are added to those of the broker; `secured` are further listeners by name,
        each with its security protocol, and `relayed` such without any, each with the address that clients are told. `controllers` are
        the ports of a cluster's controllers by node; one of them is this `node`, and somebody has to wait until the cluster is ready."""
        self._class_path = str(_jars("broker")[0].parent / "*")
        self._java = str(find_java(os.environ) / "bin" / "java")
        self._flags = LIGHT_JVM_FLAGS if light else JVM_FLAGS
        directory.mkdir(parents=True)
        self._log = directory / "kafka.log"
        self.port = free_port()
        self._settings = directory / "server.properties"
        relayed = relayed or {}
        further = {**(secured or {}), **dict.fromkeys(relayed, "PLAINTEXT")}
        self.addresses = {name: f"{HOST}:{free_port()}" for name in further}
        """Of the further listeners, by name."""
        self._node = node
        properties = _properties(directory / "data", self.port, node, controllers or {node: free_port()}, partitions)
        for name, protocol in further.items():
            properties["listeners"] += f",{name}://{self.addresses[name]}"
            properties["advertised.listeners"] += f",{name}://{relayed.get(name, self.addresses[name])}"
            properties["listener.security.protocol.map"] += f",{name}:{protocol}"
        properties |= {**(LIGHT_SETTINGS if light else {}), **(settings or {})}
        lines = [f"{name}={value}\n" for name, value in properties.items()]
        self._settings.write_text("".join(lines))
        self._format(directory / "data")
        self._launch()
        if controllers is None:
            self.wait_until_ready()

    def start(self) -> None:
        """Run it again after it was stopped or killed."""
        self._launch()
        self.wait_until_ready()

    def _launch(self) -> None:
        with self._log.open("ab") as log:
            command = [self._java, *self._flags, "-cp", self._class_path, "kafka.Kafka", str(self._settings)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def _format(self, data: Path) -> None:
        made = FORMATTED / f"{_jars('broker')[0].stat().st_mtime_ns}-{CLUSTER_ID}-{self._node}"
        if not made.exists():
            self._run("kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(self._settings))
            unfinished = made.with_suffix(f".{os.getpid()}")
            shutil.copytree(data, unfinished)
            try:
                unfinished.rename(made)
            except OSError:  # somebody else has made it meanwhile
                shutil.rmtree(unfinished)
        else:
            shutil.copytree(made, data)

    def _run(self, *words: str) -> None:
        done = subprocess.run(
            [self._java, "-cp", self._class_path, *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{words[0]} failed:\n{(done.stderr + done.stdout)[-2000:]}")

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            self._raise_if_ended("Kafka", self._log)
            try:
                with socket.create_connection((HOST, self.port), timeout=1) as connection:
                    connection.sendall(API_VERSIONS)
                    if connection.recv(4):
                        return
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"Kafka was not ready within {START_S_MAX:g} s:\n{self._log.read_text()[-2000:]}")


class KafkaCluster(Stoppable):
    """Brokers that replicate each other's partitions. A write needs all but one of them."""

    def __init__(
        self,
        directory: Path,
        brokers: int,
        *,
        light: bool = False,
        relayed: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        """`relayed` are further listeners of each broker, by its number: their names and the addresses that clients are told."""
        relayed = relayed or {}
        controllers = {node: free_port() for node in range(1, brokers + 1)}
        replicated = {
            "default.replication.factor": str(brokers),
            "offsets.topic.replication.factor": str(brokers),
            "transaction.state.log.replication.factor": str(brokers),
            "transaction.state.log.min.isr": str(brokers - 1),
            "min.insync.replicas": str(brokers - 1),
        }
        self.brokers = [
            Kafka(
                directory / f"kafka{node}",
                1,
                light=light,
                settings=replicated,
                relayed=relayed.get(node),
                node=node,
                controllers=controllers,
            )
            for node in controllers
        ]
        try:
            for broker in self.brokers:
                broker.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def bootstrap(self) -> list[str]:
        return [broker.bootstrap for broker in self.brokers]

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()


def _jars(part: str) -> list[Path]:
    jars = sorted((CACHE / part).glob("*.jar"))
    if not jars:
        raise KafkaMissing("Kafka is not installed here: run scripts/install-kafka")
    return jars


def _properties(data: Path, port: int, node: int, controllers: Mapping[int, int], partitions: int) -> dict[str, str]:
    controller_port = controllers[node]
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{each}@{HOST}:{its_port}" for each, its_port in controllers.items()),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        "num.partitions": str(partitions),
        "auto.create.topics.enable": "true",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }

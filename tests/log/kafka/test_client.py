from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError, Unreachable
from penstock.log.kafka.client import KafkaClient
from penstock.log.kafka.faults import Code, KafkaFault
from penstock.log.kafka.settings import KafkaSettings, KafkaTls


@pytest.mark.parametrize("package", ["aiokafka", "cramjam"])
def test_without_the_extra_the_command_that_installs_it_is_told(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import penstock.log.kafka.engine"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f'engine = "kafka" needs packages that are not installed ({package})' in done.stderr
    assert 'run pip install "penstock[kafka]"' in done.stderr


async def test_a_cluster_that_is_not_there_is_told_with_the_reason() -> None:
    client = KafkaClient(KafkaSettings(bootstrap=["127.0.0.1:1"]))
    with pytest.raises(Unreachable, match=r"no Kafka broker at 127\.0\.0\.1:1 lets us in: .*refused"):
        await client.start()


def test_a_fault_has_the_name_and_the_number_that_kafka_gives_it() -> None:
    fault = KafkaFault(Code.NOT_ENOUGH_REPLICAS, "1 of 2")
    assert str(fault) == "NOT_ENOUGH_REPLICAS (19): 1 of 2"
    assert fault.retriable
    assert not KafkaFault(Code.MESSAGE_TOO_LARGE).retriable
    assert str(KafkaFault(23)) == "error (23)"


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"kafka\.tls: the certificates cannot be loaded"):
        KafkaTls(ca=tmp_path / "ca.pem").context()

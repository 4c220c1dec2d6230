"""A Kafka for all tests of this directory, started once; scripts/install-kafka fetches it. Each test has topics of its own, behind a
prefix."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from bench.kafka import Kafka
from tests.kafka.cluster import Cluster

HERE = Path(__file__).parent
_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.jvm)


@pytest.fixture(scope="session")
def kafka_ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authority of the listener SECURED; beside it lies the key and certificate of that."""
    directory = tmp_path_factory.mktemp("kafka-tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    chain = [blob.bytes() for blob in issued.cert_chain_pems]
    pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # the only form that Kafka reads
    (directory / "server.pem").write_bytes(pkcs8 + b"".join(chain))
    return directory / "ca.pem"


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, kafka_ca: Path) -> Iterator[Kafka]:
    directory = tmp_path_factory.mktemp("kafka") / "broker"
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    oauth = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",  # a node need not wait for others that may start, too
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(kafka_ca.with_name("server.pem")),
        "listener.name.secured.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.secured.plain.sasl.jaas.config": f'{plain} username="ada" password="secret" user_ada="secret";',
        "listener.name.secured.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.secured.oauthbearer.sasl.jaas.config": f'{oauth} unsecuredLoginStringClaim_sub="kafka";',
    }
    with Kafka(directory, 1, light=True, settings=settings, secured={"SECURED": "SASL_SSL"}) as broker:
        yield broker


@pytest.fixture
def prefix() -> str:
    return f"t{next(_numbers)}."


@pytest.fixture
async def storage(kafka: Kafka, prefix: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(kafka.bootstrap, prefix)
    yield cluster
    await cluster.close()

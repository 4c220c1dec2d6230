"""Nodes that share the log in the Kafka of a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trustme

from bench.kafka import Kafka
from penstock.testing import BrokerProcess, RunningBroker

SECRET = "the secret of this cluster"


class Certificates:
    """For all nodes the same, as clients that connect to one may have their TLS connection with another."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")  # the name that felix-client asks for
        self.ca, self.cert, self.key = (directory / name for name in ("ca.pem", "cert.pem", "key.pem"))
        authority.cert_pem.write_to_path(self.ca)
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    @property
    def tls(self) -> dict[str, str]:
        return {"cert": str(self.cert), "key": str(self.key)}


def node_process(
    directory: Path, kafka: Kafka, prefix: str, name: str, ports: Mapping[str, int] | None = None, more: str = ""
) -> BrokerProcess:
    """A node in a process of its own, with FlyMQ, and with other protocols at these ports. `more` are further sections of its
    configuration."""
    listeners = "\n".join(f'[listeners.{each}]\nbind = "127.0.0.1:{port}"' for each, port in (ports or {}).items())
    config = f"""
dev = true
engine = "kafka"
[kafka]
bootstrap = ["{kafka.bootstrap}"]
topic_prefix = "{prefix}"
[cluster]
bind = "127.0.0.1:0"
node = "{name}"
secret = "{SECRET}"
{listeners}
{more}
"""
    return BrokerProcess(directory / name, config=config)


class NodeThread(RunningBroker):
    """A node in a thread of the test, with TLS between it and the others."""

    def __init__(
        self, kafka: Kafka, prefix: str, name: str, certificates: Certificates, auth: str = "none", **config: Any
    ) -> None:
        """`auth` is that of the FlyMQ listener."""
        self._certificates = certificates
        self.prefix = prefix
        quic = {"tls": certificates.tls}
        super().__init__(
            engine="kafka",
            kafka={"bootstrap": [kafka.bootstrap], "topic_prefix": prefix},
            cluster={
                "bind": "127.0.0.1:0",
                "node": name,
                "secret": SECRET,
                "tls": {**certificates.tls, "ca": str(certificates.ca)},
            },
            listeners={"flymq": {"auth": auth}, "fujin": quic, "felix": quic},
            **config,
        )

    @property
    def certificate(self) -> Path:
        return self._certificates.ca

    @property
    def leads(self) -> bool:
        return self.server.broker.leading.leads

"""How a cluster is reached, and how Penstock uses it."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from penstock.errors import ConfigError
from penstock.settings import Seconds, Section, Size
from penstock.units import parse_address

_Path = Annotated[Path, AfterValidator(Path.expanduser)]

TOPIC_PREFIX_CHARS_MAX = 100


def _address(text: str) -> str:
    return str(parse_address(text))


class KafkaTls(Section):
    """`[kafka.tls]`: connections to Kafka are encrypted. The section may be empty."""

    ca: _Path | None = None
    """CA certificates, a PEM file; those of the system if left out."""
    cert: _Path | None = None
    """A client certificate, if Kafka asks for one."""
    key: _Path | None = None
    """The private key of the client certificate."""

    @model_validator(mode="after")
    def _files_exist(self) -> KafkaTls:
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path is not None and not path.is_file():
                raise ValueError(f"{name} names {path}, which is not a file: create it or correct the path")
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together: give both or neither")
        return self

    def context(self) -> ssl.SSLContext:
        """Raises ConfigError if a file is not what it should be."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise ConfigError(
                f"kafka.tls: the certificates cannot be loaded ({error}): ca, cert and key are PEM files"
            ) from None
        return context


class KafkaSasl(Section):
    """`[kafka.sasl]`: authentication at Kafka."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    """The SASL mechanism of Kafka's listener."""
    username: str | None = None
    """The user, for all mechanisms but OAUTHBEARER."""
    password: SecretStr | None = None
    """The password of the user."""
    token_file: _Path | None = None
    """For OAUTHBEARER: a file with a token, read at each connection. Whatever renews the token replaces the file."""

    @model_validator(mode="after")
    def _is_complete(self) -> KafkaSasl:
        if self.mechanism == "OAUTHBEARER":
            if self.token_file is None:
                raise ValueError("OAUTHBEARER needs token_file")
        elif self.username is None or self.password is None:
            raise ValueError(f"{self.mechanism} needs username and password")
        return self


class KafkaSettings(Section):
    """`[kafka]`: the Apache Kafka cluster that holds the log if `engine` is `kafka`. Of `[log]`, retention, compression and segments
    apply, and the sizes of the tail cache."""

    bootstrap: list[Annotated[str, AfterValidator(_address)]] = Field([])
    """Addresses of brokers to connect to first, as in `["kafka1:9092", "kafka2:9092"]`."""
    topic_prefix: Annotated[str, Field(pattern="^[A-Za-z0-9._-]*$", max_length=TOPIC_PREFIX_CHARS_MAX)] = ""
    """Begins the name in Kafka of each topic. Brokers with different prefixes can share a cluster."""
    replication: int = Field(0, ge=0, le=1000)
    """Replicas of topics that this broker creates. 0: 3, or as many as there are brokers if that is less."""
    adopt: bool = True
    """Serve topics too that others created in Kafka."""
    flush: bool = False
    """Topics with `durability = "fsync"` are flushed to disk before an append is acknowledged. Otherwise it is in the memory of every
    replica in sync."""
    message_bytes_max: Size = Field(40 << 20, ge=1 << 20, le=1 << 30)
    """`max.message.bytes` of topics that this broker creates: the largest append. It must hold the largest record."""
    append_s_max: Seconds = Field(30.0, ge=1)
    """An append that Kafka has not answered within this time fails, with an unknown outcome if it was sent."""
    request_s_max: Seconds = Field(10.0, ge=1)
    """Timeout of connecting to a broker and of one request to it."""
    tls: KafkaTls | None = None
    sasl: KafkaSasl | None = None

"""The address of a broker, taken apart into what a pipeline file has settings for: where it listens, who asks, and how.

An address such as `flymqs://alice@broker:9092?ca=ca.pem` has all of it in one text, and may have a password too. Options of Spark and
files get the parts and never the text. The password stays apart from both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from penstock.clients.url import parse_url
from penstock.errors import InvalidRequest
from penstock.protocols.flymq.client.client import PORT
from penstock.spark.pipelines.model import Connection, Pipeline

SCHEMES: Final = ("flymq", "flymqs")
OPTIONS: Final = ("idempotent",)
"""Of clients, without a meaning for a pipeline."""


class BrokerAddress(NamedTuple):
    bootstrap: str
    connection: Connection
    """What the address says of it; the rest is unset."""
    password: str | None


def broker_address(url: str) -> BrokerAddress:
    """Take an address apart; host:port alone is FlyMQ's. Files are relative to the working directory, links are kept.

    Raises InvalidRequest.
    """
    address = parse_url(url if "://" in url else f"flymq://{url}", port=PORT, options=OPTIONS)
    if address.scheme not in SCHEMES:
        raise InvalidRequest(
            f"{address} is not the address of a FlyMQ listener: write host:port, flymq://host:port, or flymqs:// for TLS"
        )
    said: dict[str, str | bool] = {name: str(Path(file).absolute()) for name, file in address.tls_files.items()}
    if address.user is not None:
        said["user"] = address.user
    if address.is_secure or address.tls_files:
        said["tls"] = True
    bootstrap = str(address).partition("://")[2]
    return BrokerAddress(bootstrap, Connection.model_validate(said), address.password)


def with_broker(pipeline: Pipeline, broker: BrokerAddress) -> Pipeline:
    """The pipeline with this broker instead of its own. What the address does not say of the connection stays as the file has it."""
    said = {name: getattr(broker.connection, name) for name in broker.connection.model_fields_set}
    connection = pipeline.connection.model_copy(update=said)
    return pipeline.model_copy(update={"bootstrap": broker.bootstrap, "connection": connection})

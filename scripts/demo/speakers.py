"""The five protocols as the demo speaks them: each sends, and each reads what any of them sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import penstock
from penstock.clients.url import split_url
from penstock.testing.process import BrokerProcess

READ_S_MAX: Final = 30.0
BLIPMQ_KEY: Final = "demo-key"


class Speaker(ABC):
    """One protocol, over one connection at a time: to the first of some brokers, or to another if that one is gone."""

    name: str
    manner: str
    """What is special about how it writes or reads."""

    def __init__(self, *brokers: BrokerProcess) -> None:
        addresses = [split_url(self.url(broker)) for broker in brokers]
        hosts = ",".join(address.hosts for address in addresses)
        rest = f"{addresses[0].rest}&hosts=in-order" if addresses[0].rest else "?hosts=in-order"
        self.client: Any = penstock.connect(str(addresses[0]._replace(hosts=hosts, rest=rest)))

    @classmethod
    @abstractmethod
    def url(cls, broker: BrokerProcess) -> str: ...

    @abstractmethod
    def send(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Keys and values; returns once all of them are on disk. Protocols without keys leave them out."""

    def listen(self, topic: str) -> None:  # noqa: B027 - most have nothing to do
        """From here on, what is written to a topic is kept for this reader: some protocols begin at the end."""

    @abstractmethod
    def take(self, topic: str, count: int) -> list[bytes]:
        """The next values of a topic."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()


class FlyMQ(Speaker):
    name = "FlyMQ"
    manner = "TCP, keyed records, pipelined"

    @classmethod
    def url(cls, broker: BrokerProcess) -> str:
        return broker.url

    def send(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        self.client.send_many(topic, records)

    def take(self, topic: str, count: int) -> list[bytes]:
        return [record.value for record in self.client.records(topic, group="demo-flymq", follow=True, limit=count)]


class BlipMQ(Speaker):
    name = "BlipMQ"
    manner = "TCP, messages of a queue"

    def __init__(self, *brokers: BrokerProcess) -> None:
        super().__init__(*brokers)
        self._subscriptions: dict[str, int] = {}

    @classmethod
    def url(cls, broker: BrokerProcess) -> str:
        return f"blipmq://{BLIPMQ_KEY}@{broker.addresses['blipmq']}"

    def send(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        self.client.send_many(topic, [value for _, value in records])

    def listen(self, topic: str) -> None:
        self._subscriptions[topic] = self.client.subscribe(topic)

    def take(self, topic: str, count: int) -> list[bytes]:
        subscription = self._subscriptions[topic]
        return [
            message.value for message in self.client.records(topic, subscription=subscription, follow=True, limit=count)
        ]


class RustLog(Speaker):
    name = "RustLog"
    manner = "TCP, batches"

    @classmethod
    def url(cls, broker: BrokerProcess) -> str:
        return f"rustlog://{broker.addresses['rustlog']}"

    def send(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        self.client.send_many(topic, [value for _, value in records])

    def take(self, topic: str, count: int) -> list[bytes]:
        return [record.value for record in self.client.records(topic, group="demo-rustlog", follow=True, limit=count)]


class Fujin(Speaker):
    name = "Fujin"
    manner = "QUIC, pipelined writes"

    @classmethod
    def url(cls, broker: BrokerProcess) -> str:
        return f"fujin://{broker.addresses['fujin']}?ca={certificate(broker)}"

    def send(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        self.client.send_many(topic, [value for _, value in records])

    def take(self, topic: str, count: int) -> list[bytes]:
        return [message.value for message in self.client.records(topic, follow=True, limit=count)]


class Felix(Speaker):
    name = "Felix"
    manner = "QUIC, binary batches"

    def __init__(self, *brokers: BrokerProcess) -> None:
        super().__init__(*brokers)
        self._subscriptions: dict[str, Any] = {}

    @classmethod
    def url(cls, broker: BrokerProcess) -> str:
        return f"felix://{broker.addresses['felix']}?ca={certificate(broker)}"

    def send(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        self.client.send_many(topic, [value for _, value in records])

    def listen(self, topic: str) -> None:
        self._subscriptions[topic] = self.client.subscribe(topic)

    def take(self, topic: str, count: int) -> list[bytes]:
        events = [self._subscriptions[topic].next(READ_S_MAX) for _ in range(count)]
        return [event.value for event in events if event is not None]


def certificate(broker: BrokerProcess) -> Path:
    """What the broker made for itself: QUIC is never without TLS."""
    return broker.data_dir / "dev-certificate.pem"


SPEAKERS: Final[tuple[type[Speaker], ...]] = (FlyMQ, BlipMQ, RustLog, Fujin, Felix)
LISTENERS: Final = ("admin", "listeners.blipmq", "listeners.rustlog", "listeners.fujin", "listeners.felix")
"""Beside FlyMQ's, which every broker has."""


def configuration() -> str:
    """TOML for a broker that all of them can talk to, on free ports."""
    sections = [f'[{name}]\nbind = "127.0.0.1:0"\n' for name in LISTENERS]
    return "\n".join(sections).replace("[listeners.blipmq]\n", f'[listeners.blipmq]\napi_keys = ["{BLIPMQ_KEY}"]\n')

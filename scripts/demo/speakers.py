"""The five protocols as the demo speaks them: each sends, and each reads what any of them sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

import penstock
from penstock.testing.process import BrokerProcess

READ_S_MAX: Final = 30.0
BLIPMQ_KEY: Final = "demo-key"
LISTENERS: Final = ("blipmq", "rustlog", "fujin", "felix")
"""Beside FlyMQ's, which every broker of the demo has."""


class Speaker(ABC):
    """One protocol, over one connection."""

    name: str
    manner: str
    """What is special about how it writes or reads."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.client: Any = penstock.connect(self.url(broker))

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
    manner = "keyed records, pipelined, over TCP"

    @classmethod
    def url(cls, broker: BrokerProcess) -> str:
        return broker.url

    def send(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        self.client.send_many(topic, records)

    def take(self, topic: str, count: int) -> list[bytes]:
        return [record.value for record in self.client.records(topic, group="demo-flymq", follow=True, limit=count)]


class BlipMQ(Speaker):
    name = "BlipMQ"
    manner = "queue-like messages, polled and acknowledged, over TCP"

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(broker)
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
    manner = "batches in one request, over TCP"

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(broker)
        self._next: dict[str, int] = {}

    @classmethod
    def url(cls, broker: BrokerProcess) -> str:
        return f"rustlog://{broker.addresses['rustlog']}"

    def send(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        self.client.send_many(topic, [value for _, value in records])

    def take(self, topic: str, count: int) -> list[bytes]:
        return [record.value for record in self.client.records(topic, group="demo-rustlog", follow=True, limit=count)]


SPEAKERS: Final[tuple[type[Speaker], ...]] = (FlyMQ, BlipMQ, RustLog)


def configuration() -> str:
    """TOML for a broker that all of them can talk to, on free ports."""
    return f"""
[admin]
bind = "127.0.0.1:0"

[listeners.blipmq]
bind = "127.0.0.1:0"
api_keys = ["{BLIPMQ_KEY}"]

[listeners.rustlog]
bind = "127.0.0.1:0"
"""

"""Each protocol as the matrix uses it: publish, read everything that was published, and where it has groups, commit and look.

A protocol that is added here is published over and read over by every other, without a line more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import penstock
from penstock.testing import RunningBroker
from tests.interop.felix_json import FelixJsonClient


class Published(NamedTuple):
    key: bytes | None
    value: bytes


class Seen(NamedTuple):
    """A record as a reader sees it; None for what its protocol does not tell."""

    value: bytes
    key: bytes | None = None
    offset: int | None = None


class Speaker(ABC):
    """One protocol, one connection, one topic of one partition."""

    name: str
    has_keys: bool
    """Whether records have a key in this protocol; those published without end up without one."""
    has_offsets: bool
    has_empty: bool = True
    """Whether a record may have nothing in it; those that do are neither published nor read otherwise."""

    def __init__(self, broker: RunningBroker, topic: str) -> None:
        self.topic = topic
        self.client: Any = penstock.connect(self.url(broker))
        self.prepare()

    def close(self) -> None:
        self.client.close()

    @abstractmethod
    def url(self, broker: RunningBroker) -> str: ...

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Before anything is published: for protocols whose readers begin at the end."""

    @abstractmethod
    def publish(self, records: Sequence[Published]) -> None: ...

    @abstractmethod
    def read(self, count: int) -> list[Seen]:
        """Everything that was published since, in the order in which it is read."""


class GroupSpeaker(Speaker):
    """A protocol with offsets and groups."""

    has_offsets = True

    def read(self, count: int) -> list[Seen]:
        return [Seen(record.value, record.key, record.offset) for record in self.client.records(self.topic)]

    def commit(self, group: str, offset: int) -> None:
        self.client.commit(self.topic, group, 0, offset)

    def committed(self, group: str) -> int | None:
        offset: int | None = self.client.committed(self.topic, group, 0)
        return offset


class FlyMQ(GroupSpeaker):
    name = "flymq"
    has_keys = True

    def url(self, broker: RunningBroker) -> str:
        return broker.url

    def publish(self, records: Sequence[Published]) -> None:
        self.client.send_many(self.topic, [(record.key, record.value) for record in records])


class BlipMQ(Speaker):
    name = "blipmq"
    has_keys = has_offsets = False

    def url(self, broker: RunningBroker) -> str:
        return broker.blipmq_url

    def prepare(self) -> None:
        self._subscription = self.client.subscribe(self.topic)

    def publish(self, records: Sequence[Published]) -> None:
        self.client.send_many(self.topic, [record.value for record in records])

    def read(self, count: int) -> list[Seen]:
        messages = self.client.records(self.topic, subscription=self._subscription)
        return [Seen(message.value) for message in messages]


class RustLog(GroupSpeaker):
    name = "rustlog"
    has_keys = False

    def url(self, broker: RunningBroker) -> str:
        return broker.rustlog_url

    def publish(self, records: Sequence[Published]) -> None:
        self.client.send_many(self.topic, [record.value for record in records])


class RustLogJson(RustLog):
    name = "rustlog+json"

    def url(self, broker: RunningBroker) -> str:
        return broker.rustlog_url.replace("rustlog:", "rustlog+json:")


class Fujin(Speaker):
    name = "fujin"
    has_keys = has_offsets = has_empty = False

    def url(self, broker: RunningBroker) -> str:
        return broker.fujin_url

    def publish(self, records: Sequence[Published]) -> None:
        self.client.send_many(self.topic, [record.value for record in records])

    def read(self, count: int) -> list[Seen]:
        return [Seen(message.value) for message in self.client.records(self.topic, limit=count)]


class Felix(Speaker):
    """Publishes in binary, and is sent binary events."""

    name = "felix"
    has_keys = False  # an event comes without its key
    has_offsets = True

    def url(self, broker: RunningBroker) -> str:
        return broker.felix_url

    def prepare(self) -> None:
        self._subscription = self.client.subscribe(self.topic)

    def publish(self, records: Sequence[Published]) -> None:
        self.client.send_many(self.topic, [record.value for record in records])

    def read(self, count: int) -> list[Seen]:
        events = islice(self._subscription, count)
        return [Seen(event.value, None, event.offset) for event in events]


class FelixJson(Speaker):
    """Speaks as the contract has it, in JSON."""

    name = "felix+json"
    has_keys = has_offsets = False

    def __init__(self, broker: RunningBroker, topic: str) -> None:
        self.topic = topic
        self.client = FelixJsonClient(broker.addresses["felix"], broker.certificate)
        self.client.subscribe(topic)

    def url(self, broker: RunningBroker) -> str:
        return broker.felix_url

    def publish(self, records: Sequence[Published]) -> None:
        self.client.publish_batch(self.topic, [record.value for record in records])

    def read(self, count: int) -> list[Seen]:
        return [Seen(value) for value in self.client.events(count)]


SPEAKERS: tuple[type[Speaker], ...] = (FlyMQ, BlipMQ, RustLog, RustLogJson, Fujin, Felix, FelixJson)
GROUP_SPEAKERS: tuple[type[GroupSpeaker], ...] = (FlyMQ, RustLog, RustLogJson)

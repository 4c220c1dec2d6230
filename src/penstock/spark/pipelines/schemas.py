"""Which schema the records of a topic follow, and which version of it a batch is decoded by.

A topic's schema is the one the pipeline names, else the one the topic is bound to, else the one registered under the topic's name. Each
batch takes the newest version there is, unless the reference names one. A batch that is done again after a crash takes the version it was
begun with: a record that was a dead letter the first time must not become a row the second time. So the version is written down, beside
the checkpoint, before a batch with a new one begins.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Final

from penstock.broker.schemas.reference import LATEST, Reference, parse_reference
from penstock.errors import ConfigError, SchemaNotFound
from penstock.protocols.flymq.client.records import SchemaInfo
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.decoding import Plan, Version, version
from penstock.spark.pipelines.files import Files

OLDER_VERSIONS_MAX: Final = 10
"""Of an Avro schema, that a record may have been written by."""
SCHEMA_SETTING: Final = "schema"


def schema_of(client: FlyMQClient, topic: str, given: Mapping[str, str]) -> Reference | None:
    """The schema of a topic, None where it has none. Raises SchemaNotFound where the one that is named does not exist."""
    named = given.get(topic) or client.describe_topic(topic).config.get(SCHEMA_SETTING)
    if named is not None:
        return parse_reference(named)
    if ":" in topic:
        return None
    try:
        client.schemas.get(topic)
    except SchemaNotFound:
        return None
    return Reference(topic, LATEST, "")


def described(client: FlyMQClient, topic: str, reference: Reference) -> SchemaInfo:
    """The version that a topic's schema stands for now. Raises SchemaNotFound, which says what to do."""
    try:
        return client.schemas.get(reference.name, reference.version or None)
    except SchemaNotFound:
        raise SchemaNotFound(
            f"topic {topic} follows schema {reference}, which is not there: register it with penstock schema register {reference.name} "
            "FILE, or name another under [silver] schemas"
        ) from None


class Plans:
    """The plans of one topic for one stage, from version to version. Only one run at a time writes them down."""

    def __init__(self, client: FlyMQClient, topic: str, reference: Reference, files: Files, pin: str) -> None:
        self._client = client
        self._topic = topic
        self._reference = reference
        self._files = files
        self._pin = pin
        self._current: Plan | None = None
        self._pinned: Plan | None = None

    def newest(self) -> Plan:
        """The plan for a batch that was never begun."""
        name, _, message = self._reference
        info = described(self._client, self._topic, self._reference)
        if self._current is not None and self._current.version.number == info.version:
            return self._current
        if info.definition is None:
            raise ConfigError(f"the broker does not tell the definition of schema {name}: use a Penstock broker")
        older: list[Version] = []
        if info.type == "avro":
            numbers = sorted((each.version for each in self._client.schemas.list(name)), reverse=True)
            for each in [number for number in numbers if number < info.version][:OLDER_VERSIONS_MAX]:
                text = self._client.schemas.get(name, each).definition
                if text is not None:
                    older.append(version(info.type, each, text))
        made = version(info.type, info.version, info.definition)
        self._current = Plan(name, info.type, message, made, tuple(older))
        return self._current

    def pinned(self) -> Plan | None:
        """The plan that was last written down."""
        if self._pinned is not None:
            return self._pinned
        text = self._files.read(self._pin)
        if text is None:
            return None
        stored = json.loads(text)
        current, *older = [
            Version(each["number"], each["text"], base64.b64decode(each["form"])) for each in stored["versions"]
        ]
        self._pinned = Plan(stored["name"], stored["kind"], stored["message"], current, tuple(older))
        return self._pinned

    def pin(self, plan: Plan) -> None:
        """Write a plan down, unless it is there already."""
        if self.pinned() == plan:
            return
        versions = [
            {"number": each.number, "text": each.text, "form": base64.b64encode(each.form).decode()}
            for each in (plan.version, *plan.older)
        ]
        stored = {"name": plan.name, "kind": plan.kind, "message": plan.message, "versions": versions}
        self._files.write(self._pin, json.dumps(stored))
        self._pinned = plan


def batch_to_repeat(files: Files, checkpoint: str) -> int | None:
    """The batch that a query with this checkpoint begins with because a run before it did not finish it."""
    begun = _last_number(files.names(f"{checkpoint}/offsets"))
    done = _last_number(files.names(f"{checkpoint}/commits"))
    return begun if begun is not None and (done is None or begun > done) else None


def _last_number(names: list[str]) -> int | None:
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)

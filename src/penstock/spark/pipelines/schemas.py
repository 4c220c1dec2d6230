"""Which schema the records of a topic follow, and which version of it a batch is decoded by.

A topic's schema is the one the pipeline names, else the one the topic is bound to, else the one registered under the topic's name. Each
batch takes the newest version there is, unless the reference names one. A batch that is done again after a crash takes the version it was
begun with: a record that was a dead letter the first time must not become a row the second time. So the version is written down, next to
the checkpoint, before a batch with a new one begins.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

from penstock.broker.schemas.marks import Framing
from penstock.broker.schemas.reference import (
    LATEST,
    Reference,
    SchemaType,
    parse_named_version,
    parse_reference,
    schema_type,
)
from penstock.errors import ConfigError, InvalidRequest, SchemaNotFound
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.decoding import Plan, Unmarked, Version, loaded_protobuf, version
from penstock.spark.pipelines.files import Files

SCHEMA_SETTING: Final = "schema"


def schema_of(client: FlyMQClient, topic: str, given: Mapping[str, str]) -> Reference | None:
    """The schema of a topic, None if it has none. Raises SchemaNotFound if the one that is named does not exist."""
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


def check_versions(client: FlyMQClient, topic: str, reference: Reference, unmarked: str) -> None:
    """Raises SchemaNotFound if a topic's schema is not there, or the version that wrote its unmarked records; and InvalidRequest."""
    if plan_of(Versions(client, reference.name).now(reference.version), reference, unmarked) is None:
        raise _not_there(topic, reference)


def _not_there(topic: str, reference: Reference) -> SchemaNotFound:
    return SchemaNotFound(
        f"topic {topic} follows schema {reference}, which is not there: register it with penstock schema register {reference.name} "
        "FILE, or name another under [silver] schemas"
    )


class Registered(NamedTuple):
    """The versions of a schema at one moment, by number, with their kinds."""

    versions: Mapping[int, tuple[SchemaType, Version]]
    """With those that are soft-deleted: records that they wrote are still read."""
    latest: int
    """LATEST if every version is deleted."""
    had_others: bool
    """Whether a version was deleted, softly or for good, or the broker does not tell."""


class Versions:
    """The versions of a schema, as far as they are known: each is asked for and compiled once."""

    def __init__(self, client: FlyMQClient, name: str) -> None:
        self._client = client
        self._name = name
        self._made: dict[int, tuple[SchemaType, Version]] = {}
        self._gone: set[int] = set()
        """Numbers of versions that were deleted for good."""

    def now(self, number: int = LATEST) -> Registered:
        """Return every version that records may name. `number` is one that is needed, also if every version is soft-deleted."""
        live = [each.version for each in self._client.schemas.list(self._name)]
        latest = max(live, default=LATEST)
        try:
            last = self._client.schemas.get(self._name, latest or number or None).last_version
        except SchemaNotFound:  # deleted since, or there never was any
            return Registered({}, LATEST, had_others=True)
        # Numbers are given once, so a version that is gone stays gone. One that is soft-deleted may go at any time.
        for each in {*live, *range(1, (last or 0) + 1)}.difference(self._gone.difference(live)):
            try:
                if each not in self._made:
                    self._made[each] = self._get(each)
                elif each not in live:
                    self._client.schemas.get(self._name, each)
            except SchemaNotFound:
                self._made.pop(each, None)
                self._gone.add(each)
            else:
                self._gone.discard(each)
        return Registered(dict(self._made), latest, had_others=last != len(live))

    def _get(self, number: int) -> tuple[SchemaType, Version]:
        info = self._client.schemas.get(self._name, number)
        if info.definition is None:
            raise ConfigError(f"the broker does not tell the definition of schema {self._name}: use a Penstock broker")
        kind = schema_type(info.type)
        return kind, version(kind, number, info.definition, info.registry_id or 0)


def check_unmarked(unmarked: str) -> None:
    """Raises InvalidRequest unless it is a choice of what to do with records without a mark, or the version that wrote them."""
    if unmarked not in get_args(Unmarked):
        try:
            parse_named_version(unmarked)
        except InvalidRequest as error:
            raise InvalidRequest(f"unmarked: {error}, or use {', '.join(get_args(Unmarked))}") from None


def plan_of(
    registered: Registered,
    reference: Reference,
    unmarked: str = "auto",
    framing: Framing | Literal["auto"] = "auto",
) -> Plan | None:
    """The plan for a schema with these versions, None if it has not the one that is named. A version of another kind is no part of it.

    `unmarked` is one of `Unmarked`, or names a version. With "auto", unmarked records are read by the version that the reference names, if
    it names one, and unmarked Avro is rejected if a version that has been deleted may have written it. Raises InvalidRequest,
    SchemaNotFound.
    """
    versions = registered.versions
    number = reference.version or registered.latest
    if number not in versions:
        return None
    kind, made = versions[number]
    others = [each for other, (of_kind, each) in sorted(versions.items()) if other != number and of_kind == kind]
    plan = Plan(reference.name, kind, reference.message, made, tuple(others), framing=framing)
    return plan._replace(unmarked=_unmarked_of(plan, unmarked, reference, registered))


def _unmarked_of(plan: Plan, unmarked: str, reference: Reference, registered: Registered) -> Unmarked | int:
    if unmarked == "auto":
        if reference.version != LATEST:
            return "read"
        return "reject" if plan.kind == "avro" and registered.had_others else "auto"
    choices: tuple[Unmarked, ...] = get_args(Unmarked)
    for choice in choices:
        if choice == unmarked:
            return choice
    named = parse_named_version(unmarked)
    if named.name != plan.name:
        raise InvalidRequest(
            f"unmarked is {unmarked}, and the schema is {plan.name}: name a version of that (in a pipeline, [silver.topics.TOPIC] has "
            "settings for one topic)"
        )
    written = next((each for each in (plan.version, *plan.others) if each.number == named.version), None)
    if written is None:
        raise SchemaNotFound(
            f"unmarked is {unmarked}, which is not there or not of the type of the latest version: see penstock schema list {plan.name}"
        )
    if plan.kind == "protobuf":
        message = loaded_protobuf(plan.version).message_class(plan.message).DESCRIPTOR.full_name
        try:
            loaded_protobuf(written).message_class(message)
        except InvalidRequest as error:
            raise InvalidRequest(f"unmarked is {unmarked}: {error}; name a version that has the message") from None
    return written.number


class Plans:
    """The plans of one topic for one stage, from version to version. Only one run at a time writes them down."""

    def __init__(
        self, client: FlyMQClient, topic: str, reference: Reference, files: Files, pin: str, unmarked: str = "auto"
    ) -> None:
        self._topic = topic
        self._reference = reference
        self._files = files
        self._pin = pin
        self._unmarked = unmarked
        self._versions = Versions(client, reference.name)
        self._pinned: Plan | None = None

    def newest(self) -> Plan:
        """The plan for a batch that was never begun. Raises SchemaNotFound and InvalidRequest, which say what to do."""
        plan = plan_of(self._versions.now(self._reference.version), self._reference, self._unmarked)
        if plan is None:
            raise _not_there(self._topic, self._reference)
        return plan

    def pinned(self) -> Plan | None:
        """The plan that was last written down."""
        if self._pinned is not None:
            return self._pinned
        text = self._files.read(self._pin)
        if text is None:
            return None
        stored = json.loads(text)
        current, *others = [
            Version(each["number"], each["text"], base64.b64decode(each["form"]), each.get("registry_id", 0))
            for each in stored["versions"]
        ]
        # A plan of before records were marked: its Avro records were read by whichever version fitted. They no longer are.
        unmarked = stored.get("unmarked", "auto")
        self._pinned = Plan(stored["name"], stored["kind"], stored["message"], current, tuple(others), unmarked)
        return self._pinned

    def pin(self, plan: Plan) -> None:
        """Write a plan down, unless it is there already."""
        if self.pinned() == plan:
            return
        versions = [
            {
                "number": each.number,
                "text": each.text,
                "form": base64.b64encode(each.form).decode(),
                "registry_id": each.registry_id,
            }
            for each in (plan.version, *plan.others)
        ]
        stored = {
            "name": plan.name,
            "kind": plan.kind,
            "message": plan.message,
            "versions": versions,
            "unmarked": plan.unmarked,
        }
        self._files.write(self._pin, json.dumps(stored))
        self._pinned = plan


def batch_to_repeat(files: Files, checkpoint: str) -> int | None:
    """The batch that a query with this checkpoint begins with because a run before it did not finish it."""
    begun = _last_number(files.names(f"{checkpoint}/offsets"))
    done = finished_batch(files, checkpoint)
    return begun if begun is not None and (done is None or begun > done) else None


def finished_batch(files: Files, checkpoint: str) -> int | None:
    """The last batch that a query with this checkpoint has finished, None if there is none."""
    return _last_number(files.names(f"{checkpoint}/commits"))


def _last_number(names: list[str]) -> int | None:
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)

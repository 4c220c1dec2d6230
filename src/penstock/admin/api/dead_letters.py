"""Dead letters: list, look at one, replay as they are or edited, purge."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from penstock.admin.api.records import (
    CELL_BYTES_DEFAULT,
    CELL_BYTES_MAX,
    HEADERS_MAX,
    Cell,
    Header,
    NewHeader,
    cell,
    given_bytes,
    given_headers,
    shown_headers,
)
from penstock.admin.api.table import Call, Reply, Request, endpoint
from penstock.broker.deliveries.deadletter_entries import DeadLetter as Letter
from penstock.broker.deliveries.deadletters import SUFFIX, DeadLetters, Wanted
from penstock.broker.records.filters import RecordFilter
from penstock.broker.topics.operations import Topics
from penstock.errors import (
    CorruptBlock,
    EntryNotFound,
    InvalidRequest,
    RecordTooLarge,
    TopicNotFound,
    ValidationFailed,
)
from penstock.workers import Check

LETTERS_MAX: Final = 500
"""Per list."""


class DeadLettersQuery(Request, frozen=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=LETTERS_MAX)] = 100
    cell_bytes: Annotated[int, msgspec.Meta(ge=0, le=CELL_BYTES_MAX)] = CELL_BYTES_DEFAULT


class DeadLetterTopic(Reply, frozen=True):
    topic: str
    """The topic whose records could not be processed."""
    dead_letter_topic: str
    letters: int
    """Those that were replayed among them."""


class DeadLetter(Reply, frozen=True):
    id: str
    reason: str
    attempts: int
    key: Cell | None
    value: Cell | None
    headers: list[Header]
    origin_partition: int | None
    origin_offset: int | None
    first_failed_ms: int | None
    failed_ms: int | None


class EditedRecord(Request, frozen=True):
    """What is replayed in the place of a dead letter's own. What is left out stays as it is; null means none."""

    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    headers: Annotated[tuple[NewHeader, ...], msgspec.Meta(max_length=HEADERS_MAX)] | UnsetType = UNSET


class Replay(Request, frozen=True):
    """Which dead letters: one by its id, those that match a filter, or all of them."""

    id: str = ""
    record: EditedRecord | None = None
    """With an id: the record is edited first."""
    filter: str = ""
    dry_run: bool = False
    """Only count them."""


class Replayed(Reply, frozen=True):
    count: int
    applied: bool


@endpoint("GET", "/dead-letters", asks=Topics.names)
async def list_dead_letter_topics(call: Call) -> list[DeadLetterTopic]:
    """List the topics that have dead letters."""
    topics = []
    for name in call.broker.topics.names(call.principal):
        if name.endswith(SUFFIX):
            try:
                partitions = (await call.broker.topics.follow(call.principal, name)).partitions
            except TopicNotFound:
                continue  # it was deleted meanwhile
            letters = sum(each.committed_end - each.start_offset for each in partitions)
            topics.append(DeadLetterTopic(name.removesuffix(SUFFIX), name, letters))
    return topics


@endpoint("GET", "/topics/{topic}/dead-letters", asks=DeadLetters.letters, errors=(InvalidRequest, CorruptBlock))
async def list_dead_letters(call: Call, query: DeadLettersQuery) -> list[DeadLetter]:
    """Return the dead letters of a topic that were not replayed, oldest first."""
    letters = await call.broker.dead_letters.letters(call.principal, call.path["topic"], query.limit)
    return [_letter(each, query.cell_bytes) for each in letters]


@endpoint(
    "GET",
    "/topics/{topic}/dead-letters/{letter}",
    asks=DeadLetters.letter,
    errors=(InvalidRequest, TopicNotFound, EntryNotFound, CorruptBlock),
)
async def get_dead_letter(call: Call) -> DeadLetter:
    """Return one dead letter in full."""
    return _letter(await call.broker.dead_letters.letter(call.principal, call.path["topic"], call.path["letter"]), None)


def _letter(letter: Letter, cell_bytes: int | None) -> DeadLetter:
    return DeadLetter(
        letter.id,
        letter.reason,
        letter.attempts,
        cell(letter.key, cell_bytes),
        cell(letter.value, cell_bytes),
        shown_headers(letter.headers, cell_bytes),
        letter.origin_partition,
        letter.origin_offset,
        letter.first_failed_ms,
        letter.failed_ms,
    )


@endpoint(
    "POST",
    "/topics/{topic}/dead-letters/replay",
    asks=DeadLetters.replay_all,
    errors=(InvalidRequest, TopicNotFound, EntryNotFound, RecordTooLarge, ValidationFailed),
)
async def replay_dead_letters(call: Call, body: Replay) -> Replayed:
    """Write dead letters to their topic again: one, as it is or edited, those that match a filter, or all."""
    dead_letters, topic = call.broker.dead_letters, call.path["topic"]
    if body.id:
        if body.filter or body.dry_run:
            raise InvalidRequest("one dead letter is replayed by its id alone: leave filter and dry_run out")
        edit = None if body.record is None else partial(_edited, body.record)
        await dead_letters.replay(call.principal, topic, body.id, edit)
        return Replayed(1, applied=True)
    if body.record is not None:
        raise InvalidRequest("a record is edited for one dead letter: give its id too")
    wanted = await _wanted(call, body.filter) if body.filter else None
    count = await dead_letters.replay_all(call.principal, topic, wanted, dry_run=body.dry_run)
    return Replayed(count, not body.dry_run)


def _edited(record: EditedRecord, letter: Letter) -> Letter:
    return replace(
        letter,
        value=_given(record.value, record.value_base64, "value", letter.value),
        key=_given(record.key, record.key_base64, "key", letter.key),
        headers=letter.headers if isinstance(record.headers, UnsetType) else given_headers(record.headers),
    )


def _given(text: str | UnsetType | None, encoded: str | UnsetType, what: str, otherwise: bytes | None) -> bytes | None:
    if text is UNSET and encoded is UNSET:
        return otherwise
    given_text = None if isinstance(text, UnsetType) else text
    return given_bytes(given_text, None if isinstance(encoded, UnsetType) else encoded, what)


async def _wanted(call: Call, text: str) -> Wanted:
    """A letter is wanted for its record or for its reason."""
    record_filter = await call.worker().run(lambda _: RecordFilter(text))

    def wanted(letter: Letter, check: Check) -> bool:
        return record_filter.matches(letter.key, letter.value, letter.headers, check) or record_filter.matches_text(
            letter.reason.encode(), check
        )

    return wanted


@endpoint("DELETE", "/topics/{topic}/dead-letters", asks=DeadLetters.purge)
async def purge_dead_letters(call: Call) -> None:
    """Delete the dead letters of a topic for good."""
    await call.broker.dead_letters.purge(call.principal, call.path["topic"])

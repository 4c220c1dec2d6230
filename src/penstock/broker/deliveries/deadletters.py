"""Dead letters: records that could not be processed, kept with failure metadata, to be listed, replayed or purged.

Topic `orders` has its dead letters in the topic `orders.dlq`, made when the first one comes: a topic like any other, that every protocol
can read. `append` is the one way in for subscriptions: a single append of the letter and of whatever marks the record as settled where it
came from.

A replay is a single append too: the record to its topic, with its own key and headers, and a mark in the table `__deadletters`. So it
happens once, however often it is requested, through any crash. A mark is a bit, 4 096 letters to an entry of the table; marked letters are
not listed any more, and go with their topic: by retention, or by a purge. If the log of a dead-letter topic lost its tail in a crash, so
do the marks, because other letters will have those offsets.

Letters are always replayed to the topic that owns the dead-letter topic, whatever they say: who may write to it was asked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from penstock.background import run_to_completion
from penstock.broker.access.checks import Operation, Principal, on_topic
from penstock.broker.deliveries.deadletter_entries import DeadLetter, FailedRecord, failure_headers, letters_of
from penstock.broker.keyed_locks import KeyedLocks
from penstock.broker.part import Context, Part
from penstock.broker.records.producer import ANY_PARTITION, Producer
from penstock.broker.schemas.validation import Validation
from penstock.broker.table import PreparedChange, Table, appended_together
from penstock.errors import EntryNotFound, InvalidRequest, TopicNotFound
from penstock.log.api import Batch, BatchFor, TopicInfo, follow_all
from penstock.names import NAME_BYTES_MAX
from penstock.workers import Check

DEADLETTERS_TOPIC: Final = "__deadletters"
SUFFIX: Final = ".dlq"
LETTERS_PER_MARK: Final = 4096
# One reply, and one append of a replay of many.
LETTERS_MAX: Final = 10_000
LETTERS_BYTES_MAX: Final = 8 << 20
REPLAY_LETTERS_MAX: Final = 1_000
REPLAY_BYTES_MAX: Final = 4 << 20
_MARKS_PER_APPEND_MAX: Final = 4096


class MarkKey(NamedTuple):
    topic_id: str
    partition: int
    chunk: int
    """Offsets `chunk * LETTERS_PER_MARK` and on."""


@dataclass(slots=True)
class DeadLetterStats:
    """Plain numbers, exported on scrape."""

    sent: int = 0
    replayed: int = 0


Wanted = Callable[[DeadLetter, Check], bool]
"""Whether a dead letter is wanted. Called in a worker thread; if it takes long, it calls the check between its steps (workers.py)."""


class DeadLetters(Part):
    def __init__(
        self,
        context: Context,
        producer: Producer,
        validation: Validation,
        *,
        ensure_topic: Callable[[str], Awaitable[None]],
        delete_topic: Callable[[Principal, str], Awaitable[None]],
    ) -> None:
        super().__init__(context)
        self.stats = DeadLetterStats()
        self._producer = producer
        self._validation = validation
        self._ensure_topic = ensure_topic
        self._delete_topic = delete_topic
        self._marks = Table(
            self._engine,
            DEADLETTERS_TOPIC,
            MarkKey,
            bytes,
            entries_max=self._limits.dead_letter_marks_max,
            limit="limits.dead_letter_marks_max",
            background=self.background,
        )
        self._changing: KeyedLocks[str] = KeyedLocks()
        """By topic: a mark is read, changed and written by one replay or purge at a time."""

    async def start(self) -> None:
        """Load the marks, and remove those of letters that are gone: with their topic, or because its log lost its tail."""
        await self._marks.load()
        names = {info.id: info.name for info in self._engine.topics().values()}
        changes: list[tuple[MarkKey, bytes | None]] = []
        for key, bits in list(self._marks.items()):
            if key.topic_id not in names:
                changes.append((key, None))
                continue
            handle = self._engine.partition(names[key.topic_id], key.partition)
            await follow_all([handle])
            end = handle.committed_end
            kept = _marks_before(bits, end - key.chunk * LETTERS_PER_MARK)
            if kept != bits:
                changes.append((key, kept))
        await self._change_marks(changes)

    async def close(self) -> None:
        await self._marks.close()

    # -- putting aside ----------------------------------------------------------------------------------------------------

    async def ensure_topics(self, failed: Sequence[FailedRecord]) -> None:
        """Create the dead-letter topics of these records where they are missing."""
        for name in {dead_letter_topic(record.topic) for record in failed}:
            await self._ensure_topic(name)

    async def append(self, failed: Sequence[FailedRecord], changes: Sequence[PreparedChange[Any, Any]] = ()) -> None:
        """Append records to the dead-letter topics of their topics, together with changes of tables: all or nothing.

        For the broker itself: the caller has checked the rights. Raises TopicNotFound if a dead-letter topic does not exist, which
        a purge may cause. After OutcomeUnknown only a restart can tell whether it happened; after any other error it did not.
        """
        by_topic: dict[str, list[FailedRecord]] = {}
        for record in failed:
            by_topic.setdefault(dead_letter_topic(record.topic), []).append(record)
        parts = [
            BatchFor(
                self._engine.partition(name, 0),
                Batch(
                    [record.value for record in records],
                    [record.key for record in records],
                    [failure_headers(record) for record in records],
                ),
            )
            for name, records in by_topic.items()
        ]
        await appended_together(self._engine, parts, changes)
        self.stats.sent += len(failed)

    # -- operations -------------------------------------------------------------------------------------------------------

    @on_topic(Operation.READ)
    async def letters(self, principal: Principal, topic: str, count_max: int) -> list[DeadLetter]:
        """The dead letters of a topic that were not replayed, oldest first; fewer than asked for where they are many or large.

        None if the topic has no dead-letter topic.
        """
        found: list[DeadLetter] = []
        size_bytes = 0
        async with aclosing(self._unreplayed(topic)) as unreplayed:
            async for letter in unreplayed:
                size_bytes += letter.size_bytes
                if found and size_bytes > LETTERS_BYTES_MAX:
                    break
                found.append(letter)
                if len(found) >= min(count_max, LETTERS_MAX):
                    break
        return found

    @on_topic(Operation.READ)
    async def letter(self, principal: Principal, topic: str, letter_id: str) -> DeadLetter:
        """Return one dead letter that was not replayed. Raises EntryNotFound if none is listed under this id."""
        return await self._find(topic, letter_id)

    @on_topic(Operation.WRITE)
    @run_to_completion
    async def replay(
        self, principal: Principal, topic: str, letter_id: str, edit: Callable[[DeadLetter], DeadLetter] | None = None
    ) -> DeadLetter:
        """Write a dead letter's record to its topic again, edited if asked for. Raises EntryNotFound if none is listed under this id.

        A record with another key goes to the partition of that key.
        """
        async with self._changing.of(topic):
            letter = await self._find(topic, letter_id)
            if edit is not None:
                edited = edit(letter)
                letter = edited if edited.key == letter.key else replace(edited, origin_partition=None)
            await self._replay(topic, [letter])
        return letter

    @on_topic(Operation.WRITE)
    @run_to_completion
    async def replay_at(self, principal: Principal, topic: str, offset: int, partition: int = 0) -> DeadLetter:
        """The same for the dead letter at an offset of the dead-letter topic."""
        async with self._changing.of(topic):
            letter = await self._letter_at(topic, partition, offset)
            if letter is None:
                raise _not_listed(topic, f"offset {offset}")
            await self._replay(topic, [letter])
        return letter

    @on_topic(Operation.WRITE)
    @run_to_completion
    async def replay_all(
        self, principal: Principal, topic: str, wanted: Wanted | None = None, *, dry_run: bool = False
    ) -> int:
        """Replay every dead letter that was there at the call, or those wanted; returns how many. A dry run only counts.

        `wanted` is asked in a worker thread, which a stop of the broker ends with ShuttingDown. Letters that the topic does not take (its
        schema refuses them) stay listed and keep no others from being replayed; if it takes none, the first refusal is raised.
        """
        replayed = size_bytes = 0
        batch: list[DeadLetter] = []
        refusals: list[InvalidRequest] = []
        worker = self._workers.worker()

        async def replay_batch() -> int:
            chosen = batch if wanted is None else await worker.run(partial(_filtered, wanted, batch))
            if not chosen or dry_run:
                return len(chosen)
            try:
                await self._replay(topic, chosen)
            except InvalidRequest:
                chosen = await self._acceptable(topic, chosen, refusals)
                if chosen:
                    await self._replay(topic, chosen)
            return len(chosen)

        async with self._changing.of(topic), aclosing(self._unreplayed(topic)) as unreplayed:
            async for letter in unreplayed:
                batch.append(letter)
                size_bytes += letter.size_bytes
                if len(batch) == REPLAY_LETTERS_MAX or size_bytes >= REPLAY_BYTES_MAX:
                    replayed += await replay_batch()
                    batch, size_bytes = [], 0
            replayed += await replay_batch()
        if refusals and not replayed:
            raise refusals[0]
        return replayed

    @on_topic(Operation.DELETE)
    @run_to_completion
    async def purge(self, principal: Principal, topic: str) -> None:
        """Delete all dead letters of a topic. One without any is no error."""
        async with self._changing.of(topic):
            info = self._dead_letter_topic(topic)
            if info is not None:
                await self._delete_topic(principal, info.name)
                await self._change_marks([(key, None) for key, _ in self._marks.items() if key.topic_id == info.id])

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _dead_letter_topic(self, topic: str) -> TopicInfo | None:
        return self._engine.topics().get(dead_letter_topic(topic))

    def _existing(self, topic: str) -> TopicInfo:
        info = self._dead_letter_topic(topic)
        if info is None:
            raise TopicNotFound(f"topic not found: {dead_letter_topic(topic)} (topic {topic} has no dead letters)")
        return info

    async def _unreplayed(self, topic: str) -> AsyncGenerator[DeadLetter, None]:
        """Every letter that is there now and not marked."""
        info = self._dead_letter_topic(topic)
        if info is None:
            return
        now_ms = self._clock.now_ms()
        handles = self._engine.partitions(info)
        await follow_all(handles)
        for handle, end in [(handle, handle.committed_end) for handle in handles]:
            offset = handle.start_offset
            while offset < end:
                chunk = offset // LETTERS_PER_MARK
                if self._marks.get(MarkKey(info.id, handle.index, chunk)) == _ALL_MARKED:
                    offset = (chunk + 1) * LETTERS_PER_MARK
                    continue
                blocks = await handle.read(max(offset, handle.start_offset))
                if not blocks:
                    break
                for block in blocks:
                    for letter in letters_of(block, handle.index, block.index_of(offset), now_ms):
                        if letter.offset < end and not self._is_marked(info, letter):
                            yield letter
                    offset = block.next_offset

    async def _letter_at(self, topic: str, partition: int, offset: int) -> DeadLetter | None:
        """The letter in one place, None if there is none or it was replayed."""
        info = self._existing(topic)
        if not 0 <= partition < info.config.partitions:
            return None
        handle = self._engine.partition(info.name, partition)
        await follow_all([handle])
        if not handle.start_offset <= offset < handle.committed_end:
            return None
        blocks = await handle.read(offset, 1)
        now_ms = self._clock.now_ms()
        letter = next((each for b in blocks for each in letters_of(b, partition, b.index_of(offset), now_ms)), None)
        if letter is None or letter.offset != offset or self._is_marked(info, letter):
            return None
        return letter

    async def _find(self, topic: str, letter_id: str) -> DeadLetter:
        place = _parse_place(letter_id)
        if place is not None:
            letter = await self._letter_at(topic, *place)
            if letter is not None and letter.id == letter_id:
                return letter
        self._existing(topic)
        async with aclosing(self._unreplayed(topic)) as unreplayed:
            async for letter in unreplayed:
                if letter.id == letter_id:
                    return letter
        raise _not_listed(topic, letter_id)

    async def _acceptable(
        self, topic: str, letters: Sequence[DeadLetter], refusals: list[InvalidRequest]
    ) -> list[DeadLetter]:
        """The letters that the topic takes. Adds the first refusal to `refusals` if that is empty."""
        acceptable = []
        for letter in letters:
            try:
                await self._placed(topic, [letter])
            except InvalidRequest as error:
                if not refusals:
                    refusals.append(error)
            else:
                acceptable.append(letter)
        return acceptable

    async def _placed(self, topic: str, letters: Sequence[DeadLetter]) -> list[BatchFor]:
        """The records of these letters, by the partition that each is replayed to. Raises if the topic does not take one of them."""
        origin = self._engine.topics().get(topic)
        if origin is None:
            raise TopicNotFound(f"topic not found: {topic} (its dead letters can be replayed once it exists again)")
        batch = Batch(
            [letter.value for letter in letters],
            [letter.key for letter in letters],
            [letter.headers for letter in letters],
        )
        if self._validation.applies_to(topic):
            batch = await self._validation.check(topic, None, batch)
        asked = [
            ANY_PARTITION
            if letter.origin_partition is None or letter.origin_partition >= origin.config.partitions
            else letter.origin_partition
            for letter in letters
        ]
        rows: dict[int, list[int]] = {}
        for row, index in enumerate(self._producer.place(topic, asked, batch).partitions):
            rows.setdefault(index, []).append(row)
        return [
            BatchFor(self._engine.partition(topic, index), _rows_of(batch, chosen)) for index, chosen in rows.items()
        ]

    async def _replay(self, topic: str, letters: Sequence[DeadLetter]) -> None:
        info = self._existing(topic)
        parts = await self._placed(topic, letters)
        await appended_together(self._engine, parts, [self._marks.prepare(self._marked(info, letters))])
        self.stats.replayed += len(letters)

    # -- marks ------------------------------------------------------------------------------------------------------------

    def _is_marked(self, info: TopicInfo, letter: DeadLetter) -> bool:
        chunk, bit = divmod(letter.offset, LETTERS_PER_MARK)
        bits = self._marks.get(MarkKey(info.id, letter.partition, chunk))
        return bits is not None and bool(bits[bit // 8] >> bit % 8 & 1)

    def _marked(self, info: TopicInfo, letters: Sequence[DeadLetter]) -> list[tuple[MarkKey, bytes | None]]:
        """The marks with these letters in them."""
        marks: dict[MarkKey, bytearray] = {}
        for letter in letters:
            chunk, bit = divmod(letter.offset, LETTERS_PER_MARK)
            key = MarkKey(info.id, letter.partition, chunk)
            if key not in marks:
                marks[key] = bytearray(self._marks.get(key) or bytes(LETTERS_PER_MARK // 8))
            marks[key][bit // 8] |= 1 << bit % 8
        return [(key, bytes(bits)) for key, bits in marks.items()]

    async def _change_marks(self, changes: Sequence[tuple[MarkKey, bytes | None]]) -> None:
        for first in range(0, len(changes), _MARKS_PER_APPEND_MAX):
            await self._marks.change(changes[first : first + _MARKS_PER_APPEND_MAX])


_ALL_MARKED: Final = b"\xff" * (LETTERS_PER_MARK // 8)


def _marks_before(bits: bytes, count: int) -> bytes | None:
    """Return marks without those of letter `count` and after it; None if none are left."""
    if count >= LETTERS_PER_MARK:
        return bits
    kept = int.from_bytes(bits, "little") & ((1 << max(count, 0)) - 1)
    return kept.to_bytes(len(bits), "little") if kept else None


def dead_letter_topic(topic: str) -> str:
    """`orders.dlq` for `orders`. A name that would be too long is cut, and a hash of the whole of it tells it from others."""
    name = topic + SUFFIX
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    digest = "~" + blake2b(topic.encode(), digest_size=8).hexdigest()
    kept_bytes = NAME_BYTES_MAX - len(digest) - len(SUFFIX)
    return topic.encode()[:kept_bytes].decode(errors="ignore").rstrip("/") + digest + SUFFIX


def _rows_of(batch: Batch, rows: Sequence[int]) -> Batch:
    values, keys, headers = batch.values, batch.keys, batch.headers
    assert keys is not None
    assert headers is not None
    return Batch([values[row] for row in rows], [keys[row] for row in rows], [headers[row] for row in rows])


def _parse_place(letter_id: str) -> tuple[int, int] | None:
    partition, dash, offset = letter_id.partition("-")
    if not dash or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (partition, offset)):
        return None
    return int(partition), int(offset)


def _filtered(wanted: Wanted, letters: Sequence[DeadLetter], check: Check) -> list[DeadLetter]:
    chosen = []
    for letter in letters:
        check()
        if wanted(letter, check):
            chosen.append(letter)
    return chosen


def _not_listed(topic: str, what: str) -> EntryNotFound:
    return EntryNotFound(f"message not found: topic {topic} has no dead letter {what}; it may have been replayed")

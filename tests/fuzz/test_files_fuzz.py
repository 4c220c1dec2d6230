"""Files of a data directory with anything in them: read, rebuilt or refused by name, and no error but the documented ones.

Blocks have a file of their own (test_block_fuzz.py); what a start does with damage in any place is in tests/log/embedded.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.broker.tables import TABLES, TableRecords
from penstock.errors import CorruptMetadata, UnsupportedFormat
from penstock.log.api import Batch, TopicConfig, TopicInfo
from penstock.log.appending import start_append
from penstock.log.block import Block, BlockHeader, encode_block
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.epochs import Epochs
from penstock.log.embedded.index import HEAD_BYTES, SegmentIndex
from penstock.log.embedded.journal import JournalEntry
from penstock.log.embedded.manifest import (
    MANIFEST_FILE,
    FileEntry,
    Manifest,
    TopicEntry,
    encode_manifest,
    read_manifest,
)
from penstock.log.embedded.topicfiles import StoredTopic, TopicFiles, _encode
from penstock.log.salts import METADATA_COPY, METADATA_FILE
from penstock.testing.clock import ManualClock
from tests.log.embedded.test_journal import journal_of, read
from tests.log.records import read_from

Change = tuple[int, int]
CHANGES: st.SearchStrategy[list[Change]] = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 65), 1 << 65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


def changed(data: bytes, changes: list[Change]) -> bytes:
    damaged = bytearray(data)
    for at, byte in changes:
        damaged[at % len(damaged)] = byte
    return bytes(damaged)


def with_fields(data: bytes, fields: list[tuple[list[str], Any]]) -> bytes:
    """A metadata file with other values in some places, under a right checksum."""
    body = json.loads(data.partition(b"\n")[2])
    for path, value in fields:
        place = body
        for name in path[:-1]:
            place = place[name] if isinstance(place, dict) and isinstance(place.get(name), dict) else body
        place[path[-1]] = value
    text = json.dumps(body).encode()
    return b"%08x\n%s\n" % (google_crc32c.value(text), text)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New directories."""
    root = tmp_path_factory.mktemp("files")

    def made() -> Iterator[Path]:
        for number in count():
            directory = root / str(number)
            directory.mkdir()
            yield directory

    return made()


# --- the index of a segment ---


def index_of(sizes: list[int]) -> SegmentIndex:
    index, position = SegmentIndex(5), 0
    for size in sizes:
        block = encode_block(index.next_offset, index.last_timestamp_ms + 1, [bytes(size)])
        index.add(BlockHeader(block), position)
        position += len(block)
    return index


@given(st.lists(st.sampled_from([1, 100, 40_000, 70_000]), max_size=6), CHANGES, st.integers(0, 200))
def test_an_index_is_read_as_it_was_written_or_not_at_all(sizes: list[int], changes: list[Change], cut: int) -> None:
    index = index_of(sizes)
    whole = index.encode()
    data = changed(whole, changes)[: len(whole) - cut % (len(whole) + 1)]
    found = SegmentIndex.decode_head(data, 5)
    if found is None:
        assert data[:HEAD_BYTES] != whole[:HEAD_BYTES]
        return
    assert (found.covers, found.next_offset, found.blocks) == (index.covers, index.next_offset, index.blocks)
    assert found.load_entries(data) == (data == whole)
    if found.loaded:
        assert found.rows() == index.rows()


@given(st.binary(max_size=200))
def test_any_bytes_are_no_index(data: bytes) -> None:
    assert SegmentIndex.decode_head(data, 0) is None


# --- the metadata of a topic ---

TOPIC = StoredTopic(
    TopicInfo("orders", "0f" * 8, TopicConfig(partitions=2), 1_700_000_000_000),
    bytes(16),
    Epochs().begun([3, 4], 1_700_000_000_000),
)


@settings(max_examples=200)
@given(CHANGES, CHANGES)
def test_a_topic_is_read_from_either_copy_or_refused_by_its_directory(
    directories: Iterator[Path], changes: list[Change], changes_of_copy: list[Change]
) -> None:
    root = next(directories)
    directory = root / f"orders.{TOPIC.info.id}"
    directory.mkdir()
    good = _encode(TOPIC)
    copies = changed(good, changes), changed(good, changes_of_copy)
    for name, data in zip((METADATA_FILE, METADATA_COPY), copies, strict=True):
        (directory / name).write_bytes(data)
    files = TopicFiles(Disk(), root)
    files.check_format()
    if good in copies:
        assert files.load_all() == [TOPIC]
    else:
        with pytest.raises(CorruptMetadata, match=re.escape(str(directory))):
            files.load_all()
        assert ((directory / METADATA_FILE).read_bytes(), (directory / METADATA_COPY).read_bytes()) == copies


# --- the manifest of a backup ---

MANIFEST = Manifest(
    1,
    "backup-1",
    1_700_000_000_000,
    [TopicEntry("orders", "0f0f", [0], [9])],
    [FileEntry("topics/orders.0f0f/topic.json", 300)],
)
MANIFEST_FIELDS = st.sampled_from([["format"], ["id"], ["moment_ms"], ["topics"], ["files"], ["unknown"]])
PATHS = st.sampled_from(["topics/a", "../a", "topics/../../a", "/etc/a", "", "topics", "topics/a\0b"]) | NAMES


@settings(max_examples=200)
@given(
    CHANGES,
    st.lists(st.tuples(MANIFEST_FIELDS, JSON), max_size=2),
    st.lists(st.fixed_dictionaries({"path": PATHS, "bytes": st.integers(-5, 5)}), max_size=2),
    st.booleans(),
)
@example(changes=[], fields=[], files=[{"path": "topics/a\0b", "bytes": 0}], summed=True)
def test_a_manifest_is_read_or_refused_and_names_no_file_elsewhere(
    directories: Iterator[Path],
    changes: list[Change],
    fields: list[tuple[list[str], Any]],
    files: list[dict[str, Any]],
    summed: bool,
) -> None:
    directory = next(directories)
    good = encode_manifest(MANIFEST)
    data = with_fields(good, [(["files"], files), *fields]) if summed else changed(good, changes)
    (directory / MANIFEST_FILE).write_bytes(data)
    try:
        found = read_manifest(directory)
    except (CorruptMetadata, UnsupportedFormat):
        return
    assert found is not None
    assert all((directory / file.path).resolve().is_relative_to(directory / "topics") for file in found.files)


# --- the journal ---


ENTRIES = st.builds(
    lambda partition, base, position, data: JournalEntry(bytes(16), partition, base, position, data),
    *[st.integers(0, 9)] * 3,
    st.binary(max_size=40),
)


@given(st.lists(st.lists(ENTRIES, min_size=1, max_size=3), max_size=4), CHANGES, st.binary(max_size=60))
def test_a_journal_gives_records_that_were_written_in_their_order(
    written: list[list[JournalEntry]], changes: list[Change], tail: bytes
) -> None:
    whole = journal_of(*written)
    assert read(whole) == (written, [])
    found, _ = read(changed(whole, changes) + tail)
    rest = iter(written)
    assert all(entries in rest for entries in found), "a record that was not written, or out of order"


# --- records of tables ---


@settings(max_examples=200)
@given(st.sampled_from(sorted(TABLES)), st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=60) | JSON)
@example(topic="__acls", key=b"\xa1\x80", value=None)
def test_any_record_of_a_table_is_good_or_its_fault_is_told(topic: str, key: bytes | None, value: Any) -> None:
    data = value if value is None or isinstance(value, bytes) else encoded(value)
    fault = TableRecords().fault(topic, Block(encode_block(7, 0, [data], [key])))
    assert fault is None or f"table {topic}: the record at offset 7 " in fault


def encoded(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:
        return b""


# --- a segment ---


@settings(max_examples=20)
@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=4), st.binary(min_size=1, max_size=300))
def test_what_was_acknowledged_is_there_whatever_was_written_after_it(
    directories: Iterator[Path], values: list[bytes], tail: bytes
) -> None:
    directory = next(directories)

    async def write() -> None:
        engine = EmbeddedEngine(directory, clock=ManualClock())
        await engine.start()
        await engine.create_topic("orders", TopicConfig())
        for value in values:
            await start_append(engine.partition("orders", 0), Batch([value]))
        await engine.close()

    async def reopen() -> None:
        engine = EmbeddedEngine(directory, clock=ManualClock())
        await engine.start()
        partition = engine.partition("orders", 0)
        assert partition.committed_end == len(values)
        assert [record.value for record in await read_from(partition, 0)] == values
        await engine.close()

    asyncio.run(write())
    (segment,) = directory.glob("topics/orders.*/0/*.log")
    with segment.open("ab") as file:
        file.write(tail)
    asyncio.run(reopen())

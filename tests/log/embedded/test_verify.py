"""What a check of a data directory finds, and that it changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import DataDirectoryInUse, InvalidRequest, UnsupportedFormat
from penstock.log.api import Batch, BatchFor, Durability, TopicConfig
from penstock.log.block import HEADER_BYTES
from penstock.log.embedded import EngineOptions
from penstock.log.embedded.findings import FINDINGS_MAX, Finding, Kind, Report, Severity
from penstock.log.embedded.journal import FIRST_RECORD_AT
from penstock.log.embedded.verify import verify
from penstock.log.salts import METADATA_COPY, METADATA_FILE, decode_metadata, encode_metadata
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.format_fixture import FIXTURES
from tests.log.embedded.storage import crash_image, files, partition_directory, partition_of, segment_files, settled
from tests.log.embedded.test_engine_fixtures import unpacked
from tests.log.records import append, read_values, start_atomic_append
from tests.log.storage import fill, make_partition

FLIP_EVERY_BYTES = 31
SMALL = TopicConfig(segment_bytes=400)


def damage(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is Severity.DAMAGE]


def notes(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is Severity.NOTE]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A directory after a clean stop, with a bit of everything."""
    directory = unpacked(FIXTURES / "format-2-clean.tar.gz", tmp_path / "clean")
    (directory / "expected.json").unlink()
    return directory


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    directory = unpacked(FIXTURES / "format-2-crashed.tar.gz", tmp_path / "crashed")
    (directory / "expected.json").unlink()
    return directory


def test_a_directory_after_a_clean_stop_has_no_findings(clean: Path) -> None:
    report = verify(clean)
    assert report.findings == []
    counted = {each.topic: (each.partitions, each.records) for each in report.topics}
    assert counted == {"größe/of things": (2, 12), "loose": (1, 6), "plain": (1, 24), "table": (1, 5), "zstd": (1, 12)}


def test_what_a_crash_leaves_is_noted_and_is_no_damage(crashed: Path) -> None:
    report = verify(crashed)
    assert damage(report) == []
    [torn] = notes(report)
    assert torn.kind is Kind.SEGMENT
    assert torn.topic == "zstd"
    assert torn.position == segment_end(clean_twin(crashed), "zstd")


def clean_twin(crashed: Path) -> Path:
    return unpacked(FIXTURES / "format-2-clean.tar.gz", crashed.with_name("twin"))


def segment_end(data_dir: Path, topic: str) -> int:
    return segment_files(data_dir, topic)[-1].stat().st_size


@pytest.mark.parametrize("name", ["clean", "crashed"])
def test_nothing_is_changed(request: pytest.FixtureRequest, name: str) -> None:
    directory: Path = request.getfixturevalue(name)
    for number, path in enumerate(sorted(directory.rglob("*.log"))):
        if number % 2:
            flip(path, path.stat().st_size // 2)

    def state() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_mode) for path in directory.rglob("*")}

    before = files(directory), state()
    assert damage(verify(directory))
    assert (files(directory), state()) == before


def test_a_flipped_bit_anywhere_after_a_clean_stop_is_found_in_its_file(clean: Path, tmp_path: Path) -> None:
    missed = []
    for path in sorted(clean.rglob("*")):
        if not path.is_file() or path.name in ("LOCK", "clean-shutdown"):
            continue
        sound = path.read_bytes()
        for position in range(0, len(sound), FLIP_EVERY_BYTES):
            flip(path, position)
            found = damage(verify(clean))
            path.write_bytes(sound)
            if not any(clean / each.path == path and is_near(each, position) for each in found):
                missed.append((path.name, position, found))
    assert missed == []


def is_near(finding: Finding, position: int) -> bool:
    """Whether a finding names the place of a flipped bit: what it is in begins there or before."""
    return finding.position is not None and finding.position <= position


def test_damage_in_a_segment_is_named_with_its_position_and_its_offsets(clean: Path) -> None:
    [path, *_] = segment_files(clean, "loose")
    block_bytes = path.stat().st_size // 6
    flip(path, 2 * block_bytes + HEADER_BYTES)
    [found] = damage(verify(clean))
    assert (clean / found.path, found.position) == (path, 2 * block_bytes)
    assert "offsets 2 to 2 cannot be read" in found.text


async def journaled(open_engine: OpenEngine, tmp_path: Path) -> Path:
    """An image of a crash after three appends to two partitions each, all in the journal."""
    engine = await open_engine()
    await engine.create_topic("pairs", TopicConfig(partitions=2))
    parts = [engine.partition("pairs", index) for index in (0, 1)]
    for number in range(3):
        await start_atomic_append(engine, [BatchFor(part, Batch([b"%d" % number])) for part in parts])
    return crash_image(tmp_path / "data", tmp_path / "image")


async def test_a_damaged_journal_is_named_with_its_position(open_engine: OpenEngine, tmp_path: Path) -> None:
    image = await journaled(open_engine, tmp_path)
    [journal] = (image / "journal").iterdir()
    assert verify(image).damage == 0
    flip(journal, FIRST_RECORD_AT + 40)
    [found] = damage(verify(image))
    assert (found.kind, image / found.path, found.position) == (Kind.JOURNAL, journal, FIRST_RECORD_AT)
    flip(journal, FIRST_RECORD_AT + 40)
    end = len(journal.read_bytes().rstrip(b"\0"))
    flip(journal, end - 1)
    report = verify(image)
    assert damage(report) == []
    assert [(each.kind, image / each.path) for each in notes(report)] == [(Kind.JOURNAL, journal)]


@pytest.mark.parametrize("commits", [1, 20])
@pytest.mark.parametrize("lost_at", [0, 4096])
async def test_a_journal_that_lost_a_sector_at_its_start_is_judged_alike_by_a_check_and_a_start(
    open_engine: OpenEngine, tmp_path: Path, lost_at: int, commits: int
) -> None:
    """What follows a lost record proves that it was there; of a first commit nobody can tell."""
    engine = await open_engine()
    await engine.create_topic("pairs", TopicConfig(partitions=2))
    parts = [engine.partition("pairs", index) for index in (0, 1)]
    for number in range(commits):
        await start_atomic_append(engine, [BatchFor(part, Batch([b"%d" % number * 300])) for part in parts])
    image = crash_image(tmp_path / "data", tmp_path / "image")
    for path in image.glob("topics/*/*/*.log"):
        path.write_bytes(b"")  # a power cut: only the journal was synced
    [journal] = (image / "journal").iterdir()
    data = bytearray(journal.read_bytes())
    data[lost_at : lost_at + 512] = bytes(512)
    journal.write_bytes(data)
    whole = commits if lost_at == 0 else commits - 1
    torn = commits == 1
    report = verify(image)
    assert bool(damage(report)) is not torn
    assert {finding.path for finding in report.findings if finding.kind is Kind.JOURNAL} == {f"journal/{journal.name}"}
    recovered = await open_engine(image)
    assert [path.suffix for path in (image / "journal").iterdir()] == ([] if torn else [".damaged"])
    for index in (0, 1):
        [path] = segment_files(image, "pairs", index)
        assert path.read_bytes().count(b"PnB2") == whole
    await recovered.close()


async def test_what_the_journal_will_put_back_is_not_missing(open_engine: OpenEngine, tmp_path: Path) -> None:
    image = await journaled(open_engine, tmp_path)
    # A power cut: the segments are not synced, so what they hold is not there.
    for index in (0, 1):
        [path] = segment_files(image, "pairs", index)
        path.write_bytes(b"" if index else bytes(path.stat().st_size))
    report = verify(image)
    assert report.findings == []
    assert [(each.topic, each.records) for each in report.topics] == [("pairs", 6)]
    recovered = await open_engine(image)
    assert await read_values(recovered.partition("pairs", 1)) == [b"0", b"1", b"2"]


async def test_a_torn_tail_is_noted_where_the_next_start_cuts_it(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    [path] = segment_files(crash_image(tmp_path / "data", tmp_path / "image"))
    whole = path.read_bytes().rstrip(b"\0")
    for cut in range(1, len(whole) // 5):
        path.write_bytes(whole[:-cut])
        report = verify(tmp_path / "image")
        assert damage(report) == []
        [torn] = notes(report)
        assert torn.position == len(whole) // 5 * 4
    recovered = await open_engine(tmp_path / "image")
    assert partition_of(recovered).writer.file.end == len(whole) // 5 * 4


async def test_a_commit_of_several_blocks_that_is_torn_does_not_count_in_part(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    engine = await open_engine(options=EngineOptions.model_construct(block_bytes_target=200))
    partition = await make_partition(engine)
    await append(partition, [b"whole"])
    begins = partition_of(engine).writer.file.end
    await append(partition, [b"v" * 150] * 4)
    image = crash_image(tmp_path / "data", tmp_path / "image")
    [path] = segment_files(image)
    path.write_bytes(path.read_bytes().rstrip(b"\0")[:-1])
    report = verify(image)
    assert [(each.severity, each.position) for each in report.findings] == [(Severity.NOTE, begins)]
    [topic] = report.topics
    assert (topic.ends, topic.records, topic.blocks, topic.bytes) == ([1], 1, 1, begins)
    recovered = await open_engine(image)
    assert recovered.partition("orders", 0).committed_end == 1


@pytest.mark.parametrize("position", [0, 70])
async def test_an_index_that_cannot_be_read_is_noted_after_a_crash_and_damage_after_a_clean_stop(
    clean: Path, position: int
) -> None:
    """A power cut may leave anything of an index."""
    [path, *_] = sorted(clean.glob("topics/plain.*/0/*.index"))
    flip(path, position)
    [found] = damage(verify(clean))
    assert clean / found.path == path
    (clean / "clean-shutdown").unlink()
    report = verify(clean)
    assert damage(report) == []
    assert [clean / each.path for each in notes(report)] == [path]


async def test_damage_before_a_later_commit_is_no_torn_tail(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    image = crash_image(tmp_path / "data", tmp_path / "image")
    [path] = segment_files(image)
    flip(path, HEADER_BYTES)
    [found] = damage(verify(image))
    assert found.position == 0


async def test_without_fsync_the_log_ends_before_the_first_block_that_is_not_whole(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, config=TopicConfig(durability=Durability("none"))))
    image = crash_image(tmp_path / "data", tmp_path / "image")
    flip(segment_files(image)[0], HEADER_BYTES)
    report = verify(image)
    assert (damage(report), [each.position for each in notes(report)]) == ([], [0])


async def test_after_a_clean_stop_the_last_commit_is_damaged_and_not_torn(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    await engine.close()
    [path] = segment_files(data_dir)
    flip(path, path.stat().st_size - 1)
    [found] = damage(verify(data_dir))
    assert found.position == path.stat().st_size // 5 * 4
    assert "no whole block follows, offsets from 12 on cannot be read" in found.text


def remove_first(segments: list[Path]) -> None:
    segments[1].unlink()
    segments[1].with_suffix(".index").unlink()


def cut_at_a_block(segments: list[Path]) -> None:
    data = segments[1].read_bytes()
    segments[1].write_bytes(data[: len(data) // 2])


def cut_with_its_index(segments: list[Path]) -> None:
    cut_at_a_block(segments)
    segments[1].with_suffix(".index").unlink()


def swap_two(segments: list[Path]) -> None:
    data = segments[1].read_bytes()
    segments[1].write_bytes(segments[2].read_bytes())
    segments[2].write_bytes(data)


def rename_one(segments: list[Path]) -> None:
    segments[1].rename(segments[1].with_name("00000000000000000999.log"))


def give_a_wrong_name(segments: list[Path]) -> None:
    segments[1].rename(segments[1].with_name("old.log"))


@pytest.mark.parametrize(
    "spoil", [remove_first, cut_at_a_block, cut_with_its_index, swap_two, rename_one, give_a_wrong_name]
)
async def test_segments_that_are_missing_cut_or_swapped_are_damage(
    open_engine: OpenEngine, data_dir: Path, spoil: Callable[[list[Path]], None]
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, config=SMALL), 12)
    await engine.close()
    assert verify(data_dir).findings == []
    spoil(segment_files(data_dir))
    assert verify(data_dir).damage


@pytest.mark.parametrize("written", [False, True])
async def test_a_partition_without_files_is_an_interrupted_creation_only_if_the_topic_was_never_written_to(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, written: bool
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig(partitions=2))
    if written:
        await append(engine.partition("orders", 0), [b"x"])
    image = crash_image(data_dir, tmp_path / "image")
    for path in partition_directory(image, "orders", 1).iterdir():
        path.unlink()
    [finding] = verify(image).findings
    assert (finding.severity is Severity.DAMAGE) is written
    assert finding.path.endswith("/1")
    assert (await open_engine(image)).partition("orders", 1).committed_end == 0


async def test_a_partition_and_a_topic_without_files_are_damage(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig(partitions=3))
    await engine.close()
    for path in partition_directory(data_dir, "orders", 0).iterdir():
        path.unlink()
    shutil.rmtree(partition_directory(data_dir, "orders", 1))
    texts = [finding.text for finding in damage(verify(data_dir))]
    assert texts == ["the partition has no segment", "the directory of a partition is missing"]


def test_one_bad_copy_of_metadata_is_damage_and_the_topic_is_still_checked(clean: Path) -> None:
    [path] = clean.glob(f"topics/plain.*/{METADATA_FILE}")
    flip(path, 30)
    report = verify(clean)
    assert [clean / each.path for each in damage(report)] == [path]
    assert "plain" in {each.topic for each in report.topics}


def test_two_bad_copies_of_metadata_are_damage_of_the_topic(clean: Path) -> None:
    [directory] = clean.glob("topics/plain.*")
    for name in (METADATA_FILE, METADATA_COPY):
        flip(directory / name, 30)
    found = damage(verify(clean))
    assert [clean / each.path for each in found] == [directory / METADATA_FILE, directory / METADATA_COPY, directory]


def test_a_topic_that_is_there_twice_or_under_another_name_is_damage(clean: Path) -> None:
    [directory] = clean.glob("topics/plain.*")
    twin = directory.with_name(f"plain.{'f' * 32}")
    shutil.copytree(directory, twin)
    assert [clean / each.path for each in damage(verify(clean)) if "renamed" in each.text] == [twin]
    for name in (METADATA_FILE, METADATA_COPY):
        metadata = decode_metadata((twin / name).read_bytes())
        (twin / name).write_bytes(encode_metadata({**metadata, "id": "f" * 32}))
    assert [clean / each.path for each in damage(verify(clean)) if "twice" in each.text] == [twin]


def test_copies_of_metadata_that_differ_are_noted(clean: Path) -> None:
    [path] = clean.glob(f"topics/plain.*/{METADATA_COPY}")
    path.write_bytes(encode_metadata({**decode_metadata(path.read_bytes()), "created_ms": 1}))
    report = verify(clean)
    assert damage(report) == []
    assert [each.kind for each in notes(report)] == [Kind.METADATA]


def test_leftovers_are_noted(clean: Path) -> None:
    directory = partition_directory(clean, "plain")
    leftovers = [
        directory / "00000000000000000000.cleaned",
        directory / "00000000000000000000.deleted",
        directory / "00000000000000000000.index.tmp",
        directory / "00000000000000000000.torn-at-12",
        directory / "00000000000000000777.index",
        directory.parent / "notes.txt",
        clean / "topics" / "gone.00.deleted",
        clean / "clean-shutdown.tmp",
    ]
    for path in leftovers:
        path.write_bytes(b"x")
    (clean / "certificate.pem").write_bytes(b"not of the log")
    report = verify(clean)
    assert damage(report) == []
    assert {clean / each.path for each in notes(report)} == set(leftovers)


async def test_an_interrupted_rewrite_counts_as_finished(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    values = await fill(await make_partition(engine, config=SMALL), 12, 1)
    await engine.maintain()
    await engine.close()
    merged = next(path for path in segment_files(data_dir) if "-" in path.stem)
    old = merged.with_name(merged.name.partition("-")[0] + ".log")
    shutil.copy(merged, old)  # not gone yet when the crash came
    merged.rename(merged.with_suffix(".swap"))
    report = verify(data_dir)
    assert damage(report) == []
    assert [each.path.rpartition(".")[2] for each in notes(report) if each.kind is Kind.FILE] == ["swap"]
    assert [each.records for each in report.topics] == [len(values)]


async def test_a_last_segment_that_nothing_was_written_to_is_no_gap(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    await engine.close()
    [path] = segment_files(data_dir)
    path.with_name("00000000000000000003.log").touch()
    assert damage(verify(data_dir)) == []
    path.with_name("00000000000000000003.log").rename(path.with_name("00000000000000000099.log"))
    assert len(damage(verify(data_dir))) == 1


async def test_records_are_handed_to_who_knows_them(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await append(await make_partition(engine), [b"good"])
    await append(engine.partition("orders", 0), [b"bad"])
    await engine.close()
    report = verify(
        data_dir, check_records=lambda topic, block: f"{topic} is bad" if block.values() == [b"bad"] else None
    )
    [found] = damage(report)
    assert (found.kind, found.text, found.topic) == (Kind.TABLE, "orders is bad", "orders")
    assert report.topics[0].damage == 1


async def test_progress_adds_up_to_what_was_read(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    await engine.close()
    steps: list[tuple[int, int]] = []
    verify(data_dir, on_progress=lambda size_bytes, records: steps.append((size_bytes, records)))
    assert sum(size_bytes for size_bytes, _ in steps) == segment_files(data_dir)[0].stat().st_size
    assert sum(records for _, records in steps) == 15


async def test_a_directory_in_use_is_refused(open_engine: OpenEngine, data_dir: Path) -> None:
    await settled(await open_engine())
    with pytest.raises(DataDirectoryInUse, match="penstock verify --server"):
        verify(data_dir)


def test_what_is_no_data_directory_or_of_another_format_is_refused(tmp_path: Path, clean: Path) -> None:
    with pytest.raises(InvalidRequest, match="not a Penstock data directory"):
        verify(tmp_path)
    [path] = clean.glob(f"topics/plain.*/{METADATA_FILE}")
    path.write_bytes(encode_metadata({**decode_metadata(path.read_bytes()), "version": 9}))
    with pytest.raises(UnsupportedFormat, match="format 9"):
        verify(clean)


def test_findings_are_bounded_and_all_are_counted() -> None:
    report = Report("there")
    for _ in range(FINDINGS_MAX + 5):
        report.add(Finding(Severity.DAMAGE, Kind.SEGMENT, "x", 0, "bad"))
    assert (len(report.findings), report.damage) == (FINDINGS_MAX, FINDINGS_MAX + 5)

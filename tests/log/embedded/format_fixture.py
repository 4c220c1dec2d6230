"""Writes the data directories that every later version must open: `python -m tests.log.embedded.format_fixture`.

One archive for each way to stop, in `tests/log/fixtures`, named after the format; with the records that it holds, in `expected.json`.
Run it when the format gets a new version, or something is added to it; archives that are there already stay as they are.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from penstock.log.api import Appended, Batch, BatchFor, Durability, LateBatch, Partition, TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.salts import FORMAT
from penstock.record_headers import encode_headers
from penstock.testing.clock import ManualClock
from tests.log.embedded.storage import crash_image, everything, segment_files
from tests.log.records import Record, append, start_atomic_append

FIXTURES = Path(__file__).parents[1] / "fixtures"
OPTIONS = EngineOptions.model_construct(
    reserve_bytes=0, maintenance_interval_s=3600, block_bytes_target=600, compact_dirty_ratio=0.0
)
NEVER_MS = 1 << 45
STOPS = ("clean", "crashed", "crashed-late")
"""The last one has late records in its journal, which were added to format 2."""


async def write(engine: EmbeddedEngine, clock: ManualClock) -> None:
    """A bit of everything that the format has."""
    await engine.create_topic("plain", TopicConfig(segment_bytes=900))
    await engine.create_topic("zstd", TopicConfig(compression="zstd"))
    await engine.create_topic("größe/of things", TopicConfig(partitions=2))
    await engine.create_topic("table", TopicConfig(cleanup="compact", segment_bytes=900))
    await engine.create_topic("loose", TopicConfig(durability=Durability("none")))
    headers = encode_headers([("trace", b"\x01\x02"), ("none", None)])
    for number in range(6):
        clock.advance(1)
        key = b"key-%d" % (number % 2)
        await append(
            engine.partition("plain", 0),
            [b"%d" % number, None, b"", b"v" * 100 * number],
            [key, None, b"", key],
            [headers, None, None, None],
            [0, NEVER_MS, 0, 0],
        )
        await append(engine.partition("zstd", 0), [b"compress me " * 40])
        await append(engine.partition("table", 0), [b"value %d " % number + b"v" * 200], [key])
        await append(engine.partition("loose", 0), [b"%d" % number])
        parts = [BatchFor(engine.partition("größe/of things", index), Batch([b"%d" % number])) for index in (0, 1)]
        await start_atomic_append(engine, parts)
    await append(engine.partition("zstd", 0), [b"a commit of several blocks %d " % row * 10 for row in range(6)])
    await engine.maintain()


async def write_late(engine: EmbeddedEngine) -> None:
    """Late records that only the journal has, one of them replaced by another."""
    plain, table = engine.partition("plain", 0), engine.partition("table", 0)
    for number in range(3):
        key = b"late-%d" % (number % 2)

        def told(places: Mapping[Partition, Appended]) -> bytes:
            return b"at %d" % places[plain].base_offset

        await start_atomic_append(
            engine, [BatchFor(plain, Batch([b"told"])), BatchFor(table, LateBatch(key, told, 50))]
        )


def as_json(records: dict[tuple[str, int], list[Record]]) -> str:
    def text(cell: bytes | None) -> str | None:
        return None if cell is None else cell.hex()

    plain = {
        f"{topic} {index}": [
            [each.offset, each.timestamp_ms, text(each.key), text(each.value), text(each.headers), each.expiry_ms]
            for each in found
        ]
        for (topic, index), found in records.items()
    }
    return json.dumps(plain, indent=1)


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


async def make(directory: Path, stop: str) -> None:
    """Write one archive."""
    clock, data_dir = ManualClock(), directory / "running"
    engine = EmbeddedEngine(data_dir, clock=clock, options=OPTIONS)
    await engine.start()
    await write(engine, clock)
    if stop.endswith("late"):
        await write_late(engine)
    stopped = data_dir
    if stop.startswith("crashed"):
        stopped = crash_image(data_dir, directory / "crashed")
        with segment_files(stopped, "zstd")[-1].open("ab") as file:
            file.write(b"torn")
        for path in stopped.rglob("*.journal"):
            path.write_bytes(path.read_bytes().rstrip(b"\0"))  # reserved space says nothing
    await engine.close()
    opened = EmbeddedEngine(crash_image(stopped, directory / "opened"), clock=ManualClock(), options=OPTIONS)
    await opened.start()
    (stopped / "expected.json").write_text(as_json(await everything(opened)))
    await opened.close()
    with tarfile.open(archive_of(stop), "w:gz") as tar:
        tar.add(stopped, arcname=".", filter=without_owner)


def archive_of(stop: str) -> Path:
    return FIXTURES / f"format-{FORMAT}-{stop}.tar.gz"


if __name__ == "__main__":
    for missing in [each for each in STOPS if not archive_of(each).exists()]:  # those that are there must never change
        with tempfile.TemporaryDirectory() as place:
            asyncio.run(make(Path(place), missing))

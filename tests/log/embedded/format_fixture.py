"""Writes the data directories that every later version must open: `python -m tests.log.embedded.format_fixture`.

One archive for each way to stop, in `tests/log/fixtures`, named after the format; with the records that it holds, in `expected.json`.
Run it when the format gets a new version, never for one that is there already.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
import tempfile
from pathlib import Path

from penstock.log.api import Batch, BatchFor, Durability, TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.salts import FORMAT
from penstock.record_headers import encode_headers
from penstock.testing.clock import ManualClock
from tests.log.embedded.storage import crash_image, everything, segment_files
from tests.log.records import Record, append, start_atomic_append

FIXTURES = Path(__file__).parents[1] / "fixtures"
OPTIONS = EngineOptions(reserve_bytes=0, maintenance_interval_s=3600, block_bytes_target=600, compact_dirty_ratio=0.0)
NEVER_MS = 1 << 45


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


async def main(directory: Path) -> None:
    clock, data_dir = ManualClock(), directory / "clean"
    engine = EmbeddedEngine(data_dir, clock=clock, options=OPTIONS)
    await engine.start()
    await write(engine, clock)
    crashed = crash_image(data_dir, directory / "crashed")
    for topic, info in engine.topics().items():
        for index in range(info.config.partitions):
            engine.partition(topic, index).tail.forget()  # what compaction has removed is still there
    expected = as_json(await everything(engine))
    await engine.close()
    with segment_files(crashed, "zstd")[-1].open("ab") as file:
        file.write(b"torn")
    for path in crashed.rglob("*.journal"):
        path.write_bytes(path.read_bytes().rstrip(b"\0"))  # reserved space says nothing
    for stop in ("clean", "crashed"):
        (directory / stop / "expected.json").write_text(expected)
        archive = FIXTURES / f"format-{FORMAT}-{stop}.tar.gz"
        assert not archive.exists(), f"{archive} must never change"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(directory / stop, arcname=".", filter=without_owner)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place)))

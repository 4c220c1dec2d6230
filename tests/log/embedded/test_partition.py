from __future__ import annotations

from penstock.log.api import TopicConfig
from penstock.log.embedded.disk import Disk
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import partition_of
from tests.log.records import append, records_of


class ReadCounter(Disk):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        data = super().pread(fd, size_bytes, position)
        self.read_bytes += len(data)
        return data


async def test_a_log_read_a_few_records_at_a_time_is_read_from_disk_once(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    for _ in range(4):
        await append(partition_of(engine), [b"v" * 1000] * 200)
    await engine.close()
    disk = ReadCounter()
    partition = partition_of(await open_engine(disk=disk))
    size_bytes, disk.read_bytes = partition.size_bytes, 0
    values: list[bytes | None] = []
    while len(values) < partition.committed_end:
        blocks = await partition.read(len(values), 1)
        values += [record.value for record in records_of(blocks[0], blocks[0].index_of(len(values)))[:10]]
    assert values == [b"v" * 1000] * 800
    assert disk.read_bytes < 3 * size_bytes


async def test_what_was_read_from_disk_goes_on_with_what_was_not(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    for number in range(6):
        await append(partition_of(engine), [b"%d" % number * 1000])
    await engine.close()
    partition = partition_of(await open_engine())
    assert [block.base_offset for block in await partition.read(1, 1)] == [1]
    assert [block.base_offset for block in await partition.read(1, 3500)] == [1, 2, 3]
    assert [block.base_offset for block in await partition.read(1)] == [1, 2, 3, 4, 5]
    assert [block.base_offset for block in partition.read_cached(2) or ()] == [2, 3, 4, 5]

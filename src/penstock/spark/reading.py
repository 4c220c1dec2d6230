"""What a task does: read its slices, from the broker's files where it is on the same machine, otherwise over the wire.

A file is read only with the proof that it belongs to the broker's present run, and what is found in it is checked: its size where it is
finished, the offset of the first block, every block's seal and checksum. Whatever is not as planned (retention and rewrites replace files
at any time) is left to the broker, which answers for the log; reading continues there with the first offset that was not read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import Final, cast

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptBlock, OffsetOutOfRange, TopicNotFound
from penstock.log.block import BODY_BYTES_MAX, HEADER_BYTES, Block, seal_at
from penstock.log.salts import salt_beside
from penstock.protocols.flymq.client.spark import FETCH_BYTES
from penstock.protocols.flymq.operations.blocks import EncodedBlocks, PartitionSpan, TopicSpans
from penstock.spark.arrow import BatchMaker
from penstock.spark.connection import ConnectionSettings, pooled_client
from penstock.spark.holdings import end_in, holdings_in, lost, reachable
from penstock.spark.planner import Files, Slice

WINDOW_BYTES: Final = 1 << 20
"""Read from a file at once: so little that it is still in the processor's cache when its checksums are checked and its columns joined,
which makes a read from the page cache a quarter faster than 4 MiB do. Batches hold on to it until they are sent."""
TORN_READS_MAX: Final = 3
"""How often a large block is fetched again that changed while it came in pieces."""
_STORED_BYTES = Struct("<I")
_STORED_BYTES_AT: Final = 20


class NotAsPlanned(Exception):
    """A file is gone or is another one."""


def read_slices(
    settings: ConnectionSettings, files: Files, slices: Sequence[Slice], schema: pa.Schema, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The records of a task. Raises DataLoss, CorruptBlock, and what a client raises."""
    directory = own_files(files)
    maker: BatchMaker | None = None
    last: Slice | None = None
    for each in slices:
        if maker is None or last is None or (last.topic, last.partition) != (each.topic, each.partition):
            if maker is not None:
                yield from maker.finish()
            maker = BatchMaker(schema, each.topic, each.partition, files.now_ms)
        last = each
        for offset, block in _blocks(settings, directory, each, fail=fail_on_data_loss):
            yield from maker.add(block, offset, each.end_offset)
    if maker is not None:
        yield from maker.finish()


def own_files(files: Files) -> Path | None:
    """The directory of the broker's files, if they are here and may be read."""
    if not files.token:
        return None
    directory = Path(files.directory)
    try:
        return directory if (directory / files.proof).read_text() == files.token else None
    except (OSError, UnicodeDecodeError):
        return None


def _blocks(
    settings: ConnectionSettings, directory: Path | None, each: Slice, *, fail: bool
) -> Iterator[tuple[int, Block]]:
    """Blocks, each with the first offset that is wanted of it: a block may be larger than the one it replaced a moment ago."""
    offset = each.offset
    if directory is not None and each.path:
        try:
            for block in file_blocks(directory / each.path, each):
                yield offset, block
                offset = block.next_offset
            return
        except NotAsPlanned:
            pass
    yield from _wire_blocks(settings, each, offset, fail=fail)


# -- from files ---------------------------------------------------------------------------------------------------------------


def file_blocks(path: Path, each: Slice) -> Iterator[Block]:
    """The blocks of a slice. Raises NotAsPlanned if the file does not have them, also after some that it had."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise NotAsPlanned from None
    try:
        size = os.fstat(fd).st_size
        if size < each.end_position or each.file_bytes not in (0, size):
            raise NotAsPlanned
        first = True
        for block in _blocks_in_file(fd, each.position, each.end_position, salt_beside(path)):
            if first and block.base_offset != each.block_offset:
                raise NotAsPlanned
            first = False
            if block.base_offset >= each.end_offset:
                return
            if block.next_offset > each.offset:
                yield block
    except (OSError, ValueError, CorruptBlock):
        raise NotAsPlanned from None  # if it is so for the broker too, that will say so
    finally:
        os.close(fd)


def _blocks_in_file(fd: int, position: int, end: int, salt: int) -> Iterator[Block]:
    wanted = HEADER_BYTES
    while position < end:
        data = os.pread(fd, min(max(WINDOW_BYTES, wanted), end - position), position)
        at = 0
        for block in whole_blocks(data):
            if block.seal != seal_at(salt, position + at):
                raise NotAsPlanned
            yield block
            at += block.size_bytes
        if not at:
            wanted = _size_bytes(data, 0)
            if wanted <= len(data) or position + wanted > end:
                raise NotAsPlanned
        position += at


def whole_blocks(data: bytes) -> Iterator[Block]:
    """The blocks that are whole in some bytes, without copying them. Raises CorruptBlock."""
    view = np.frombuffer(data, np.uint8)
    at, end = 0, len(data)
    while end - at >= HEADER_BYTES:
        size = _size_bytes(data, at)
        if size > end - at:
            return
        # An array of bytes serves a block as well as bytes do, as long as it is asked for columns and not for rows.
        yield Block(data, at, cast("bytes", view[at + HEADER_BYTES : at + size]))
        at += size


def _size_bytes(data: bytes, at: int) -> int:
    if len(data) - at < HEADER_BYTES:
        raise CorruptBlock("the file ends inside a block")
    stored_bytes: int = _STORED_BYTES.unpack_from(data, at + _STORED_BYTES_AT)[0]
    if stored_bytes > BODY_BYTES_MAX:
        raise CorruptBlock(f"block size {stored_bytes} is out of range")
    return HEADER_BYTES + stored_bytes


# -- over the wire ------------------------------------------------------------------------------------------------------------


def _wire_blocks(settings: ConnectionSettings, each: Slice, offset: int, *, fail: bool) -> Iterator[tuple[int, Block]]:
    """Blocks as the broker sends them; the next are on their way while the last are turned into batches."""
    if offset >= each.end_offset:
        return
    client = pooled_client(settings)

    def fetch(offset: int) -> EncodedBlocks:
        return client.blocks.fetch(
            each.topic, each.partition, offset, topic_id=each.topic_id, max_bytes=FETCH_BYTES, epoch=each.epoch
        )

    with ThreadPoolExecutor(1, "penstock-fetch") as ahead:
        coming: Future[EncodedBlocks] | None = None
        torn = 0
        while offset < each.end_offset:
            try:
                fetched = fetch(offset) if coming is None else coming.result()
                coming = None
                blocks = list(whole_blocks(fetched.data))
            except CorruptBlock:
                torn += 1
                if torn == TORN_READS_MAX:
                    raise
                coming = None
                continue
            except OffsetOutOfRange:
                each, coming = _still_there(settings, replace(each, offset=offset), fail=fail), None
                offset = each.offset
                continue
            except TopicNotFound:
                lost(f"topic {each.topic} was deleted while it was read", fail=fail)
                return
            if not blocks:
                end = fetched.end_offset
                if end < each.end_offset:  # otherwise what was there is compacted away, or has expired
                    lost(f"{each.topic}-{each.partition} ends at offset {end}, before {each.end_offset}", fail=fail)
                return
            torn = 0
            following = blocks[-1].next_offset
            if following < each.end_offset:
                coming = ahead.submit(fetch, following)
            for block in blocks:
                if block.base_offset < each.end_offset:
                    yield offset, block
                offset = block.next_offset


def _still_there(settings: ConnectionSettings, each: Slice, *, fail: bool) -> Slice:
    """What is left of a slice without what the broker does not hold any more."""
    span = PartitionSpan(each.partition, each.offset, each.end_offset, epoch=each.epoch)
    held = holdings_in(pooled_client(settings).blocks.plan([TopicSpans(each.topic, [span])])).get(each.topic)
    if held is None or held.id != each.topic_id:
        lost(f"topic {each.topic} was deleted while it was read", fail=fail)
        return replace(each, offset=each.end_offset)
    end_offset = end_in(held, each.topic, each.partition, each.end_offset, fail=fail)
    if each.offset < end_offset:
        offset = min(reachable(each.topic, each.partition, each.offset, held, fail=fail), end_offset)
    else:
        offset = end_offset
    return replace(each, offset=offset, end_offset=end_offset, epoch=held.epochs[each.partition])

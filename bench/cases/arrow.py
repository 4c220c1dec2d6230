"""Blocks of the log to Arrow record batches, as a task of Spark's makes them, without Spark, disk or network.

A task reads a window of a file and decodes it at once, so each window is copied first, off the clock: it is where a read would leave it.
"""

from __future__ import annotations

import os
import time

import pyarrow as pa

from bench.dialects import RecordLost
from bench.rounds import Plan, Row, alone, interleave
from penstock.log.block import encode_block
from penstock.spark.arrow import COLUMN_TYPES, BatchMaker
from penstock.spark.reading import WINDOW_BYTES, whole_blocks

PAYLOAD_BYTES = 100
RECORDS = 2_000_000
RECORDS_QUICK = 200_000
BLOCK_RECORDS = (100, 1_000, 10_000)
WITH_AIM = 1_000
"""What pipelined writes come to; a block of 100 is a trickle, one of 10 000 a bulk load."""
RECORDS_PER_S_MIN = 20_000_000.0
COLUMNS = tuple(name for name in COLUMN_TYPES if name != "headers")
"""What a reader gets without asking for more."""
SCHEMA = pa.schema([(name, COLUMN_TYPES[name]) for name in COLUMNS])


def measure(plan: Plan) -> list[Row]:
    records = plan.volume(RECORDS, RECORDS_QUICK)
    stored = {size: _stored(records, size) for size in BLOCK_RECORDS}
    plan.say(f"arrow: decoding {records:,} records in blocks of {', '.join(f'{size:,}' for size in BLOCK_RECORDS)}")
    for size in BLOCK_RECORDS:
        _decode(stored[size], records)  # warm-up
    sides = {size: lambda _, size=size: _decode(stored[size], records) for size in BLOCK_RECORDS}
    rounds = interleave({str(size): side for size, side in sides.items()}, plan.rounds)
    return [
        alone(
            "blocks to Arrow",
            f"{records:,} records of {PAYLOAD_BYTES} B in blocks of {size:,}, {len(COLUMNS)} columns, checksums checked, 1 process",
            "records/s",
            rounds[str(size)],
            at_least=RECORDS_PER_S_MIN if size == WITH_AIM else None,
        )
        for size in BLOCK_RECORDS
    ]


def _stored(records: int, block_records: int) -> list[bytes]:
    """As many whole blocks together as a task reads at once."""
    values = [os.urandom(PAYLOAD_BYTES) for _ in range(block_records)]
    windows: list[list[bytes]] = [[]]
    for base in range(0, records, block_records):
        block = encode_block(base, 1_700_000_000_000 + base, values)
        if windows[-1] and (len(windows[-1]) + 1) * len(block) > WINDOW_BYTES:
            windows.append([])
        windows[-1].append(block)
    return [b"".join(blocks) for blocks in windows]


def _decode(stored: list[bytes], records: int) -> float:
    """Records a second."""
    rows, seconds = 0, 0.0
    maker = BatchMaker(SCHEMA, "orders", 0, now_ms=0)
    for window in stored:
        data = bytes(memoryview(window))
        started = time.perf_counter()
        for block in whole_blocks(data):
            for batch in maker.add(block, 0, records):
                rows += batch.num_rows
        seconds += time.perf_counter() - started
    started = time.perf_counter()
    for batch in maker.finish():
        rows += batch.num_rows
    seconds += time.perf_counter() - started
    if rows != records:
        raise RecordLost(f"{records} records were stored, {rows} came out of their blocks")
    return records / seconds

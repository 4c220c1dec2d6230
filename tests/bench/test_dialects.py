from __future__ import annotations

import pytest

from bench.dialects import Dialect, FlyMQProduce, RecordLost, RedisXadd, RustLogBatches
from penstock.protocols.flymq.codec.frames import RequestDecoder
from penstock.protocols.flymq.codec.record_layouts import Placed, ProduceRun, encode_produced
from penstock.protocols.flymq.errors import encode_error
from penstock.protocols.rustlog.codec import binary_dialect


def acknowledged(base_offset: int, count: int, partition: int = 0) -> bytes:
    return encode_produced("t", None, [b"x"] * count, [Placed(slice(None), partition, base_offset, 1_000)])


def replies_counted(dialect: Dialect, chunks: list[bytes]) -> int:
    return sum(map(dialect.units, chunks)) // dialect.units_per_reply


def test_requests_go_round_without_a_seam() -> None:
    dialect = FlyMQProduce("t", 10, in_flight=100, partitions=(0, 1, 2), run_length=2)
    whole = bytes(dialect.requests(1000, 100))
    assert whole == bytes(dialect.requests(1000, 40)) + bytes(dialect.requests(1040, 60))
    runs = [run for run in RequestDecoder().feed(whole) if isinstance(run, ProduceRun)]
    assert sum(len(run.values) for run in runs) == 100
    assert all(len(value) == 10 for run in runs for value in run.values)


def test_replies_of_both_sides_are_counted_however_they_are_cut() -> None:
    flymq, redis = FlyMQProduce("t", 10, 1), RedisXadd("s", 10, 1)
    for dialect, replies in ((flymq, acknowledged(0, 3)), (redis, b"$3\r\n1-0\r\n" * 3)):
        for cut in range(len(replies)):
            assert replies_counted(dialect, [replies[:cut], replies[cut:]]) == 3
            assert replies_counted(dialect, [replies[:cut]]) < 3


def test_a_whole_run_has_every_offset_once_over_all_connections() -> None:
    dialect = FlyMQProduce("t", 10, 1)
    received = [acknowledged(0, 2) + acknowledged(3, 1), acknowledged(2, 1) + acknowledged(0, 5, partition=7)]
    assert dialect.check(received, 9) == {0: 4, 7: 5}


def test_a_topic_that_holds_records_already_goes_on_behind_them() -> None:
    dialect = FlyMQProduce("t", 10, 1, held_before=5)
    assert dialect.check([acknowledged(5, 3)], 3) == {0: 8}
    with pytest.raises(RecordLost, match="gap or a repetition"):
        dialect.check([acknowledged(6, 3)], 3)


@pytest.mark.parametrize("received", [acknowledged(0, 2) + acknowledged(3, 2), acknowledged(0, 2) * 2])
def test_a_missing_or_repeated_offset_fails_the_run(received: bytes) -> None:
    with pytest.raises(RecordLost, match="gap or a repetition"):
        FlyMQProduce("t", 10, 1).check([received], 4)


def test_a_run_that_was_cut_off_says_what_must_be_there() -> None:
    received = acknowledged(0, 2) + acknowledged(5, 1)
    assert FlyMQProduce("t", 10, 1).check([received + received[:9]], 3, whole=False) == {0: 6}


def test_a_refused_produce_fails_the_run() -> None:
    refused = encode_error("x" * 60)
    with pytest.raises(RecordLost, match="something else"):
        FlyMQProduce("t", 10, 1).check([refused], 1)


def test_a_refused_xadd_fails_the_run() -> None:
    with pytest.raises(RecordLost, match="something else"):
        RedisXadd("s", 10, 1).check([b"-ERR no\r\n-ERR no\r\n"], 1)
    assert RedisXadd("s", 10, 1).check([b"$3\r\n1-0\r\n$3\r\n1-1\r\n"], 2) == {0: 2}


def test_batches_are_counted_by_their_records_and_each_must_be_there_once() -> None:
    dialect = RustLogBatches("t", 10, 2, batch_records=5)
    produced = [binary_dialect.encode_produced(base, 5) for base in (5, 0, 10)]
    assert replies_counted(dialect, produced) == 3
    assert dialect.check([produced[0], produced[1] + produced[2]], 3) == {0: 15}
    with pytest.raises(RecordLost, match="gap or a repetition"):
        dialect.check([produced[0], produced[2]], 2)
    with pytest.raises(RecordLost, match="something else"):
        dialect.check([binary_dialect.encode_produced(0, 4)], 1)

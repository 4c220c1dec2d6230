"""Gathering rows into a reply: what follows on, what fits, what is passed over."""

from __future__ import annotations

import json

import pytest

from penstock.errors import RecordTooLarge
from penstock.protocols.rustlog.codec import binary_client
from penstock.protocols.rustlog.server.fetching import HIDDEN_MAX, BinaryGathering, Gathering, JsonGathering, Rows
from penstock.protocols.rustlog.wire import PAYLOAD_BYTES_MAX


def rows(offsets: list[int] | range, size: int = 1) -> Rows:
    return Rows(offsets, [b"v" * size for _ in offsets])


def binary(bytes_max: int = 1 << 20) -> BinaryGathering:
    return BinaryGathering(0, bytes_max, 0)


def found(gathering: Gathering) -> tuple[list[int], int]:
    """Offsets and next offset of the reply."""
    payload = gathering.encode()[4:]
    if isinstance(gathering, BinaryGathering):
        fetched = binary_client.decode_fetched(payload)
        return list(fetched.offsets), fetched.next_offset
    fields = json.loads(payload)["Fetch"]
    return [record["offset"] for record in fields["records"]], fields["next_offset"]


def test_a_binary_batch_ends_at_a_gap_within_rows() -> None:
    gathering = binary()
    gathering.add(rows([5, 6, 8, 9]))
    assert not gathering.open
    assert found(gathering) == ([5, 6], 7)


def test_a_binary_batch_ends_at_a_gap_between_rows() -> None:
    gathering = binary()
    gathering.add(rows(range(3)))
    gathering.add(rows(range(3, 5)))
    gathering.add(rows(range(6, 8)))
    assert not gathering.open
    assert found(gathering) == ([0, 1, 2, 3, 4], 5)


def test_a_json_batch_continues_over_gaps() -> None:
    gathering = JsonGathering(0, 1 << 20, 0)
    gathering.add(rows([5, 6, 8]))
    gathering.add(rows(range(20, 22)))
    assert gathering.open
    assert found(gathering) == ([5, 6, 8, 20, 21], 22)


@pytest.mark.parametrize("uniform", [True, False])
def test_both_shapes_of_rows_give_the_same_reply(uniform: bool) -> None:
    for kind in (BinaryGathering, JsonGathering):
        for bytes_max in (0, 5, 50, 123, 1000):
            gathering, expected = kind(0, bytes_max, 0), kind(0, bytes_max, 0)
            expected.add(Rows(range(10), [b"hello"] * 10))
            gathering.add(Rows(range(10), (), 5, b"hello" * 10) if uniform else Rows(range(10), [b"hello"] * 10))
            assert gathering.encode() == expected.encode()
            assert gathering.open == expected.open


def test_expired_records_move_an_empty_reply_on_and_have_their_bound() -> None:
    gathering = binary()
    gathering.pass_over(10, 10)
    assert gathering.open
    assert found(gathering) == ([], 10)
    gathering.pass_over(HIDDEN_MAX, 10 + HIDDEN_MAX)
    assert not gathering.open


def test_the_last_record_tells_the_next_offset_whatever_was_passed_over_after_it() -> None:
    gathering = JsonGathering(0, 1 << 20, 0)
    gathering.add(rows([1]))
    gathering.pass_over(3, 5)
    assert gathering.position == 5
    assert found(gathering) == ([1], 2)


@pytest.mark.parametrize(
    ("gathering", "fits"),
    [(BinaryGathering(0, 1, 0), PAYLOAD_BYTES_MAX - 17), (JsonGathering(0, 1, 0), (PAYLOAD_BYTES_MAX - 97) // 4)],
)
def test_a_record_either_fits_into_the_frame_or_is_refused(gathering: Gathering, fits: int) -> None:
    with pytest.raises(RecordTooLarge, match="the record at offset 7 does not fit"):
        gathering.add(Rows(range(7, 8), [b"\xff" * (fits + 20)]))
    gathering.add(Rows(range(7, 8), [b"\xff" * fits]))
    reply = gathering.encode()
    assert PAYLOAD_BYTES_MAX - 60 <= len(reply) - 4 <= PAYLOAD_BYTES_MAX

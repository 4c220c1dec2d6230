"""A batch, cut into what is sent at a time."""

from __future__ import annotations

import pytest

from penstock.clients.arguments import CHUNK_BYTES, CHUNK_RECORDS_MAX, chunks

SMALL, LARGE = bytes(900), bytes(8 * CHUNK_BYTES)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""] * (2 * CHUNK_RECORDS_MAX + 1),
        [SMALL] * 3000,
        [LARGE] * 3,
        [*[SMALL] * 1005, LARGE, *[SMALL] * 1000],
        [SMALL, LARGE] * 20,
    ],
    ids=["none", "empty", "small", "large", "one large", "in turns"],
)
@pytest.mark.parametrize("key", [None, b"key", bytes(60_000)], ids=["no keys", "short keys", "long keys"])
def test_every_row_is_in_one_chunk_and_only_one_record_makes_a_large_one(
    values: list[bytes], key: bytes | None
) -> None:
    keys = None if key is None else [key] * len(values)
    bounds = list(chunks(values, 0, keys))
    assert [row for first, last in bounds for row in range(first, last)] == list(range(len(values)))
    for first, last in bounds:
        assert last - first <= CHUNK_RECORDS_MAX
        size_bytes = sum(map(len, values[first:last])) + (last - first) * len(key or b"")
        assert size_bytes <= 2 * CHUNK_BYTES or last - first == 1


def test_records_of_one_size_fill_their_chunks() -> None:
    assert next(chunks([SMALL] * 3000, 0)) == (0, CHUNK_BYTES // len(SMALL))
    assert list(chunks([b"x"] * 1500, 1400)) == [(1400, 1500)]

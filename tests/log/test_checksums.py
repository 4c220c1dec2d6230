from __future__ import annotations

import random

import google_crc32c
import pytest

from penstock.log.checksums import combined, shifted, split_off


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0), (1, 1), (3, 255), (100, 256), (77, 65_537), (9, 1_000_003)])
def test_the_checksum_of_two_parts_follows_from_those_of_each(sizes: tuple[int, int]) -> None:
    first, second = (random.Random(size).randbytes(size) for size in sizes)
    whole = google_crc32c.value(first + second)
    one, two = google_crc32c.value(first), google_crc32c.value(second)
    assert combined(one, two, len(second)) == whole
    assert split_off(whole, one, len(second)) == two


def test_moving_over_nothing_changes_nothing_and_moving_twice_is_moving_once() -> None:
    checksum = google_crc32c.value(b"some bytes")
    assert shifted(checksum, 0) == checksum
    assert shifted(shifted(checksum, 12_345), 54_321) == shifted(checksum, 66_666)
    assert shifted(0, 1000) == 0

"""CRC-32C of bytes whose parts have been summed already.

A checksum runs over memory at a GB or two a second, which is what appending whole blocks would mostly consist of. But that of two byte
strings one behind the other follows from those of the two: it is the first, shifted over as many zero bytes as the second is long, xor the
second. Moving over n bytes is a product with x^(8n) modulo the polynomial; for each power of two in n that is four look-ups in tables,
so it takes some microseconds however long the bytes are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78  # reflected
# Below this, running over the bytes is as fast.
COMBINED_BYTES_MIN: Final = 16 << 10

_Tables = tuple[list[int], list[int], list[int], list[int]]


def combined(first: int, second: int, second_bytes: int) -> int:
    """The checksum of two byte strings, the second behind the first."""
    return shifted(first, second_bytes) ^ second


def split_off(both: int, first: int, second_bytes: int) -> int:
    """The checksum of the second of two byte strings, from that of the first and that of both."""
    return both ^ shifted(first, second_bytes)


def shifted(checksum: int, size_bytes: int) -> int:
    """A checksum shifted as if this many bytes followed."""
    power = 0
    while size_bytes:
        if size_bytes & 1:
            low, second, third, high = _tables(power)
            checksum = (
                low[checksum & 0xFF]
                ^ second[checksum >> 8 & 0xFF]
                ^ third[checksum >> 16 & 0xFF]
                ^ high[checksum >> 24]
            )
        size_bytes >>= 1
        power += 1
    return checksum


@lru_cache(maxsize=64)
def _tables(power: int) -> _Tables:
    """What moving over 2**power bytes makes of each value of each byte of a checksum."""
    columns = _columns(power)
    tables: list[list[int]] = []
    for byte in range(4):
        table = [0] * 256
        for value in range(1, 256):
            lowest = value & -value
            table[value] = table[value ^ lowest] ^ columns[8 * byte + lowest.bit_length() - 1]
        tables.append(table)
    low, second, third, high = tables
    return low, second, third, high


@lru_cache(maxsize=64)
def _columns(power: int) -> list[int]:
    """What moving over 2**power bytes makes of each single bit."""
    if power == 0:
        return [_over_zero_byte(1 << bit) for bit in range(32)]
    half = _columns(power - 1)
    return [_product(half, column) for column in half]


def _product(columns: list[int], vector: int) -> int:
    product = 0
    for column in columns:
        if vector & 1:
            product ^= column
        vector >>= 1
    return product


def _over_zero_byte(checksum: int) -> int:
    for _ in range(8):
        checksum = checksum >> 1 ^ (_POLYNOMIAL if checksum & 1 else 0)
    return checksum

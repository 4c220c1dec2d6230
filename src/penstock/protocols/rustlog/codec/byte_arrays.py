"""Bytes as JSON arrays of numbers, many cells at once.

Each byte becomes four characters by one table lookup over the whole column ("7   " is 7 and three blanks, "7,  " with its comma), then
all blanks are deleted by one `translate`. Measured on records of 100 random bytes, per megabyte of payload: this 11 ms, the same with a
boolean mask 15 ms, msgspec over lists 22 ms, joining a table of strings byte by byte 46 ms. Decoding is left to msgspec, which takes
28 ms a megabyte into lists of checked numbers; cutting the text by array operations took 56 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_CELLS = [f"{number},".ljust(4).encode() for number in range(256)]
_TEXTS = np.frombuffer(b"".join(_CELLS), np.uint32)
_SIZES = np.array([len(cell.strip()) for cell in _CELLS], np.uint32)
TEXT_BYTES_PER_BYTE_MIN = 2
"""A digit and a comma."""


def encode_byte_arrays(data: bytes | memoryview, cuts: npt.NDArray[np.int64]) -> list[bytes]:
    """Cell i is `data[cuts[i]:cuts[i + 1]]`; returns the numbers of each with commas between them, without brackets."""
    numbers = np.frombuffer(data, np.uint8)
    text = _TEXTS[numbers].tobytes().translate(None, b" ")
    ends = np.zeros(len(numbers) + 1, np.uint32)
    np.cumsum(_SIZES[numbers], out=ends[1:])
    bounds = ends[cuts].tolist()
    # Each cell ends with a comma too many; an empty one has none, and is cut from its end to before its start.
    return [text[start : end - 1] if end > start else b"" for start, end in pairwise(bounds)]


def cuts_of(values: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Where each value begins and ends once they are joined."""
    cuts = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=cuts[1:])
    return cuts

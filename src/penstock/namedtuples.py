"""Named tuples without a call of Python for each.

A class of `typing.NamedTuple` makes its tuples by a function in Python, which costs several times as much as the tuple. Where one is made
for each request or each partition of a commit, it is made as that function does it: `made(Appended, (offset, timestamp_ms))`.
"""

from __future__ import annotations

from typing import Final

made: Final = tuple.__new__

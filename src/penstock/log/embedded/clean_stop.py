"""The mark of a clean stop, and what it promises: where each partition ended.

The file is there only between a clean stop and the next start, which scans nothing then. The ends are in it because a segment that is
missing or cut at the end of a partition leaves no gap that could be noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.log.salts import FORMAT, decode_metadata, encode_metadata

CLEAN_STOP_FILE: Final = "clean-shutdown"

Ends = Mapping[str, list[int]]
"""The offset after the last record of each partition, by topic id."""


def encode_clean_stop(ends: Ends) -> bytes:
    return encode_metadata({"version": FORMAT, "ends": ends})


def read_clean_stop(data_dir: Path) -> Ends | None:
    """Return the ends at the last stop; None if that was not clean. An empty file promises none. Raises ValueError if it is damaged."""
    try:
        data = (data_dir / CLEAN_STOP_FILE).read_bytes()
        return msgspec.convert(decode_metadata(data).get("ends"), dict[str, list[int]]) if data else {}
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error

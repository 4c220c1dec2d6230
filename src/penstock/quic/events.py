"""What a connection reports. An event is a tuple, its kind first:

(STREAM_DATA, stream id, data, ended)      (STREAM_RESET, stream id, code)      (STOP_SENDING, stream id, code)
(STREAM_FINISHED, stream id)               both sides ended and everything acknowledged
(CID_ISSUED, cid)                          (CID_RETIRED, cid)
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

Event = tuple[Any, ...]

STREAM_DATA: Final = "stream_data"
STREAM_RESET: Final = "stream_reset"
STOP_SENDING: Final = "stop_sending"
STREAM_FINISHED: Final = "stream_finished"
STREAMS_AVAILABLE: Final = "streams_available"
CID_ISSUED: Final = "connection_id_issued"
CID_RETIRED: Final = "connection_id_retired"
REPORTED: Final = frozenset(
    {
        STREAM_DATA,
        STREAM_RESET,
        STOP_SENDING,
        STREAM_FINISHED,
        STREAMS_AVAILABLE,
        CID_ISSUED,
        CID_RETIRED,
    }
)


class Closed(NamedTuple):
    """Why a connection ended."""

    code: int
    reason: str

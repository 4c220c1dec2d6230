"""Records that were sent with auto commit and may not have arrived: settled as the client's QUIC acknowledges their bytes.

Nothing tells when that happens, so it is looked up: before more is sent, and every now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.protocols.fujin.server.stream import FujinStream, Timer

LOOK_S: Final = 0.05
LOOK_SOON_S: Final = 0.002
"""The same where nothing more can be sent before."""


class _Sent(NamedTuple):
    end: int
    """Where in the stream their bytes end."""
    tags: list[int]


class Unconfirmed:
    """For one reader. `settle` is given the tags of what has arrived, `looked` is called after every look that a timer caused."""

    __slots__ = ("_looked", "_sent", "_session", "_settle", "_timer", "records")

    def __init__(self, session: FujinStream, settle: Callable[[list[int]], None], looked: Callable[[], None]) -> None:
        self._session = session
        self._settle = settle
        self._looked = looked
        self._sent: deque[_Sent] = deque()
        self._timer: Timer | None = None
        self.records = 0

    def add(self, tags: list[int]) -> None:
        """These are the last that were sent."""
        self._sent.append(_Sent(self._session.sent_bytes, tags))
        self.records += len(tags)
        if self._timer is None:
            self._look_after(LOOK_S)

    def look(self) -> None:
        """Settle what has arrived by now."""
        if not self._sent:
            return
        arrived = self._session.sent_bytes - self._session.stream.unacknowledged_bytes
        tags: list[int] = []
        while self._sent and self._sent[0].end <= arrived:
            tags += self._sent.popleft().tags
        if tags:
            self.records -= len(tags)
            self._settle(tags)

    def look_soon(self) -> None:
        if self._sent:
            self._look_after(LOOK_SOON_S)

    def stop(self) -> None:
        """Look a last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.look()

    def _look_after(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._session.call_later(delay_s, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if not self._session.over:
            self.look()
            if self._sent:
                self._look_after(LOOK_S)
            self._looked()

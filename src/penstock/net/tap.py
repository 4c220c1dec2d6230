"""Who listens in on a connection: told every byte, and where a frame begins, and able to change nothing."""

from __future__ import annotations

from typing import Protocol


class Tap(Protocol):
    def received(self, data: bytes, stream: int, *, at_start: bool, at_frame: bool) -> None:
        """The peer sent this. `at_start`: they are the first bytes of the stream; `at_frame`: a frame begins with them."""
        ...

    def sent(self, data: bytes, stream: int) -> None:
        """The peer is sent this: whole frames."""
        ...

    def closed(self) -> None:
        """The connection is gone."""
        ...


class Tappable(Protocol):
    """A connection as the inspector sees it."""

    tap: Tap | None

    @property
    def peer(self) -> str: ...

    @property
    def principal_hint(self) -> str | None: ...

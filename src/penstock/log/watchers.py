"""Callbacks of those who want news of a partition or of the topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

import structlog

_P = ParamSpec("_P")
log = structlog.get_logger(__name__)


class Watchers(Generic[_P]):
    """Callbacks in the order in which they came. They may come and go while they are called."""

    __slots__ = ("_callbacks", "_last_id", "_what")

    def __init__(self, what: object) -> None:
        """`what` is watched, for the log: something that prints as its name."""
        self._what = what
        self._callbacks: dict[int, Callable[_P, None]] = {}
        self._last_id = 0

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def add(self, callback: Callable[_P, None]) -> Callable[[], None]:
        """Return what removes the callback again; to call that twice is harmless."""
        self._last_id += 1
        key = self._last_id
        self._callbacks[key] = callback

        def stop() -> None:
            self._callbacks.pop(key, None)

        return stop

    def notify(self, *args: _P.args, **kwargs: _P.kwargs) -> None:
        for callback in tuple(self._callbacks.values()):
            try:
                callback(*args, **kwargs)
            except Exception:  # a bug in one session must not keep the news from the others
                log.exception("watcher_failed", watched=str(self._what))

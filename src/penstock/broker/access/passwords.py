"""Passwords as argon2id hashes, made and verified away from the event loop by few threads with a bounded queue.

A verification takes some 30 ms of processor time and 19 MiB of memory on purpose; that is what makes guessing expensive, and what a
flood of logins would take from everybody else. So it runs on threads that step back behind the rest of the process, as many as half
the processors at most, and more than `waiting_max` at once are refused before anything is computed.

A login as a user that does not exist takes the same work as any other.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from penstock.errors import InvalidRequest, LimitExceeded

PASSWORD_BYTES_MAX: Final = 1024
"""More than anybody types."""
THREADS_MAX: Final = 4
# What `nice` would give: the scheduler lets the threads that move records go first.
STEP_BACK: Final = 10

_Result = TypeVar("_Result")


class Argon2Cost(NamedTuple):
    """The least that the OWASP recommends for argon2id with one lane; the default."""

    passes: int = 2
    memory_kib: int = 19 * 1024


class Passwords:
    """Threads start with the first password, so a broker without authentication has none."""

    def __init__(self, *, cost: Argon2Cost | None = None, threads: int | None = None, waiting_max: int = 256) -> None:
        passes, memory_kib = cost or Argon2Cost()
        self._hasher = PasswordHasher(time_cost=passes, memory_cost=memory_kib, parallelism=1)
        # Any password is wrong for it: nobody knows one whose hash this is.
        self._nobodys_hash = f"$argon2id$v=19$m={memory_kib},t={passes},p=1${'A' * 22}${'A' * 43}"
        self._threads = threads or max(1, min(THREADS_MAX, (os.cpu_count() or 1) // 2))
        self._waiting_max = waiting_max
        self._waiting = 0
        self._pool: ThreadPoolExecutor | None = None

    async def hash(self, password: str) -> str:
        """Raises InvalidRequest for an empty or oversized password, LimitExceeded where too many wait."""
        check_password(password)
        return await self._run(lambda: self._hasher.hash(password))

    async def verify(self, stored: str | None, password: str) -> bool:
        """Whether it is the password of a hash; never for None, which takes as long. Raises LimitExceeded if too many wait."""
        # No hash was ever made of such a password, so nothing is learnt from a quick answer.
        if not 1 <= len(password.encode()) <= PASSWORD_BYTES_MAX:
            return False
        return await self._run(lambda: self._verified(stored or self._nobodys_hash, password))

    def _verified(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False

    async def _run(self, work: Callable[[], _Result]) -> _Result:
        if self._waiting >= self._waiting_max:
            raise LimitExceeded(
                f"{self._waiting} passwords are being checked, the most at a time: try again in a moment, or raise "
                "limits.password_checks_max"
            )
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "penstock passwords", _step_back)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def check_password(password: str) -> None:
    size = len(password.encode())
    if not 1 <= size <= PASSWORD_BYTES_MAX:
        raise InvalidRequest(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes, this one has {size}")


def _step_back() -> None:
    # On Linux the priority of one thread; elsewhere it would be that of the whole process.
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + STEP_BACK)

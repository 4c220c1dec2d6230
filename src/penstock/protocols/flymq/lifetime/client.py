"""Dead letters as clients ask for them: `client.dead_letters` of the async client and of its twin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.clients.loop_thread import LoopThread
from penstock.protocols.flymq.lifetime import replies, requests
from penstock.protocols.flymq.lifetime.messages import DeadLetterInfo

Ask = Callable[[bytes], Awaitable[bytes]]

LETTERS = 100
"""Dead letters a list asks for unless told otherwise."""


class AsyncDeadLetters:
    """`read` may be sent again where a connection was lost, `write` may not."""

    def __init__(self, read: Ask, write: Ask) -> None:
        self._read = read
        self._write = write

    async def list(self, topic: str, max_letters: int = LETTERS) -> list[DeadLetterInfo]:
        """The records of a topic that failed and were not replayed, oldest first; none where it has no dead letters."""
        return replies.decode_letters(await self._read(requests.encode_fetch_dlq(topic, max_letters)))

    async def replay(self, topic: str, letter_id: str) -> None:
        """Write a failed record to its topic again, once. Raises EntryNotFound, also where it was replayed before."""
        await self._write(requests.encode_replay_dlq(topic, letter_id))

    async def replay_at(self, topic: str, offset: int) -> None:
        """The same for the dead letter at an offset of the dead-letter topic."""
        await self._write(requests.encode_replay_dlq_at(topic, offset))

    async def replay_all(self, topic: str, filter: str = "", *, dry_run: bool = False) -> int:  # noqa: A002
        """Replay every dead letter, or those whose record or reason matches a filter as in `fetch`; returns how many.

        A dry run only counts. Sent again where the connection was lost: what was replayed by then is not replayed again, nor counted.
        """
        return replies.decode_replayed_all(
            await self._read(requests.encode_replay_dlq_all(topic, filter, dry_run=dry_run))
        )

    async def purge(self, topic: str) -> None:
        """Delete all dead letters of a topic, replayed or not; none are no error."""
        await self._write(requests.encode_purge_dlq(topic))


class DeadLetters:
    """The same calls, each waiting for its answer."""

    def __init__(self, thread: LoopThread, dead_letters: AsyncDeadLetters) -> None:
        self._thread = thread
        self._dead_letters = dead_letters

    def list(self, topic: str, max_letters: int = LETTERS) -> list[DeadLetterInfo]:
        """The records of a topic that failed and were not replayed, oldest first; none where it has no dead letters."""
        return self._thread.run(self._dead_letters.list(topic, max_letters))

    def replay(self, topic: str, letter_id: str) -> None:
        """Write a failed record to its topic again, once. Raises EntryNotFound, also where it was replayed before."""
        self._thread.run(self._dead_letters.replay(topic, letter_id))

    def replay_at(self, topic: str, offset: int) -> None:
        """The same for the dead letter at an offset of the dead-letter topic."""
        self._thread.run(self._dead_letters.replay_at(topic, offset))

    def replay_all(self, topic: str, filter: str = "", *, dry_run: bool = False) -> int:  # noqa: A002
        """Replay every dead letter, or those whose record or reason matches a filter as in `fetch`; returns how many."""
        return self._thread.run(self._dead_letters.replay_all(topic, filter, dry_run=dry_run))

    def purge(self, topic: str) -> None:
        """Delete all dead letters of a topic, replayed or not; none are no error."""
        self._thread.run(self._dead_letters.purge(topic))

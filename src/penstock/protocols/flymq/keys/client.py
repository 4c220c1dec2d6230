"""API keys as clients ask for them: `client.keys` of the async client and of its twin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from penstock.clients.loop_thread import LoopThread
from penstock.protocols.flymq.keys import layouts
from penstock.protocols.flymq.keys.messages import KeyDescription
from penstock.protocols.flymq.wire import Opcode, frame

Ask = Callable[[bytes], Awaitable[bytes]]


class AsyncKeys:
    """`read` may be sent again where a connection was lost, `write` may not."""

    def __init__(self, read: Ask, write: Ask) -> None:
        self._read = read
        self._write = write

    async def create(self, name: str, roles: Sequence[str] = ()) -> str:
        """Make a key; returns it, and nobody can see it again. Without roles it may publish and read."""
        return layouts.decode_key_created(await self._write(layouts.encode_key_create(name, roles)))

    async def list(self) -> list[KeyDescription]:
        """Every key by name, without its secret."""
        return layouts.decode_keys(await self._read(frame(Opcode.KEY_LIST)))

    async def revoke(self, name: str) -> None:
        """Forget a key; who is logged in with it is turned away. Raises EntryNotFound."""
        await self._write(layouts.encode_key_revoke(name))


class Keys:
    """The same calls as `AsyncKeys`, each waiting for its answer."""

    def __init__(self, thread: LoopThread, keys: AsyncKeys) -> None:
        self._thread = thread
        self._keys = keys

    def create(self, name: str, roles: Sequence[str] = ()) -> str:
        """Make a key; returns it, and nobody can see it again. Without roles it may publish and read."""
        return self._thread.run(self._keys.create(name, roles))

    def list(self) -> list[KeyDescription]:
        """Every key by name, without its secret."""
        return self._thread.run(self._keys.list())

    def revoke(self, name: str) -> None:
        """Forget a key; who is logged in with it is turned away. Raises EntryNotFound."""
        self._thread.run(self._keys.revoke(name))

"""Which producer makes way when there are too many, or their answers take too much: of the principal that has the largest part, the one
whose last request is the oldest. So nobody loses producers because somebody else registers many."""

from __future__ import annotations

from collections import OrderedDict


class _Share:
    """What one principal has."""

    __slots__ = ("producers", "size_bytes")

    def __init__(self) -> None:
        self.producers: OrderedDict[bytes, None] = OrderedDict()
        """Ids, the one whose last request is the oldest first."""
        self.size_bytes = 0


class Shares:
    def __init__(self, producers_max: int, bytes_max: int) -> None:
        self._producers_max = producers_max
        self._bytes_max = bytes_max
        self._shares: dict[str, _Share] = {}
        """By the name of the principal."""

    def add(self, owner: str, producer: bytes, size_bytes: int = 0) -> None:
        share = self._shares.setdefault(owner, _Share())
        share.producers[producer] = None
        share.size_bytes += size_bytes

    def used(self, owner: str, producer: bytes) -> None:
        """Note a request of a producer."""
        self._shares[owner].producers.move_to_end(producer)

    def grown(self, owner: str, size_bytes: int) -> None:
        """Note by how much the answers of a principal's producers have changed."""
        self._shares[owner].size_bytes += size_bytes

    def remove(self, owner: str, producer: bytes, size_bytes: int) -> None:
        share = self._shares[owner]
        del share.producers[producer]
        share.size_bytes -= size_bytes
        if not share.producers:
            del self._shares[owner]

    def first_to_go(self, owner_of_oldest: str) -> bytes:
        """Return the id of the producer that makes way. Among equals it is that of the principal with the oldest of all."""
        shares = [self._shares[owner_of_oldest], *self._shares.values()]
        return next(iter(max(shares, key=self._weight).producers))

    def _weight(self, share: _Share) -> int:
        """What part of the room a principal has, of the producers or of the bytes, whichever is more; to be compared only."""
        return max(len(share.producers) * self._bytes_max, share.size_bytes * self._producers_max)

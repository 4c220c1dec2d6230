"""A disk that is only read, and that shows segments as the next start will find them: with the journal applied."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from pathlib import Path

from penstock.log.embedded.disk import Disk


class OverlayDisk(Disk):
    """Reads files; what was patched over them is seen instead of what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self._paths: dict[int, Path] = {}
        self._patches: dict[Path, list[tuple[int, bytes]]] = {}
        self._sorted: set[Path] = set()

    def patch(self, path: Path, position: int, data: bytes) -> None:
        """Show these bytes at a position. Of patches to one position, the last counts."""
        self._patches.setdefault(path, []).append((position, data))
        self._sorted.discard(path)

    def size_of(self, path: Path) -> int:
        """Return the size of a file with its patches."""
        ends = (position + len(data) for position, data in self._patches.get(path, ()))
        return max(path.stat().st_size, *ends, 0)

    def open_read(self, path: Path) -> int:
        fd = super().open_read(path)
        self._paths[fd] = path
        return fd

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        data = super().pread(fd, size_bytes, position)
        path = self._paths.get(fd)
        if path is None or path not in self._patches:
            return data
        return self._patched(path, data, size_bytes, position)

    def _patched(self, path: Path, data: bytes, size_bytes: int, position: int) -> bytes:
        patches = self._patches[path]
        if path not in self._sorted:
            # Stable, so that later ones stay behind earlier ones; and they are disjoint but for repetitions.
            patches.sort(key=lambda patch: patch[0])
            self._sorted.add(path)
        first = bisect_right(patches, position, key=lambda patch: patch[0])
        while first and patches[first - 1][0] + len(patches[first - 1][1]) > position:
            first -= 1
        last = bisect_left(patches, position + size_bytes, key=lambda patch: patch[0])
        window = bytearray(data)
        if len(window) < size_bytes:  # between the end of the file and a later patch there are zeros
            window.extend(bytes(max(0, min(self.size_of(path) - position, size_bytes) - len(window))))
        for at, patch in patches[first:last]:
            start, stop = max(at, position), min(at + len(patch), position + size_bytes)
            if stop > start:
                window[start - position : stop - position] = patch[start - at : stop - at]
        return bytes(window)

"""What was sent, and what became of it: the witness that a delivery check believes instead of the broker.

One append-only file outside the broker's directory. Records are written to it and synced before they are sent, outcomes after the
answer came, so whatever crashes, every record the broker may hold is in the journal. A record without an outcome is `unknown`: it may
be in the log or not. The file is JSON lines (bytes as base64), so a failed run can be read with any tool.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

NO_PLACE: Final = (-1, -1)
"""The place of a record that was acknowledged without one."""


class Attempt(msgspec.Struct, gc=False):
    """One record, sent once. A record sent again is another attempt with the same value."""

    id: int
    producer: str
    topic: str
    key: bytes | None
    value: bytes
    state: Literal["acked", "failed", "unknown"] = "unknown"
    partition: int = -1
    offset: int = -1


class _Sending(msgspec.Struct, tag="sending", gc=False):
    first_id: int
    producer: str
    topic: str
    values: list[bytes]
    keys: list[bytes | None] | None = None


class _Acked(msgspec.Struct, tag="acked", gc=False):
    ids: list[int]
    places: list[tuple[int, int]]


class _Failed(msgspec.Struct, tag="failed", gc=False):
    ids: list[int]
    reason: str


class _Unknown(msgspec.Struct, tag="unknown", gc=False):
    ids: list[int]
    reason: str


_Entry = _Sending | _Acked | _Failed | _Unknown


class Journal:
    """Append to (or continue with) the journal at `path`. Any number of threads may write.

    ```python
    with Journal(tmp_path / "journal") as journal:
        ids = journal.sending("producer-1", "orders", [b"a", b"b"])
        ...                                       # send them
        journal.acked(ids, [(0, 17), (0, 18)])    # or journal.failed(ids, why), journal.unknown(ids, why)
    report = check(journal, {"flymq": read_everything()})
    ```
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._next_id = 1 + max((attempt.id for attempt in read_attempts(self.path)), default=-1)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._end_torn_line()

    def sending(
        self, producer: str, topic: str, values: Sequence[bytes], keys: Sequence[bytes | None] | None = None
    ) -> range:
        """Note records that are about to be sent, in this order, over one connection; returns their ids.

        Order is checked per producer, and a broker promises order within a connection only: after a reconnect, use a new name.
        """
        if keys is not None and len(keys) != len(values):
            raise ValueError(f"{len(values)} values came with {len(keys)} keys; give one key (or None) for each value")
        with self._lock:
            first_id = self._next_id
            self._next_id += len(values)
            self._append(_Sending(first_id, producer, topic, list(values), None if keys is None else list(keys)))
        return range(first_id, first_id + len(values))

    def acked(self, ids: Iterable[int], places: Iterable[tuple[int, int]]) -> None:
        """The broker acknowledged these records at these (partition, offset) places, `NO_PLACE` if the protocol does not tell."""
        entry = _Acked(list(ids), [(partition, offset) for partition, offset in places])
        if len(entry.ids) != len(entry.places):
            raise ValueError(
                f"{len(entry.ids)} records came with {len(entry.places)} places; give one place for each record"
            )
        with self._lock:
            self._append(entry)

    def failed(self, ids: Iterable[int], reason: str) -> None:
        """The broker refused these records and promised that they were not stored."""
        with self._lock:
            self._append(_Failed(list(ids), reason))

    def unknown(self, ids: Iterable[int], reason: str) -> None:
        """No answer, or one that leaves open whether these records are stored."""
        with self._lock:
            self._append(_Unknown(list(ids), reason))

    def attempts(self) -> list[Attempt]:
        """Everything sent so far with its latest outcome, in the order it was sent, read back from the file."""
        return read_attempts(self.path)

    def close(self) -> None:
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, entry: _Entry) -> None:
        line = self._encoder.encode(entry) + b"\n"
        while line:
            line = line[os.write(self._file, line) :]
        os.fdatasync(self._file)

    def _end_torn_line(self) -> None:
        """A crash of the writer may have left half a line; end it, so that it cannot swallow the next one."""
        size = os.fstat(self._file).st_size
        if size and self.path.read_bytes()[-1:] != b"\n":
            os.write(self._file, b"\n")


def read_attempts(path: Path | str) -> list[Attempt]:
    """The attempts in a journal file. A line cut short by a crash is ignored: its records were never sent."""
    path = Path(path)
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(_Entry)
    attempts: dict[int, Attempt] = {}
    for line in path.read_bytes().splitlines():
        try:
            entry = decoder.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(entry, _Sending):
            keys = entry.keys or [None] * len(entry.values)
            for number, (key, value) in enumerate(zip(keys, entry.values, strict=True), entry.first_id):
                attempts[number] = Attempt(number, entry.producer, entry.topic, key, value)
        elif isinstance(entry, _Acked):
            for number, (partition, offset) in zip(entry.ids, entry.places, strict=True):
                attempt = attempts[number]
                attempt.state, attempt.partition, attempt.offset = "acked", partition, offset
        else:
            state: Literal["failed", "unknown"] = "failed" if isinstance(entry, _Failed) else "unknown"
            for number in entry.ids:
                attempts[number].state = state
    return [attempts[number] for number in sorted(attempts)]

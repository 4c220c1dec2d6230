"""How far a migration has come: what of each partition was verified, and its checksum. Lost, it only has to verify again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import CorruptMetadata, InvalidRequest
from penstock.log.migration.record_checksum import RecordChecksum

STATE_FILE: Final = "migration.json"


class PartitionState(msgspec.Struct):
    verified: int = 0
    """The offset up to which the target was found to be equal to the source."""
    records: int = 0
    latest_ms: int = 0
    sums: list[int] = msgspec.field(default_factory=lambda: RecordChecksum().sums)

    @property
    def checksum(self) -> RecordChecksum:
        return RecordChecksum(self.records, self.latest_ms, self.sums)

    def note(self, verified: int, checksum: RecordChecksum) -> None:
        self.verified, self.records = verified, checksum.records
        self.latest_ms, self.sums = checksum.latest_ms, checksum.sums


class TopicState(msgspec.Struct):
    name: str
    partitions: list[PartitionState]
    copied_ms: int
    """When the last pass over it began that came to its end, or the first one."""


class State(msgspec.Struct):
    target: str
    """The engine that is filled."""
    topics: dict[str, TopicState] = {}
    """By the id of the topic."""
    finished: bool = False


class StateFile:
    """The state, and the file it is saved in."""

    def __init__(self, directory: Path, target: str) -> None:
        """`directory` is the data directory of the target's broker. Raises CorruptMetadata if the file is there and not readable."""
        self.path = directory / STATE_FILE
        self.state = _read(self.path) or State(target)
        if self.state.target != target:
            raise InvalidRequest(
                f"{self.path} is of a migration to the engine {self.state.target!r}: use another data_dir for this target, or remove it"
            )

    def check_unfinished(self) -> None:
        """Raise InvalidRequest if the migration was finished. Asked before the target is opened: a node may serve it by now."""
        if self.state.finished:
            raise InvalidRequest(
                f"this migration was finished before: remove {self.path} to begin another, to a target without these topics"
            )

    def save(self) -> None:
        draft = self.path.with_suffix(".tmp")
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(self.state))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)


def check_served(directory: Path, engine: str) -> None:
    """Raise InvalidRequest if a migration to this engine has not finished: a broker must not serve a part of a log."""
    state = _read(directory / STATE_FILE)
    if state is not None and state.target == engine and not state.finished:
        raise InvalidRequest(
            f"a migration to this broker has not finished: run penstock migrate with --finish first, or remove {directory / STATE_FILE} "
            "to serve what was copied so far"
        )


def _read(path: Path) -> State | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise CorruptMetadata(
            f"{path} is damaged: {error}; remove it, and all that was copied is verified again"
        ) from error

"""What every kind of schema offers.

A definition is text that a client registers. `parse` does everything that may take long (compiling, judging the cost) and gives a
`form` to store, from which `load` makes the definition again without that work. A definition makes checkers, which check records,
and tells whether it can read what another version of the same schema wrote.

Every loop over hostile input has one of the bounds below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import ClassVar, Final, NamedTuple, Protocol, Self

DOCUMENT_DEPTH_MAX: Final = 100
"""Levels of nesting in one record. Protobuf's own parsers stop there too."""
REASONS_MAX: Final = 10
"""How many things are said to be wrong with one record or one definition."""
REASON_CHARS_MAX: Final = 300
COST_UNBOUNDED: Final = 1_000_000
"""The cost of checking where no useful bound is known, or none that is lower."""


class Fault(NamedTuple):
    """A record that is not what its schema says: its place among those that were checked."""

    row: int
    reason: str


class Checker(Protocol):
    """Checks records against one definition. Knows nothing of tombstones: a record without a value is not handed to it."""

    message_path: tuple[int, ...]
    """For a Protobuf message: its place in the definition, or in the message around it, and so on. Empty for other kinds."""

    def first_fault(self, values: Sequence[bytes]) -> Fault | None: ...

    def faults(self, value: bytes) -> list[str]:
        """What is wrong with one record: at most REASONS_MAX reasons, none where it is sound."""


def first_faults(checker: Checker, values: Sequence[bytes], units: Sequence[int] | None) -> Iterator[Fault]:
    """Yield the first fault of each unit that has one. `units` has the number of records of each; None if each record is one."""
    start = 0
    for size in repeat(1, len(values)) if units is None else units:
        fault = checker.first_fault(values[start : start + size]) if size else None
        if fault is not None:
            yield Fault(start + fault.row, fault.reason)
        start += size


class Definition(ABC):
    kind: ClassVar[str]
    cost: int
    """How long checking one byte takes at worst, as a multiple of some 25 ns."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Raises SchemaInvalid. May take long, or much memory: not for the event loop."""

    @classmethod
    @abstractmethod
    def load(cls, text: str, form: bytes, cost: int) -> Self:
        """A definition that was parsed before."""

    @property
    @abstractmethod
    def form(self) -> bytes:
        """What to store with the text."""

    @property
    @abstractmethod
    def identity(self) -> bytes:
        """Equal for two texts that differ in nothing that matters, such as spaces."""

    @property
    def crc64(self) -> bytes:
        """The CRC-64-AVRO fingerprint of an Avro schema, little-endian; empty for other kinds."""
        return b""

    @abstractmethod
    def checker(self, message: str) -> Checker:
        """`message` names a Protobuf message; empty for the only or first one. Raises InvalidRequest if there is none such."""

    @abstractmethod
    def problems_reading(self, writer: Self) -> list[str]:
        """Why a reader with this definition cannot read every record of a writer with the other; empty if it can."""

    def problems_following(self, older: Self) -> list[str]:
        """Return the incompatibilities of this definition as the next version of the other, for any reader."""
        return []


def shortened(reason: str) -> str:
    """A reason that fits into an error text: what a client sent may be quoted in it, whatever its size."""
    reason = " ".join(reason.split())
    return reason if len(reason) <= REASON_CHARS_MAX else reason[: REASON_CHARS_MAX - 3] + "..."

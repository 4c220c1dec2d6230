"""Topic settings as text, and what a topic looks like from outside.

Settings travel as pairs of strings (in FlyMQ's CREATE_TOPIC and METADATA); `parse_topic_config` and `format_topic_config` turn
them into a TopicConfig and back. Numbers may carry a unit ("64 MiB", "7d"); what is written back is plain. The bounds are checked
on the TopicConfig, so that settings from the configuration file meet the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.broker.limits import INT64_MAX
from penstock.errors import InvalidRequest
from penstock.log.api import PARTITIONS_MAX, Durability, Engine, TopicConfig, TopicInfo
from penstock.units import parse_duration_ms, parse_size

FOREVER: Final = "forever"

# name: lowest, highest. Segments below 64 KiB cost more files than they save; an index addresses 2 GiB; a segment is not rolled
# more often than once a second.
_BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "partitions": (1, PARTITIONS_MAX),
    "retention_ms": (1, INT64_MAX),
    "retention_bytes": (1, INT64_MAX),
    "segment_bytes": (1 << 16, 1 << 31),
    "segment_ms": (1000, INT64_MAX),
}


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    index: int
    start_offset: int
    committed_end: int
    size_bytes: int
    failure: str | None
    """Why the partition refuses writes, or None."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    info: TopicInfo
    partitions: tuple[PartitionDescription, ...]


def describe(engine: Engine, info: TopicInfo) -> TopicDescription:
    return TopicDescription(
        info,
        tuple(
            PartitionDescription(each.index, each.start_offset, each.committed_end, each.size_bytes, each.failure)
            for each in engine.partitions(info)
        ),
    )


# -- settings -------------------------------------------------------------------------------------------------------------


def check_topic_config(config: TopicConfig) -> None:
    """Raises InvalidRequest if a setting is out of its bounds."""
    for name, (lowest, highest) in _BOUNDS.items():
        number = getattr(config, name)
        if number is not None and not lowest <= number <= highest:
            raise InvalidRequest(f"topic setting {name} is {number}: it must be between {lowest} and {highest}")


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return parse


def _or_forever(parse: Callable[[str], int]) -> Callable[[str], int | None]:
    return lambda text: None if text == FOREVER else parse(text)


def _whole_number(text: str) -> int:
    # int() would also take signs, spaces, underscores and other scripts' digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "partitions": _whole_number,
    "durability": Durability.parse,
    "retention_ms": _or_forever(parse_duration_ms),
    "retention_bytes": _or_forever(parse_size),
    "cleanup": _one_of("delete", "compact"),
    "compression": _one_of("none", "zstd"),
    "segment_bytes": parse_size,
    "segment_ms": parse_duration_ms,
}


def parse_topic_config(settings: Iterable[tuple[str, str]], defaults: TopicConfig) -> TopicConfig:
    """The defaults with the given settings over them. Raises InvalidRequest naming the setting that is unknown, given twice or wrong."""
    given: dict[str, Any] = {}
    for name, text in settings:
        parse = _PARSERS.get(name)
        if parse is None:
            raise InvalidRequest(f"topic setting {name!r} is not known: use {', '.join(_PARSERS)}")
        if name in given:
            raise InvalidRequest(f"topic setting {name} is given twice: give it once")
        try:
            given[name] = parse(text)
        except (ValueError, InvalidRequest) as error:
            raise InvalidRequest(f"topic setting {name}: {error}") from None
    config = replace(defaults, **given)
    check_topic_config(config)
    return config


def changed_settings(before: TopicConfig, after: TopicConfig) -> dict[str, tuple[str, str]]:
    """Return the settings that differ, by name, each with its text before and after."""
    pairs = zip(format_topic_config(before), format_topic_config(after), strict=True)
    return {name: (old, new) for (name, old), (_, new) in pairs if old != new}


def format_topic_config(config: TopicConfig) -> list[tuple[str, str]]:
    """Every setting as text, in a fixed order; `parse_topic_config` reads it back to an equal TopicConfig."""
    return [(name, FOREVER if (value := getattr(config, name)) is None else str(value)) for name in _PARSERS]

"""Values of options as Spark passes them: texts, under names in lower case. Whatever is wrong with one is said with its name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping

from penstock.errors import InvalidRequest
from penstock.units import parse_duration_ms, parse_size

_FLAGS = {"true": True, "false": False}
INTERNAL_PREFIX = "penstock.internal."
"""Of options that this package gives itself, and that nobody is told of."""
_KAFKA_PREFIXES = ("kafka.", "kafkaconsumer.", "fetchoffset.", "partition.metadata.cache.")


def flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    value = _FLAGS.get(text.strip().lower())
    if value is None:
        raise InvalidRequest(f"option {name} is {text!r}: use true or false")
    return value


def number(given: Mapping[str, str], name: str, *, least: int = 1, most: int = (1 << 63) - 1) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    stripped = text.strip()
    digits = stripped.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise InvalidRequest(f"option {name} is {text!r}: use a whole number")
    value = int(stripped)
    if not least <= value <= most:
        raise InvalidRequest(
            f"option {name} is {value}: use {least} or more" + (f", at most {most}" if most < 1 << 62 else "")
        )
    return value


def size(given: Mapping[str, str], name: str) -> int | None:
    """Bytes: a number, or a text with a unit, as in "64 MiB"."""
    return _with_unit(given, name, parse_size)


def duration_ms(given: Mapping[str, str], name: str) -> int | None:
    """Milliseconds: a number, or a text with a unit, as in "15m"."""
    return _with_unit(given, name, parse_duration_ms)


def _with_unit(given: Mapping[str, str], name: str, parse: Callable[[str], int]) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        value = parse(text)
    except ValueError as error:
        raise InvalidRequest(f"option {name}: {error}") from None
    if value < 1:
        raise InvalidRequest(f"option {name} is {text!r}: it must be more than 0")
    return value


def check_names(given: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, str]) -> None:
    """Refuse names that are not known, each with a hint. `elsewhere` has, by name in lower case, what to say of options that mean
    something somewhere else."""
    by_lower = {name.lower(): name for name in known}
    for name in given:
        lower = name.lower()
        if lower in by_lower or lower.startswith(INTERNAL_PREFIX):
            continue
        if lower in elsewhere:
            raise InvalidRequest(f"option {name}: {elsewhere[lower]}")
        if lower in ("kafka.bootstrap.servers", "bootstrap.servers"):
            raise InvalidRequest(
                f"option {name} names an Apache Kafka: set penstock.bootstrap to the host:port of this broker's FlyMQ listener instead"
            )
        if lower == "kafka.group.id":
            raise InvalidRequest(f"option {name} belongs to Spark's Kafka connector: set the option group instead")
        if lower.startswith(_KAFKA_PREFIXES):
            raise InvalidRequest(f"option {name} belongs to Spark's Kafka connector and has no meaning here: remove it")
        near = difflib.get_close_matches(lower, by_lower, 1, 0.6)
        hint = f"did you mean {by_lower[near[0]]}?" if near else f"known are {', '.join(sorted(by_lower.values()))}"
        raise InvalidRequest(f"option {name} is not known: {hint}")

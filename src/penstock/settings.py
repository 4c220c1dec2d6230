"""The base of all sections of the configuration, and the types of settings that several packages have.

A section is declared next to what it configures where that is below `config`, so that a setting has one declaration. The strings below the
fields are the reference: docs/reference/configuration.md is generated from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from penstock.errors import InvalidRequest
from penstock.names import INTERNAL_PREFIX, NAME_BYTES_MAX, is_internal, validate_group_name, validate_topic_name
from penstock.units import parse_duration_ms, parse_duration_s, parse_size


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Reason:
    """Stands in the annotation of a setting that has a ceiling, and ends the error of a larger value."""

    text: str


def number_or_text(value: object) -> int | float | str:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return value
    raise ValueError("write a number, or a text with a unit")


Size = Annotated[int, BeforeValidator(lambda value: parse_size(number_or_text(value)))]
DurationMs = Annotated[int, BeforeValidator(lambda value: parse_duration_ms(number_or_text(value)))]
Seconds = Annotated[float, BeforeValidator(lambda value: parse_duration_s(number_or_text(value)))]


def _topic_name(name: str) -> str:
    try:
        validate_topic_name(name)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
    if is_internal(name):
        raise ValueError(f"topic {name} is internal: names beginning with {INTERNAL_PREFIX} belong to the broker")
    return name


def _group_name(name: str) -> str:
    try:
        validate_group_name(name, NAME_BYTES_MAX)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
    return name


TopicName = Annotated[str, Field(min_length=1), AfterValidator(_topic_name)]
GroupName = Annotated[str, Field(min_length=1), AfterValidator(_group_name)]
ExpandedPath = Annotated[Path, AfterValidator(Path.expanduser)]

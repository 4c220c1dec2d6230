"""The base of all sections of the configuration, and settings with a unit.

A section is declared next to what it configures where that is below `config`, so that a setting has one declaration. The strings below the
fields are the reference: docs/reference/configuration.md is generated from them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from penstock.units import parse_duration_ms, parse_duration_s, parse_size


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def number_or_text(value: object) -> int | float | str:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return value
    raise ValueError("write a number, or a text with a unit")


Size = Annotated[int, BeforeValidator(lambda value: parse_size(number_or_text(value)))]
DurationMs = Annotated[int, BeforeValidator(lambda value: parse_duration_ms(number_or_text(value)))]
Seconds = Annotated[float, BeforeValidator(lambda value: parse_duration_s(number_or_text(value)))]

"""The types of settings: what a value may be, in which units, and the error if it is not."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from penstock.errors import InvalidRequest
from penstock.log.api import Durability
from penstock.settings import DurationMs, Size, number_or_text
from penstock.units import parse_address, parse_size

FOREVER = "forever"
DATAGRAM_BYTES_MIN = 1_200
DATAGRAM_BYTES_MAX = 65_000


def _durability(text: object) -> str:
    try:
        return str(Durability.parse(str(text)))
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


def _address(text: str) -> str:
    return str(parse_address(text))


def _http_url(text: str) -> str:
    if not text:
        return text
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is not the address of an HTTP server: write it as http://127.0.0.1:4318")
    if parts.username is not None:
        raise ValueError(
            "everyone who may see settings sees the address of an HTTP server: leave the password out of it"
        )
    return text


def _datagram_bytes(value: object) -> int | str:
    """Validate both alternatives here: a union would report a wrong value once for each of them."""
    if value == "auto":
        return "auto"
    wrong = f'use {DATAGRAM_BYTES_MIN} to {DATAGRAM_BYTES_MAX} bytes, or "auto"'
    try:
        size_bytes = parse_size(number_or_text(value))
    except ValueError:
        raise ValueError(f"{value!r} is not a size: {wrong}") from None
    if not DATAGRAM_BYTES_MIN <= size_bytes <= DATAGRAM_BYTES_MAX:
        raise ValueError(f"{value!r} is out of range: {wrong}")
    return size_bytes


def _none_if_forever(value: object) -> object:
    return None if isinstance(value, str) and value.strip().lower() == FOREVER else value


OptionalSize = Annotated[Size | None, BeforeValidator(_none_if_forever)]
OptionalDurationMs = Annotated[DurationMs | None, BeforeValidator(_none_if_forever)]
DatagramBytes = Annotated[
    Annotated[int, Field(ge=DATAGRAM_BYTES_MIN, le=DATAGRAM_BYTES_MAX)] | Literal["auto"],
    BeforeValidator(_datagram_bytes),
]
DurabilityText = Annotated[str, BeforeValidator(_durability)]
Bind = Annotated[str, AfterValidator(_address)]
SegmentBytes = Annotated[Size, Field(ge=1 << 16, le=1 << 31)]
SegmentMs = Annotated[DurationMs, Field(ge=1000)]
Compression = Literal["none", "zstd"]
ApiKey = Annotated[SecretStr, Field(min_length=1, max_length=1024)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
FelixName = Annotated[str, Field(min_length=1, max_length=200, pattern="^[^/]+$")]

"""How a schema is named: "orders" is its latest version, "orders:3" that version, "orders:shop.Order" and "orders:3:Order" one message of
a Protobuf schema."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final, Literal, NamedTuple, get_args

from penstock.errors import InvalidRequest, SchemaInvalid
from penstock.names import NAME_BYTES_MAX

LATEST: Final = 0
VERSION_MAX: Final = (1 << 32) - 1
SchemaType = Literal["json", "avro", "protobuf"]
Compatibility = Literal[
    "none", "backward", "forward", "full", "backward_transitive", "forward_transitive", "full_transitive"
]
TRANSITIVE: Final = "_transitive"
"""A version must be compatible with all versions before it, not only with the one before."""
_ALIASES: Final = {"proto": "protobuf"}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_VERSION: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_MESSAGE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,500}", re.ASCII)


class Reference(NamedTuple):
    name: str
    version: int = LATEST
    """LATEST, or the number of one version."""
    message: str = ""
    """For a Protobuf schema; empty for its first."""

    def __str__(self) -> str:
        parts = [self.name, str(self.version) if self.version else "", self.message]
        return ":".join(part for part in parts if part)


def parse_reference(text: str) -> Reference:
    """Raises InvalidRequest."""
    name, *parts = text.split(":")
    validate_schema_name(name)
    version = int(parts.pop(0)) if parts and _VERSION.fullmatch(parts[0]) else LATEST
    message = parts.pop(0) if parts and _MESSAGE.fullmatch(parts[0]) else ""
    if parts or version > VERSION_MAX:
        raise InvalidRequest(
            f"{text!r} does not name a schema: use a name, name:version, name:Message or name:version:Message"
        )
    return Reference(name, version, message)


def parse_named_version(text: str) -> Reference:
    """Return the version that a text such as "orders:2" names. Raises InvalidRequest if it names none, or a message too."""
    with suppress(InvalidRequest):
        reference = parse_reference(text)
        if reference.version != LATEST and not reference.message:
            return reference
    raise InvalidRequest(f"{text!r} names no version of a schema: write one as in orders:2")


def parse_version(text: str) -> int | None:
    """Return the number of a version as a path names it, None for anything else."""
    number = int(text) if _VERSION.fullmatch(text) else 0
    return number if 0 < number <= VERSION_MAX else None


def validate_schema_name(name: str) -> None:
    """Raises InvalidRequest."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"schema name {name!r} is not valid Unicode text") from None
    if not 1 <= size <= NAME_BYTES_MAX:
        raise InvalidRequest(f"schema name has {size} bytes: use 1 to {NAME_BYTES_MAX}")
    if _CONTROL.search(name) or ":" in name:
        raise InvalidRequest(f'schema name {name!r} contains a control character or ":": leave them out')


def schema_type(name: str) -> SchemaType:
    """The type that a client names, by any of its names. Raises SchemaInvalid."""
    name = _ALIASES.get(name.lower(), name.lower())
    for known in get_args(SchemaType):
        if known == name:
            return known  # type: ignore[no-any-return]
    raise SchemaInvalid(f"unsupported schema type: {name} (use {', '.join(get_args(SchemaType))})")


def compatibility_mode(name: str) -> Compatibility:
    """Raises InvalidRequest."""
    for known in get_args(Compatibility):
        if known == name:
            return known  # type: ignore[no-any-return]
    raise InvalidRequest(f"compatibility {name!r} is not known: use {', '.join(get_args(Compatibility))}")

"""JSON Schema by jsonschema-rs: draft 2020-12, or the older draft that a definition names in `$schema`.

Nothing is fetched: a reference to another document is refused. Patterns run on an engine that matches in linear time, so lookaround
and backreferences are refused too. `format` is an annotation, as the draft has it. Records are UTF-8 JSON without NaN and Infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, Self

import jsonschema_rs
import msgspec

from penstock.broker.schemas.definition import (
    DOCUMENT_DEPTH_MAX,
    REASONS_MAX,
    Checker,
    Definition,
    Fault,
    shortened,
)
from penstock.broker.schemas.json_compatibility import problems_reading
from penstock.broker.schemas.json_cost import evaluations_per_value
from penstock.errors import InvalidRequest, SchemaInvalid

PATTERN_BYTES_MAX: Final = 1 << 20
"""Per compiled pattern; also of what the engine keeps to match it faster."""
_PATTERNS: Final = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES_MAX, dfa_size_limit=PATTERN_BYTES_MAX)
_JSON: Final = msgspec.json.Decoder()
_CANONICAL: Final = msgspec.json.Encoder(order="deterministic")
# What decoding raises besides DecodeError: a number beyond a double's range, bytes that are not UTF-8, too deep for the interpreter.
_UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class JsonText(Definition):
    """A definition that is written in JSON, of which nothing else is stored."""

    def __init__(self, text: str, cost: int) -> None:
        self._text = text
        self.cost = cost

    @classmethod
    def load(cls, text: str, form: bytes, cost: int) -> Self:
        return cls(text, cost)

    @property
    def form(self) -> bytes:
        return b""

    @property
    def identity(self) -> bytes:
        return _CANONICAL.encode(decode_definition(self._text))


class JsonDefinition(JsonText):
    kind = "json"

    @classmethod
    def parse(cls, text: str) -> Self:
        _compiled(text)
        return cls(text, evaluations_per_value(decode_definition(text)))

    def checker(self, message: str) -> Checker:
        if message:
            raise InvalidRequest(f"a JSON schema has no messages to choose from: leave out {message!r}")
        return _JsonChecker(_compiled(self._text))

    def problems_reading(self, writer: Self) -> list[str]:
        return problems_reading(decode_definition(self._text), decode_definition(writer._text), _PATTERNS)


class _JsonChecker:
    message_path: tuple[int, ...] = ()

    def __init__(self, validator: jsonschema_rs.Validator) -> None:
        self._validator = validator

    def first_fault(self, values: Sequence[bytes]) -> Fault | None:
        try:
            # Loops in C; which record fails is asked only when one does.
            documents = list(map(_JSON.decode, values))
            deep = max(map(len, values)) > 2 * DOCUMENT_DEPTH_MAX and any(map(_too_deep, values, documents))
            if not deep and all(map(self._validator.is_valid, documents)):
                return None
        except _UNDECODABLE:
            pass
        for row, value in enumerate(values):
            reasons = self._reasons(value, reasons_max=1)
            if reasons:
                return Fault(row, reasons[0])
        return None

    def faults(self, value: bytes) -> list[str]:
        return self._reasons(value, REASONS_MAX)

    def _reasons(self, value: bytes, reasons_max: int) -> list[str]:
        try:
            document = _JSON.decode(value)
        except _UNDECODABLE as error:
            return [shortened(f"not a JSON document: {error}")]
        if _too_deep(value, document):
            return [f"nested deeper than {DOCUMENT_DEPTH_MAX} levels"]
        if self._validator.is_valid(document):
            return []
        return [_described(error) for error in islice(self._validator.iter_errors(document), reasons_max)]


def _described(error: jsonschema_rs.ValidationError) -> str:
    place = "".join(f"/{token}" for token in error.instance_path)
    return shortened(f"at {place}: {error.message}" if place else error.message)


def _too_deep(value: bytes, document: Any) -> bool:
    # Each level takes two bytes and an opening bracket, which settles almost every document without looking into it.
    if len(value) <= 2 * DOCUMENT_DEPTH_MAX or value.count(b"[") + value.count(b"{") <= DOCUMENT_DEPTH_MAX:
        return False
    level = [document]
    for _ in range(DOCUMENT_DEPTH_MAX):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
        if not below:
            return False
        level = below
    return any(isinstance(each, dict | list) for each in level)


def decode_definition(text: str) -> Any:
    """The definition as plain objects. Raises SchemaInvalid if it is not JSON."""
    try:
        return _JSON.decode(text)
    except _UNDECODABLE as error:
        raise SchemaInvalid(shortened(f"not a JSON document: {error}")) from None


def _compiled(text: str) -> jsonschema_rs.Validator:
    decode_definition(text)
    try:
        return jsonschema_rs.validator_for(text, pattern_options=_PATTERNS, offline=True)
    except jsonschema_rs.ValidationError as error:
        place = "".join(f"/{token}" for token in error.instance_path)
        raise SchemaInvalid(shortened(f"at {place}: {error.message}" if place else error.message)) from None
    except ValueError as error:
        raise SchemaInvalid(shortened(str(error))) from None

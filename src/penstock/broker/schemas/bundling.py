"""Definitions that refer to others, made self-contained when they are registered.

What a definition refers to is put into it: an Avro type where it is first named, a JSON Schema under `$defs`, a Protobuf file before the
definition, below a line with the name that it is imported by. So whatever checks, compares or decodes needs one text, and a version means
the same for good. The text as registered is kept with it, and returned to clients that ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from penstock.errors import SchemaInvalid

REFERENCES_MAX: Final = 100
"""Per definition."""
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})


MAIN_FILE: Final = "schema.proto"
"""The name of a Protobuf definition itself."""
FILE_MARK: Final = "//// file: "
"""Begins the line before each file of a Protobuf definition that has several."""


class ProtobufFile(NamedTuple):
    name: str
    text: str
    """In words, or the descriptor in base64."""


class Link(msgspec.Struct, frozen=True, array_like=True):
    """A reference of a definition to a version of a schema."""

    name: str
    """As the definition says it: the full name of an Avro type, what stands in `$ref`, or the file that Protobuf imports."""
    schema: str
    version: int


def bundled(kind: str, text: str, parts: Sequence[tuple[str, str]]) -> str:
    """Return a definition with those in it that it refers to, each by its name and self-contained. Raises SchemaInvalid."""
    if not parts:
        return text
    if kind == "protobuf":
        return _with_files(text, parts)
    try:
        document = msgspec.json.decode(text)
        others = [(name, msgspec.json.decode(each)) for name, each in parts]
        whole = _with_types(document, others) if kind == "avro" else _with_documents(document, others)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SchemaInvalid(f"not a JSON document: {error}") from None
    except RecursionError:
        raise SchemaInvalid("the definition is nested too deep") from None
    return msgspec.json.encode(whole).decode()


# -- Protobuf -------------------------------------------------------------------------------------------------------------


def _with_files(text: str, others: Sequence[tuple[str, str]]) -> str:
    files: dict[str, str] = {}
    for name, other in others:
        *imported, own = files_of(other)
        for file in (*imported, ProtobufFile(name, own.text)):
            if file.name == MAIN_FILE or not file.name or not file.name.isprintable():
                raise SchemaInvalid(f"{file.name!r} cannot be the name of an imported file: give it another one")
            if files.setdefault(file.name, file.text) != file.text:
                raise SchemaInvalid(f"{file.name} is imported in two versions: refer to one of them")
    whole = [f"{FILE_MARK}{name}\n{each}" for name, each in files.items()]
    return "\n".join([*whole, f"{FILE_MARK}{MAIN_FILE}", text])


def files_of(text: str) -> list[ProtobufFile]:
    """Return the files of a Protobuf definition: what it imports, each behind what that imports, and then the definition itself."""
    first, *others = f"\n{text}".split(f"\n{FILE_MARK}")
    if not others:
        return [ProtobufFile(MAIN_FILE, text)]
    if first.strip():
        raise SchemaInvalid(f"the first line of a definition with several files is {FILE_MARK} and a name")
    split = [each.partition("\n") for each in others]
    return [ProtobufFile(name.strip(), own) for name, _, own in split]


# -- Avro -----------------------------------------------------------------------------------------------------------------


def _with_types(document: Any, others: Sequence[tuple[str, Any]]) -> Any:
    own = set(_defined_within(document, ""))
    waiting: dict[str, Any] = {}
    for _, other in others:
        for branch in other if isinstance(other, list) else [other]:
            if _is_named(branch):
                name, _ = _full_name(branch, "")
                waiting.setdefault(name, branch)
    return _Placing({name: each for name, each in waiting.items() if name not in own}).place(document, "")


def _is_named(schema: Any) -> bool:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return isinstance(kind, str) and kind in _NAMED and isinstance(schema.get("name"), str)


def _defined_within(schema: Any, namespace: str) -> Iterator[str]:
    """Yield the full names of the types that are defined anywhere in a schema."""
    if isinstance(schema, list):
        for each in schema:
            yield from _defined_within(each, namespace)
    elif isinstance(schema, dict):
        if _is_named(schema):
            name, namespace = _full_name(schema, namespace)
            yield name
        for each in schema.values():
            yield from _defined_within(each, namespace)


def _full_name(schema: dict[str, Any], namespace: str) -> tuple[str, str]:
    """The full name of a named type, and the namespace that holds inside it."""
    name: str = schema["name"]
    if "." in name:
        return name, name.rpartition(".")[0]
    space = schema.get("namespace", namespace)
    space = space if isinstance(space, str) else namespace
    return (f"{space}.{name}" if space else name), space


class _Placing:
    """Puts types that wait into a schema, each where it is first named."""

    def __init__(self, waiting: dict[str, Any]) -> None:
        self._waiting = waiting
        self._placed: set[str] = set()

    def place(self, schema: Any, namespace: str, *, foreign: bool = False) -> Any:
        """Return a schema with those types in it. `foreign`: it is one of them, or inside one."""
        if isinstance(schema, str):
            return self._named(schema, namespace)
        if isinstance(schema, list):
            return [self.place(branch, namespace, foreign=foreign) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        if _is_named(schema):
            return self._definition(schema, namespace, foreign=foreign)
        changed = {
            key: self.place(each, namespace, foreign=foreign) if key in ("type", "items", "values") else each
            for key, each in schema.items()
        }
        # A type in brackets of its own, which not every parser takes for the type itself.
        return changed["type"] if changed.keys() == {"type"} else changed

    def _named(self, mentioned: str, namespace: str) -> Any:
        if mentioned not in _PRIMITIVES:
            for name in (mentioned,) if "." in mentioned or not namespace else (f"{namespace}.{mentioned}", mentioned):
                if name in self._waiting:
                    space, _, short = name.rpartition(".")
                    definition = {**self._waiting.pop(name), "name": short, "namespace": space}
                    return self._definition(definition, "", foreign=True)
        return mentioned

    def _definition(self, schema: dict[str, Any], namespace: str, *, foreign: bool) -> Any:
        name, inside = _full_name(schema, namespace)
        if foreign:
            if name in self._placed:
                return name  # another reference has brought it
            self._placed.add(name)
            self._waiting.pop(name, None)
        fields = schema.get("fields")
        if not isinstance(fields, list):
            return schema
        placed = [
            {**field, "type": self.place(field["type"], inside, foreign=foreign)}
            if isinstance(field, dict) and "type" in field
            else field
            for field in fields
        ]
        return {**schema, "fields": placed}


# -- JSON Schema ----------------------------------------------------------------------------------------------------------


def _with_documents(document: Any, others: Sequence[tuple[str, Any]]) -> Any:
    if not isinstance(document, dict):
        raise SchemaInvalid("a definition with references is a JSON object")
    places = {name: f"#/$defs/{_escaped(name)}" for name, _ in others}
    whole = _pointed(document, "#", places)
    definitions = whole.get("$defs", {})
    if not isinstance(definitions, dict) or not places.keys().isdisjoint(definitions):
        raise SchemaInvalid("$defs of the definition has an entry with the name of a reference: rename one of them")
    embedded = {
        name: {key: each for key, each in _pointed(other, places[name], {}).items() if key not in ("$id", "$schema")}
        if isinstance(other, dict)
        else other
        for name, other in others
    }
    return {**whole, "$defs": {**definitions, **embedded}}


def _pointed(schema: Any, root: str, places: dict[str, str]) -> Any:
    """Return a schema whose references to itself begin at `root`, and those to others where they are now."""
    if isinstance(schema, list):
        return [_pointed(each, root, places) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _pointed(each, root, places) for key, each in schema.items()}
    target = schema.get("$ref")
    if isinstance(target, str):
        base, _, fragment = target.partition("#")
        if not base:
            changed["$ref"] = root + fragment
        elif base in places:
            changed["$ref"] = places[base] + fragment
    return changed


def _escaped(name: str) -> str:
    """A name within a JSON pointer in a URI fragment."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~")

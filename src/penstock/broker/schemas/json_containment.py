"""Proofs about JSON Schemas by jsonschema-rs: that one accepts all that another accepts, that two have no document in common.

The library answers yes, no or do not know; only a yes counts here. Subschemas are proved about together with the definitions of their
document. Where a reference leads elsewhere there is no proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jsonschema_rs
from jsonschema_rs.canonical import CanonicalizationError, Containment, Satisfiability

PROOFS_MAX: Final = 50
"""Attempts in one comparison: each takes as long as the definitions of the document are large."""
_SHARED: Final = ("$schema", "$defs", "definitions")
_DEFINITIONS: Final = ("#/$defs/", "#/definitions/")


class Proofs:
    """About a reader's and a writer's document."""

    def __init__(
        self, reader: dict[str, Any] | bool, writer: dict[str, Any] | bool, patterns: jsonschema_rs.RegexOptions
    ) -> None:
        self._reader = _Document(reader)
        self._writer = _Document(writer)
        self._patterns = patterns
        self._left = PROOFS_MAX

    def documents_covered(self, reader: dict[str, Any] | bool, writer: dict[str, Any] | bool) -> bool:
        """The same for whole documents, whatever they refer to."""
        try:
            return self._canonical(reader).covers(self._canonical(writer)) == Containment.YES
        except (CanonicalizationError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
            return False

    def covered(self, reader: Any, writers: Sequence[Any]) -> bool:
        """Whether the reader's subschema accepts whatever all of the writer's accept."""
        if not self._may_try([reader], writers):
            return False
        return self.documents_covered(self._reader.around([reader]), self._writer.around(writers))

    def disjoint(self, reader: Any, writers: Sequence[Any]) -> bool:
        """Whether the reader's subschema accepts nothing that all of the writer's accept."""
        if not self._may_try([reader], writers):
            return False
        try:
            common = self._canonical(self._reader.around([reader])).intersect(
                self._canonical(self._writer.around(writers))
            )
            return common.satisfiability() == Satisfiability.NO
        except (CanonicalizationError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
            return False

    def _may_try(self, readers: Sequence[Any], writers: Sequence[Any]) -> bool:
        self._left -= 1
        return self._left >= 0 and self._reader.contains(readers) and self._writer.contains(writers)

    def _canonical(self, schema: dict[str, Any] | bool) -> jsonschema_rs.CanonicalSchema:
        return jsonschema_rs.canonicalize(schema, pattern_options=self._patterns, offline=True)


class _Document:
    def __init__(self, root: dict[str, Any] | bool) -> None:
        self._shared: dict[str, Any] = {}
        if isinstance(root, dict):
            self._shared = {name: root[name] for name in _SHARED if name in root}
        self._closed = _refers_to_definitions([self._shared.get("$defs"), self._shared.get("definitions")])

    def contains(self, subschemas: Sequence[Any]) -> bool:
        return self._closed and _refers_to_definitions(list(subschemas))

    def around(self, subschemas: Sequence[Any]) -> dict[str, Any]:
        return {**self._shared, "allOf": list(subschemas)}


def _refers_to_definitions(values: list[Any]) -> bool:
    """Whether every reference in these values leads into a document's definitions."""
    while values:
        value = values.pop()
        if isinstance(value, dict):
            if not {"$id", "id", "$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor"}.isdisjoint(value):
                return False
            reference = value.get("$ref")
            if reference is not None and not (isinstance(reference, str) and reference.startswith(_DEFINITIONS)):
                return False
            values += value.values()
        elif isinstance(value, list):
            values += value
    return True

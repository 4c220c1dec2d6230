"""Whether a JSON Schema accepts every document that another version of it accepts.

First jsonschema-rs tries to prove it for the two as they are. If it cannot, the versions are compared keyword by keyword:
each keyword of the reader must follow from what the writer's schema says. That gives the reasons for a refusal, and it allows for
the one thing that a proof does not: **a property whose name the writer's schema does not mention is taken to be absent from its
documents when the reader gives that name a meaning.** Without that, no property could ever be added to a schema that leaves
additional ones open, because a document might have had one of that name with another meaning.

A writer is a list of schemas that all hold (its own, what it refers to, the parts of `allOf`). `anyOf` and `oneOf` of a writer are
taken apart, a case each. Of keywords that depend on others (`if`, `contains`, `dependent...`, `unevaluated...`) only the same words,
or a proof, count as compatible: what cannot be shown is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import jsonschema_rs

from penstock.broker.schemas.definition import REASONS_MAX, shortened
from penstock.broker.schemas.json_bounds import bound_problems, possible_types, type_problem, value_problem
from penstock.broker.schemas.json_containment import Proofs
from penstock.broker.schemas.json_pointer import resolve_local

STEPS_MAX: Final = 5_000
CASES_DEEP_MAX: Final = 4
"""How many `anyOf` or `oneOf` are taken apart one inside the other."""

_BY_THEMSELVES: Final = (
    ("if", "then", "else"),
    ("contains", "minContains", "maxContains"),
    ("dependentRequired",),
    ("dependentSchemas",),
    ("dependencies",),
    ("propertyNames",),
    ("$dynamicRef",),
    ("$recursiveRef",),
)
_DEPENDENT: Final = ("unevaluatedProperties", "unevaluatedItems")
_IN_PLACE: Final = frozenset(
    {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"}
)
_OBJECT_KEYWORDS: Final = (
    "required",
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
)
_ARRAY_KEYWORDS: Final = ("items", "prefixItems", "unevaluatedItems")
_REFERENCES_ALONE: Final = ("draft-03", "draft-04", "draft-06", "draft-07")
"""Drafts in which keywords besides `$ref` mean nothing."""

Schema = dict[str, Any] | bool


def problems_reading(reader: Schema, writer: Schema, patterns: jsonschema_rs.RegexOptions) -> list[str]:
    """Why the reader may refuse a document of the writer; empty if it accepts all of them."""
    proofs = Proofs(reader, writer, patterns)
    if proofs.documents_covered(reader, writer):
        return []
    comparison = _Comparison(reader, writer, proofs, patterns)
    problems = comparison.compare(reader, [writer], "", 0)
    return list(dict.fromkeys(map(shortened, problems)))[:REASONS_MAX]


class _Comparison:
    def __init__(self, reader: Schema, writer: Schema, proofs: Proofs, patterns: jsonschema_rs.RegexOptions) -> None:
        self._reader_root = reader
        self._writer_root = writer
        self._proofs = proofs
        self._patterns = patterns
        self._matchers: dict[str, jsonschema_rs.Validator] = {}
        dialect = writer.get("$schema", "") if isinstance(writer, dict) else ""
        self._references_alone = any(draft in dialect for draft in _REFERENCES_ALONE)
        self._steps_left = STEPS_MAX
        self._under_way: set[tuple[int, ...]] = set()
        self._kept: list[Schema] = []
        """Schemas made on the way: pairs under way are known by identity, so nothing may take their place in memory."""

    def compare(self, reader: Schema, writers: Iterable[Schema], path: str, cases_deep: int) -> list[str]:
        """What the reader may refuse of documents that all of the writers accept, at a place in the document."""
        conjuncts = self._conjuncts(writers)
        if reader is True or False in conjuncts:
            return []
        if reader is False:
            return [f"{_at(path)}nothing is accepted any more"]
        self._steps_left -= 1
        if self._steps_left < 0:
            return ["the two versions are too complex to compare"]
        facts = [each for each in conjuncts if isinstance(each, dict)]
        pair = (id(reader), *sorted(map(id, facts)))
        if pair in self._under_way:
            return []  # the definitions are recursive, and this pair is being compared already
        self._under_way.add(pair)
        try:
            problems = [f"{_at(path)}{problem}" for problem in self._own_problems(reader, facts)]
            problems += self._parts_problems(reader, facts, path, cases_deep)
            if not problems or self._proofs.covered(reader, facts):
                return []
            cases = self._cases(facts) if cases_deep < CASES_DEEP_MAX else None
            if cases is None:
                return problems
            return [problem for case in cases for problem in self.compare(reader, case, path, cases_deep + 1)]
        finally:
            self._under_way.remove(pair)

    # -- the writer -------------------------------------------------------------------------------------------------------

    def _conjuncts(self, writers: Iterable[Schema]) -> list[Schema]:
        """The writer's schemas with what they refer to and the parts of their `allOf`, each once."""
        waiting, found, seen = list(writers), [], set()
        while waiting:
            schema = waiting.pop()
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            if isinstance(schema, dict) and "$ref" in schema:
                target = resolve_local(self._writer_root, schema["$ref"])
                waiting += [] if target is None else [target]
                if self._references_alone:
                    continue
            if isinstance(schema, dict):
                waiting += schema.get("allOf", ())
            found.append(schema)
        return found

    def _cases(self, facts: list[dict[str, Any]]) -> list[list[Schema]] | None:
        """The first choice among the facts, a case for each way it may go."""
        for index, fact in enumerate(facts):
            for keyword in ("anyOf", "oneOf"):
                if keyword in fact:
                    # Without what was taken apart, also where it came from an `allOf` or a reference.
                    rest = [
                        {name: value for name, value in each.items() if name not in ("allOf", "$ref")} for each in facts
                    ]
                    del rest[index][keyword]
                    self._kept += rest
                    return [[*rest, branch] for branch in fact[keyword]]
        return None

    # -- the reader, keyword by keyword -----------------------------------------------------------------------------------

    def _own_problems(self, reader: dict[str, Any], facts: list[dict[str, Any]]) -> Iterator[str]:
        for problem in (type_problem(reader, facts), value_problem(reader, facts)):
            if problem is not None:
                yield problem
        yield from bound_problems(reader, facts)
        for family in _BY_THEMSELVES:
            if any(keyword in reader for keyword in family) and not self._same(reader, facts, family):
                yield f"{family[0]} is not what it is in the other version"
        banned = reader.get("not", False)
        if banned is not False and not self._same(reader, facts, ("not",)) and not self._proofs.disjoint(banned, facts):
            yield "what must not be is not what it is in the other version"
        if not _simple(reader) and not any(self._equal(reader, fact) for fact in facts):
            yield "what unevaluated... applies to cannot be shown to be the same"

    def _same(self, reader: dict[str, Any], facts: list[dict[str, Any]], family: tuple[str, ...]) -> bool:
        wanted = {keyword: reader[keyword] for keyword in family if keyword in reader}
        return any(
            self._equal(wanted, {keyword: fact[keyword] for keyword in family if keyword in fact}) for fact in facts
        )

    def _equal(self, reader: dict[str, Any], fact: dict[str, Any]) -> bool:
        # References mean the same only in documents that define the same.
        return reader == fact and (not _refers(reader) or self._reader_root == self._writer_root)

    def _parts_problems(
        self, reader: dict[str, Any], facts: list[dict[str, Any]], path: str, cases_deep: int
    ) -> list[str]:
        problems: list[str] = []
        if "$ref" in reader:
            target = resolve_local(self._reader_root, reader["$ref"])
            if target is None:
                problems.append(f"{_at(path)}reference {reader['$ref']} cannot be followed")
            else:
                problems += self.compare(target, facts, path, cases_deep)
        for branch in reader.get("allOf", ()):
            problems += self.compare(branch, facts, path, cases_deep)
        if "anyOf" in reader and not self._some(reader["anyOf"], facts, path, cases_deep):
            problems.append(f"{_at(path)}no case of anyOf accepts all that was accepted")
        if "oneOf" in reader and not self._exactly_one(reader["oneOf"], facts, path, cases_deep):
            problems.append(f"{_at(path)}no single case of oneOf accepts all that was accepted")
        types = possible_types(facts)
        if "object" in types and any(keyword in reader for keyword in _OBJECT_KEYWORDS):
            problems += self._object_problems(reader, facts, path, cases_deep)
        if "array" in types and any(keyword in reader for keyword in _ARRAY_KEYWORDS):
            problems += self._array_problems(reader, facts, path, cases_deep)
        return problems

    def _some(self, branches: list[Schema], facts: list[dict[str, Any]], path: str, cases_deep: int) -> bool:
        return any(not self.compare(branch, facts, path, cases_deep) for branch in branches)

    def _exactly_one(self, branches: list[Schema], facts: list[dict[str, Any]], path: str, cases_deep: int) -> bool:
        for index, branch in enumerate(branches):
            if not self.compare(branch, facts, path, cases_deep):
                others = branches[:index] + branches[index + 1 :]
                return all(self._proofs.disjoint(other, facts) for other in others)
        return False

    # -- objects ----------------------------------------------------------------------------------------------------------

    def _object_problems(
        self, reader: dict[str, Any], facts: list[dict[str, Any]], path: str, cases_deep: int
    ) -> list[str]:
        certain = {name for fact in facts for name in fact.get("required", ())}
        named = {name for fact in facts for name in fact.get("properties", ())} | certain
        properties, patterns = reader.get("properties", {}), reader.get("patternProperties", {})
        problems = []
        for name in reader.get("required", ()):
            if name not in certain:
                place = "is optional in" if name in named else "not in"
                problems.append(f"{_at(path)}new required field '{name}' {place} old schema")
        for name, schema in properties.items():
            written = self._written_as(name, facts)
            if written or name in certain:
                problems += self.compare(schema, written, f"{path}/{name}", cases_deep)
        for pattern, schema in patterns.items():
            for name in sorted(named):
                if self._matches(pattern, name):
                    problems += self.compare(schema, self._written_as(name, facts), f"{path}/{name}", cases_deep)
            same = [others[pattern] for others in _patterns(facts) if pattern in others]
            if same:
                problems += self.compare(schema, same, f"{path}/({pattern})", cases_deep)
            else:
                problems += self._unnamed_problems(schema, facts, f"{path}/({pattern})", cases_deep, except_for=())
        additional = _additional(reader)
        if additional is not True:
            for name in sorted(named):
                if name not in properties and not any(self._matches(pattern, name) for pattern in patterns):
                    problems += self.compare(additional, self._written_as(name, facts), f"{path}/{name}", cases_deep)
            if self._unnamed_problems(additional, facts, f"{path}/*", cases_deep, except_for=patterns):
                problems.append(f"{_at(path)}additional properties are no longer accepted as they were")
        return problems

    def _unnamed_problems(
        self, reader: Schema, facts: list[dict[str, Any]], path: str, cases_deep: int, *, except_for: Iterable[str]
    ) -> list[str]:
        """What the reader may refuse of properties that the writer does not name but allows."""
        problems = self.compare(reader, map(_additional, facts), path, cases_deep)
        for patterns in _patterns(facts):
            for pattern, schema in patterns.items():
                if pattern not in except_for:
                    problems += self.compare(reader, [schema], path, cases_deep)
        return problems

    def _written_as(self, name: str, facts: list[dict[str, Any]]) -> list[Schema]:
        """What the facts say about a property; nothing if they leave it open."""
        schemas: list[Schema] = []
        for fact in facts:
            properties = fact.get("properties", {})
            said = [properties[name]] if name in properties else []
            said += [
                each for pattern, each in fact.get("patternProperties", {}).items() if self._matches(pattern, name)
            ]
            if not said and (additional := _additional(fact)) is not True:
                said = [additional]
            schemas += said
        return schemas

    def _matches(self, pattern: str, name: str) -> bool:
        matcher = self._matchers.get(pattern)
        if matcher is None:
            matcher = self._matchers[pattern] = jsonschema_rs.Draft202012Validator(
                {"pattern": pattern}, pattern_options=self._patterns
            )
        return matcher.is_valid(name)

    # -- arrays -----------------------------------------------------------------------------------------------------------

    def _array_problems(
        self, reader: dict[str, Any], facts: list[dict[str, Any]], path: str, cases_deep: int
    ) -> list[str]:
        problems = []
        length_max = min((fact["maxItems"] for fact in facts if "maxItems" in fact), default=None)
        first, rest = _item_schemas(reader)
        positions = max(len(first), *(len(_item_schemas(fact)[0]) for fact in facts)) if facts else len(first)
        for position in range(positions + 1):
            if length_max is not None and position >= length_max:
                break
            schema = first[position] if position < len(first) else rest
            written = [_item_at(fact, position) for fact in facts]
            problems += self.compare(schema, written, f"{path}/{position if position < positions else '*'}", cases_deep)
        return problems


def _simple(schema: dict[str, Any]) -> bool:
    """Whether `unevaluated...` says the same as `additionalProperties` and `items`: nothing else evaluates."""
    return _IN_PLACE.isdisjoint(schema) or not any(keyword in schema for keyword in _DEPENDENT)


def _additional(schema: dict[str, Any]) -> Schema:
    """What holds for properties that the schema neither names nor matches by a pattern."""
    unevaluated: Schema = schema.get("unevaluatedProperties", True) if _simple(schema) else True
    additional: Schema = schema.get("additionalProperties", unevaluated)
    return additional


def _patterns(facts: list[dict[str, Any]]) -> Iterator[dict[str, Schema]]:
    return (fact["patternProperties"] for fact in facts if "patternProperties" in fact)


def _item_schemas(schema: dict[str, Any]) -> tuple[list[Schema], Schema]:
    """The schemas of the first items, and of the rest: in the words of 2020-12 or of the drafts before."""
    unevaluated: Schema = schema.get("unevaluatedItems", True) if _simple(schema) else True
    items = schema.get("items", unevaluated)
    if isinstance(items, list):
        return items, schema.get("additionalItems", unevaluated)
    return schema.get("prefixItems", []), items


def _item_at(schema: dict[str, Any], position: int) -> Schema:
    first, rest = _item_schemas(schema)
    return first[position] if position < len(first) else rest


def _refers(value: Any) -> bool:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if "$ref" in each or "$dynamicRef" in each or "$recursiveRef" in each:
                return True
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return False


def _at(path: str) -> str:
    return f"at {path}: " if path else ""

"""Two definitions side by side."""

from __future__ import annotations

import pytest

from penstock.cli.schema_diff import Side, compare
from penstock.errors import SchemaInvalid


def test_spaces_of_json_make_no_difference() -> None:
    found = compare(Side("a", "json", '{"type":"object"}'), Side("b", "json", '{ "type" : "object" }\n'))
    assert found.lines == []
    assert found.problems == {"backward": [], "forward": [], "full": []}


def test_each_compatibility_has_its_reasons() -> None:
    one = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    two = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int"}]}'
    found = compare(Side("a", "avro", one), Side("b", "avro", two))
    assert found.problems["backward"]
    assert not found.problems["forward"]
    assert found.problems["full"] == found.problems["backward"]
    assert any(line.startswith("+") and '"b"' in line for line in found.lines)


def test_another_type_is_never_compatible() -> None:
    found = compare(Side("a", "json", "{}"), Side("b", "protobuf", 'syntax = "proto3"; message M {}'))
    assert set(map(tuple, found.problems.values())) == {("the type changes from json to protobuf",)}


def test_what_is_no_definition_is_said() -> None:
    with pytest.raises(SchemaInvalid):
        compare(Side("a", "json", "{}"), Side("b", "json", "{"))

"""Schemas over the API."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.admin.api.asking import Asking, asking

FIRST = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
STRICTER = json.dumps({"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]})


@pytest.fixture(scope="module")
def ask() -> Iterator[Asking]:
    with asking() as found:
        found.ok("POST", "/schemas/orders", {"type": "json", "definition": FIRST})
        yield found


def test_schemas_and_their_versions_are_listed(ask: Asking) -> None:
    [summary] = [each for each in ask.ok("GET", "/schemas") if each["name"] == "orders"]
    assert (summary["type"], summary["compatibility"], summary["versions"]) == ("json", "backward", [1])
    [version] = ask.ok("GET", "/schemas/orders")
    assert version["definition"] == FIRST
    assert ask.ok("GET", "/schemas/orders/versions/1") == version
    assert ask.ok("GET", "/schemas/orders/versions/latest") == version
    assert ask("GET", "/schemas/orders/versions/9").code == "schema_not_found"
    assert ask("GET", "/schemas/orders/versions/first").code == "invalid_request"
    assert ask("GET", "/schemas/none").code == "schema_not_found"


def test_a_draft_is_checked_before_it_is_registered(ask: Asking) -> None:
    draft = {"type": "json", "definition": STRICTER}
    checked = ask.ok("POST", "/schemas/orders/check", draft)
    assert checked["compatible"] is False
    assert any("id" in problem for problem in checked["problems"])
    refused = ask("POST", "/schemas/orders", draft)
    assert (refused.status, refused.code) == (409, "incompatible_schema")
    assert ask.ok("POST", "/schemas/orders/check", {"type": "json", "definition": FIRST})["compatible"] is True
    assert ask.ok("POST", "/schemas/orders/check", {**draft, "compatibility": "none"})["compatible"] is True
    assert ask.ok("POST", "/schemas/orders/check", {"type": "avro", "definition": '"string"'})["compatible"] is False
    assert ask("POST", "/schemas/orders/check", {"type": "json", "definition": "{"}).code == "schema_invalid"
    assert ask.ok("GET", "/schemas/orders")[-1]["version"] == 1
    assert ask.ok("POST", "/schemas/unknown/check", {"type": "json", "definition": FIRST})["compatible"] is True
    assert ask("GET", "/schemas/unknown").status == 404


def test_a_value_is_tried(ask: Asking) -> None:
    assert ask.ok("POST", "/schemas/orders/validate", {"value": '{"id": 1}'}) == {"valid": True, "faults": []}
    wrong = ask.ok("POST", "/schemas/orders/validate", {"value_base64": "eyJpZCI6ICJ4In0="})
    assert wrong["valid"] is False
    assert wrong["faults"]
    assert ask("POST", "/schemas/orders/validate", {}).code == "invalid_request"
    assert ask("POST", "/schemas/orders/validate", {"value_base64": "!"}).code == "invalid_request"


def test_a_schema_is_deleted(ask: Asking) -> None:
    ask.ok("POST", "/schemas/gone", {"type": "json", "definition": FIRST})
    assert ask("DELETE", "/schemas/gone?version=1").status == 204
    assert ask("DELETE", "/schemas/gone").code == "schema_not_found"


@pytest.mark.parametrize("version", ["0", "00000000001" + "9" * 5000, "4294967296", "%C2%B2", "-1", "newest"])
def test_a_version_in_the_path_is_a_number_or_latest(ask: Asking, version: str) -> None:
    assert ask("GET", f"/schemas/any/versions/{version}").code == "invalid_request"

"""The OpenAPI 3.1 document of the admin API, made from the table of endpoints."""

from __future__ import annotations

from http import HTTPStatus
from types import NoneType
from typing import Any, Final

import msgspec

from penstock.admin.api.logins import COOKIE, CSRF_HEADER
from penstock.admin.api.problems import CONTENT_TYPE, Problem, status_of
from penstock.admin.api.table import ENDPOINTS, PREFIX, Endpoint
from penstock.errors import AccessDenied, AuthenticationFailed, AuthenticationRequired

REF: Final = "#/components/schemas/{name}"
ANY_REQUEST: Final = {
    HTTPStatus.BAD_REQUEST: "The request cannot be read.",
    HTTPStatus.UNAUTHORIZED: "The credentials are missing or wrong.",
    HTTPStatus.FORBIDDEN: "The caller may not do this, or a page of another origin asks.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body is not JSON by its content type.",
    HTTPStatus.TOO_MANY_REQUESTS: "This address sends too many requests.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The broker is stopping.",
}
"""What any request may be answered with."""


def document(version: str) -> dict[str, Any]:
    kinds = [Problem, *(kind for each in ENDPOINTS for kind in (each.query, each.body, each.result) if kind)]
    kinds = [kind for kind in kinds if kind is not NoneType]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    described = dict(zip(map(str, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in ENDPOINTS:
        paths.setdefault(PREFIX + each.path, {})[each.method.lower()] = _operation(each, described, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock admin API", "version": version, "license": {"name": "Apache-2.0"}},
        "security": [{"bearer": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": COOKIE,
                    "description": f"A session; writes also send its CSRF token in {CSRF_HEADER}.",
                },
            },
        },
    }


def _operation(endpoint: Endpoint, described: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in endpoint.parameters
    ]
    if endpoint.query is not None:
        parameters += _query_parameters(components[endpoint.query.__name__])
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": parameters,
        "responses": _responses(endpoint, described),
    }
    if endpoint.right is not None:
        operation["x-penstock-right"] = f"{endpoint.right.operation.value} {endpoint.right.kind.value}"
    if endpoint.body is not None:
        schema = described[str(endpoint.body)]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _query_parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": _without_null(each)}
        for name, each in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is left out rather than null."""
    schema = {name: value for name, value in schema.items() if name != "default" or value is not None}
    if "anyOf" in schema:
        [kind] = [each for each in schema.pop("anyOf") if each != {"type": "null"}]
        schema |= kind
    return schema


def _responses(endpoint: Endpoint, described: dict[str, Any]) -> dict[str, Any]:
    refusals = dict(ANY_REQUEST)
    for error in (*endpoint.errors, AuthenticationRequired, AuthenticationFailed, AccessDenied):
        refusals.setdefault(status_of(error), (error.__doc__ or "").strip())
    answer: dict[str, Any] = {"description": endpoint.status.phrase}
    if endpoint.result is not NoneType:
        answer["content"] = {"application/json": {"schema": described[str(endpoint.result)]}}
    problem = {CONTENT_TYPE: {"schema": described[str(Problem)]}}
    return {
        str(endpoint.status.value): answer,
        **{str(status.value): {"description": text, "content": problem} for status, text in sorted(refusals.items())},
    }

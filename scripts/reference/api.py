"""docs/reference/api.md: every endpoint of the admin API."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from penstock.admin.api.application import MODULES
from penstock.admin.api.problems import status_of
from penstock.admin.api.table import ENDPOINTS, PREFIX, Endpoint
from scripts.reference.markdown import DOCS, GENERATED, code, document, table

PAGE = DOCS / "reference" / "api.md"
INTRODUCTION = f"""\
# Admin API reference

{GENERATED}

Every endpoint of the [admin API](../admin-api.md), below `{PREFIX}`. `{PREFIX}/openapi.json` describes
the parameters, bodies and answers of each as OpenAPI 3.1. The right is what the [access
policy](../access.md) is asked for. Errors are problem documents (RFC 9457) with the `code` of an
[error](errors.md).
"""


def page() -> str:
    assert MODULES
    return document(
        INTRODUCTION,
        *(part for tag, each in groupby(ENDPOINTS, lambda each: each.tag) for part in _section(tag, list(each))),
    )


def _section(tag: str, endpoints: list[Endpoint]) -> Iterator[str]:
    yield f"## {tag.capitalize()}"
    yield table(["endpoint", "right", "what it does", "errors"], map(_row, endpoints))


def _row(endpoint: Endpoint) -> tuple[str, str, str, str]:
    right = endpoint.right
    errors = sorted({(status_of(each).value, each.code) for each in endpoint.errors})
    return (
        code(f"{endpoint.method} {endpoint.path}"),
        "-" if right is None else f"{right.operation.value} {right.kind.value}",
        endpoint.summary,
        ", ".join(f"{status} {code(name)}" for status, name in errors),
    )

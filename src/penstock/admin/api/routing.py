"""Which of several routes a request means, by its method and the path as it was sent.

Parameters of the path are percent-encoded, slashes too, because names of topics have slashes.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

from penstock.admin.api.problems import HttpProblem
from penstock.errors import InvalidRequest

_Target = TypeVar("_Target")


class Routes(Generic[_Target]):
    def __init__(self, routes: Iterable[tuple[str, str, _Target]]) -> None:
        """Each route is a method, a path such as "/topics/{topic}", and what it leads to."""
        self._by_length: dict[int, list[tuple[str, list[str], _Target]]] = {}
        for method, path, target in routes:
            parts = path.split("/")[1:]
            self._by_length.setdefault(len(parts), []).append((method, parts, target))

    def find(self, method: str, path: str) -> tuple[_Target, dict[str, str]]:
        """Return what a path leads to, and its parameters. Raises HttpProblem, and InvalidRequest for a name that is not UTF-8."""
        parts = path.split("/")[1:]
        allowed: list[str] = []
        for wanted_method, pattern, target in self._by_length.get(len(parts), ()):
            if all(wanted.startswith("{") or wanted == part for wanted, part in zip(pattern, parts, strict=True)):
                if wanted_method == method:
                    named = zip(pattern, parts, strict=True)
                    return target, {name[1:-1]: _unquoted(part) for name, part in named if name.startswith("{")}
                allowed.append(wanted_method)
        if allowed:
            raise HttpProblem(
                HTTPStatus.METHOD_NOT_ALLOWED,
                "method_not_allowed",
                f"{method} is not a method of this path: use {' or '.join(allowed)}",
                {"allow": ", ".join(allowed)},
            )
        raise HttpProblem(
            HTTPStatus.NOT_FOUND, "path_not_found", "no such path: see /api/v1/openapi.json for those that exist"
        )


def _unquoted(part: str) -> str:
    try:
        text = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{part[:100]!r} in the path is not valid UTF-8") from None
    if not text:
        raise InvalidRequest("a name in the path is empty")
    return text

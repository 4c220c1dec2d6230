"""The outcome of each record of one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from penstock.errors import BatchFailed, PenstockError

T = TypeVar("T")


def require_success(results: Sequence[T | PenstockError]) -> list[T]:
    """Return the results if none is an error.

    Raises the error if all records failed for one reason, otherwise BatchFailed with the results of all.
    """
    errors = [result for result in results if isinstance(result, PenstockError)]
    if not errors:
        return [result for result in results if not isinstance(result, PenstockError)]
    if len(errors) == len(results) and len({type(error) for error in errors}) == 1:
        raise errors[0]
    raise BatchFailed(
        f"{len(errors)} of {len(results)} records were not acknowledged; the first error: {errors[0]}", results
    ) from errors[0]

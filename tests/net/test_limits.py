"""The bounds of a listener are checked when they are set."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.net.limits import QuicLimits


@pytest.mark.parametrize("name", QuicLimits.model_fields)
def test_a_bound_of_nothing_is_refused(name: str) -> None:
    nothing: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=name):
        QuicLimits(**nothing)

"""The bounds of a listener are checked when they are set."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from penstock.net.limits import ListenerLimits


@pytest.mark.parametrize("name", [field.name for field in fields(ListenerLimits)])
def test_a_bound_of_nothing_is_refused(name: str) -> None:
    nothing: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be above 0"):
        ListenerLimits(**nothing)


def test_the_low_mark_must_be_below_the_high_mark() -> None:
    with pytest.raises(ValueError, match="send_buffer_low_bytes"):
        ListenerLimits(send_buffer_high_bytes=10, send_buffer_low_bytes=10)

"""The bounds of listeners and the admin address are checked when they are set."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.net.limits import AdminLimits, QuicLimits, TcpLimits
from penstock.settings import Section


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in (TcpLimits, QuicLimits, AdminLimits) for name in kind.model_fields]
)
def test_a_bound_of_nothing_is_refused(kind: type[Section], name: str) -> None:
    nothing: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=name):
        kind(**nothing)

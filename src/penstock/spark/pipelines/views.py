"""What topics are called in SQL."""

from __future__ import annotations

import re
from collections.abc import Sequence


def view_names(topics: Sequence[str]) -> list[str]:
    """A name for each topic that needs no quotes: what is no letter, digit or "_" becomes "_"."""
    names: list[str] = []
    for topic in topics:
        name = base = re.sub(r"\W", "_", topic) if not topic[:1].isdigit() else "t_" + re.sub(r"\W", "_", topic)
        number = 2
        while name.lower() in {each.lower() for each in names}:
            name, number = f"{base}_{number}", number + 1
        names.append(name)
    return names


def mentions(sql: str, view: str) -> bool:
    """Whether a query names a view, as a whole word, in any case of letters as SQL does."""
    return re.search(rf"(?<!\w){re.escape(view)}(?!\w)", sql, re.IGNORECASE) is not None

"""References inside one JSON Schema document."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote


def resolve_local(root: Any, reference: str) -> dict[str, Any] | bool | None:
    """The subschema that "#" or "#/a/pointer" names; None for any other reference, and for one that leads nowhere."""
    if reference == "#":
        return root if isinstance(root, dict | bool) else None
    if not reference.startswith("#/"):
        return None
    place = root
    for token in unquote(reference[2:]).split("/"):
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and token in place:
            place = place[token]
        elif (
            isinstance(place, list)
            and token.isascii()
            and token.isdigit()
            and len(token) < 10
            and int(token) < len(place)
        ):
            place = place[int(token)]
        else:
            return None
    return place if isinstance(place, dict | bool) else None

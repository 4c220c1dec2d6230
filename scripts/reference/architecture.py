"""docs/architecture.md: ARCHITECTURE.md as a page of the site, with links that lead to the site's other pages."""

from __future__ import annotations

from scripts.reference.markdown import DOCS

PAGE = DOCS / "architecture.md"
SOURCE = DOCS.parent / "ARCHITECTURE.md"


def page() -> str:
    return SOURCE.read_text().replace("](docs/", "](")

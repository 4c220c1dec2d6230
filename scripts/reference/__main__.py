"""Write every generated page: `make reference`."""

from __future__ import annotations

from scripts.reference.pages import PAGES

for path, page in PAGES.items():
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page())

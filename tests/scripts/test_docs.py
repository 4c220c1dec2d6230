"""The documentation site: every page is in its navigation, and it builds without warnings."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def pages(nav: list[dict[str, Any]]) -> Iterator[str]:
    for entry in nav:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from pages(target)


def test_the_navigation_names_every_page_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    docs = ROOT / "docs"
    assert sorted(pages(nav)) == sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))


def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    result = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    page = (tmp_path / "build" / "site" / "tutorial" / "index.html").read_text()
    assert "penstock" in page
    assert 'src="http' not in page
    assert "fonts." not in page

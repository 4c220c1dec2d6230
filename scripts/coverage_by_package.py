"""Print branch coverage by package from the JSON report of coverage.py: lines and branches that ran, of all."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

COUNTED = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def by_package(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Add up the figures of the files of each package; modules that are in none count as `penstock`."""
    packages: dict[str, Counter[str]] = defaultdict(Counter)
    for name, file in files.items():
        parts = PurePath(name).parts
        inside = parts[len(parts) - 1 - parts[::-1].index("penstock") :][:-1]
        packages["/".join(inside[:3])].update({figure: file["summary"][figure] for figure in COUNTED})
    return dict(sorted(packages.items()))


def shown(name: str, figures: Counter[str]) -> str:
    covered = figures["covered_lines"] + figures["covered_branches"]
    share = covered / max(1, figures["num_statements"] + figures["num_branches"])
    lines = f"{figures['covered_lines']:>6,} of {figures['num_statements']:>6,} lines"
    branches = f"{figures['covered_branches']:>6,} of {figures['num_branches']:>6,} branches"
    return f"{name:<36} {lines}  {branches}  {share:>6.1%}"


def main() -> None:
    packages = by_package(json.loads(Path(sys.argv[1]).read_text())["files"])
    for name, figures in packages.items():
        print(shown(name, figures))
    print(shown("all", sum(packages.values(), Counter())))


if __name__ == "__main__":
    main()

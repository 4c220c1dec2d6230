"""Prints the lowest version of each dependency that pyproject.toml allows, as constraints for pip: `make test-lowest`.

Of dependencies of dependencies pip takes the newest that fit.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
OF_USERS = ("iceberg", "spark")
"""Extras that users install. Tools may be as new as they like."""


def lowest(requirements: list[str]) -> Iterator[str]:
    """The constraint that takes the lowest version each requirement allows; those without a lower bound have none."""
    for each in map(Requirement, requirements):
        for bound in each.specifier:
            if bound.operator in {">=", "=="}:
                yield f"{each.name}=={bound.version}"


def main() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    of_extras = [each for extra in OF_USERS for each in project["optional-dependencies"][extra]]
    print(*sorted({*lowest(project["dependencies"]), *lowest(of_extras)}), sep="\n")


if __name__ == "__main__":
    main()

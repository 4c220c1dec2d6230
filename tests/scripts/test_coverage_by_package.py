from __future__ import annotations

import re
from collections import Counter

from scripts.coverage_by_package import by_package, shown


def file(lines: int, of_lines: int, branches: int, of_branches: int) -> dict[str, dict[str, int]]:
    summary = {
        "covered_lines": lines,
        "num_statements": of_lines,
        "covered_branches": branches,
        "num_branches": of_branches,
    }
    return {"summary": summary}


def test_files_count_for_their_package_and_no_deeper_than_two() -> None:
    found = by_package(
        {
            "src/penstock/errors.py": file(1, 2, 0, 0),
            "src/penstock/net/tcp.py": file(3, 4, 1, 2),
            "src/penstock/net/flow.py": file(1, 1, 1, 1),
            "src/penstock/protocols/flymq/access/replies.py": file(1, 1, 0, 0),
            "/somewhere/penstock/src/penstock/protocols/flymq/codec/frames.py": file(1, 1, 0, 0),
        }
    )
    assert list(found) == ["penstock", "penstock/net", "penstock/protocols/flymq"]
    net = shown("penstock/net", found["penstock/net"])
    assert re.sub(" +", " ", net) == "penstock/net 4 of 5 lines 2 of 3 branches 75.0%"
    assert shown("all", sum(found.values(), Counter())).endswith(" 75.0%")

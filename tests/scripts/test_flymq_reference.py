"""The reference of FlyMQ's operations is what the code declares."""

from __future__ import annotations

from penstock.protocols.flymq.operations.operation import OPERATIONS
from scripts.flymq_reference import PAGE, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "docs/flymq-protocol.md is stale: run `make reference`"


def test_the_page_has_every_operation_once() -> None:
    headings = [line for line in page().splitlines() if line.startswith("### ")]
    assert sorted(headings) == sorted(f"### 0x{opcode:02X} {kind.opcode_name}" for opcode, kind in OPERATIONS.items())

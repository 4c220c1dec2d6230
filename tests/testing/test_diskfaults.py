from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.testing.crashing import CrashDisk
from penstock.testing.diskfaults import (
    CountOperations,
    Crash,
    DiskFault,
    FlushErrors,
    PowerCut,
    Quota,
    WriteBehind,
    make_disk,
)
from penstock.testing.powercut import PowerCutDisk
from penstock.testing.unreliable import FlushErrorDisk, QuotaDisk, WriteBehindDisk

FAULTS: list[tuple[DiskFault, type]] = [
    (Crash("commit write segment:3:half"), CrashDisk),
    (CountOperations("counts.json"), CrashDisk),
    (PowerCut(cut_at=100, image="image", loss=0.5, seed=1), PowerCutDisk),
    (FlushErrors([1, 2]), FlushErrorDisk),
    (Quota(1 << 20), QuotaDisk),
    (WriteBehind(0.1), WriteBehindDisk),
]


@pytest.mark.parametrize(("fault", "kind"), FAULTS, ids=lambda each: type(each).__name__)
def test_a_fault_travels_as_text_and_makes_a_disk(tmp_path: Path, fault: DiskFault, kind: type) -> None:
    assert msgspec.json.decode(msgspec.json.encode(fault), type=DiskFault) == fault
    assert isinstance(make_disk(fault, tmp_path), kind)

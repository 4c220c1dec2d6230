from __future__ import annotations

from pathlib import Path

from penstock.log.embedded.syncs import Syncs
from tests.log.embedded.storage import CountingDisk


def test_what_is_owed_is_synced_at_the_end_and_what_was_replaced_is_left_out(
    tmp_path: Path, disk: CountingDisk
) -> None:
    kept, replaced = tmp_path / "kept.log", tmp_path / "replaced.log"
    syncs = Syncs(disk)
    for path in (kept, replaced):
        path.write_bytes(b"redone")
        syncs.owe(path)
    replaced.unlink()  # as the end of a rewrite does, whose own file was synced before it was named
    syncs.finish()
    assert disk.flushes["log"] == 1

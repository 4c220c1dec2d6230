"""A disk that is really full: a small file system of the broker's own, in a mount namespace that vanishes with it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from penstock.errors import NoSpace
from penstock.testing.checker import check
from penstock.testing.journal import Journal
from penstock.testing.load import ProducerLoad, read_everything
from penstock.testing.process import BrokerProcess

DISK = "24m"
BALLAST_BYTES = 6 << 20
LARGE_BYTES = 8 << 20
"""More than maintenance can free meanwhile."""
CONFIG = """
[log]
segment_bytes = "1 MiB"
journal_bytes = "1 MiB"
reserve_bytes = "512 KiB"
maintenance_interval_s = 0.1
[[topics]]
name = "single"
[[topics]]
name = "spread"
partitions = 4
"""
TOPICS = ["single", "spread"]


def on_small_disk(directory: Path) -> BrokerProcess:
    directory.mkdir()
    # Without root, become root of a user namespace, which may mount too.
    user = () if os.geteuid() == 0 else ("--map-root-user",)
    mount = f'mount -t tmpfs -o size={DISK} none "{directory}" && exec "$@"'
    return BrokerProcess(directory, config=CONFIG, launcher=("unshare", *user, "--mount", "sh", "-c", mount, "sh"))


@pytest.mark.timeout(180)
def test_a_full_disk_refuses_writes_and_recovers_when_space_returns(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal, on_small_disk(tmp_path / "data") as broker:
        inside = Path(f"/proc/{broker.pid}/root") / broker.data_dir.relative_to("/")
        ballast = inside / "ballast"
        ballast.write_bytes(bytes(BALLAST_BYTES))
        with (
            ProducerLoad(broker.url, journal, "single", producers=2, value_bytes=500) as single,
            ProducerLoad(broker.url, journal, "spread", producers=2, value_bytes=500) as spread,
        ):
            single.wait_until_refused(200)
            spread.wait_until_refused(200)
            with broker.connect() as client:
                # Reading and committing continue; the refusal says that trying again later may help.
                assert client.fetch("single", 0, 0).records
                for offset in range(200):
                    client.commit("single", "group", 0, offset)
                assert client.committed("single", "group", 0) == 199
                with pytest.raises(NoSpace, match="no space left") as refused:
                    client.send("single", bytes(LARGE_BYTES))
                assert refused.value.retriable
            ballast.unlink()
            acked = single.summary.acked, spread.summary.acked
            single.wait_until_acked(acked[0] + 200)
            spread.wait_until_acked(acked[1] + 200)
        served = list(read_everything(broker.url, TOPICS))
        broker.pause()  # so that maintenance renames nothing meanwhile
        shutil.copytree(inside, tmp_path / "copy")  # as a kill -9 would leave it
        broker.resume()
    with BrokerProcess(tmp_path / "copy", config=CONFIG) as broker:
        check(journal, {"before": served, "recovered": read_everything(broker.url, TOPICS)}).raise_for_violations()

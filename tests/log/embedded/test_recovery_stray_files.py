"""Files in a data directory that the engine has not made."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.log.embedded.verify import verify
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import everything, partition_directory
from tests.log.storage import fill, make_partition

NAMES = ["old.log", "00000000000000000000 (copy).log", "0.log", "00000000000000000000-.log", "old.swap"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_file_that_is_not_named_as_a_segment_is_ignored_and_left(
    open_engine: OpenEngine, data_dir: Path, name: str
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    before = await everything(engine)
    await engine.close()
    stray = partition_directory(data_dir) / name
    stray.write_bytes(b"not a segment")
    report = verify(data_dir)
    assert (report.damage, [finding.path for finding in report.findings]) == (0, [str(stray.relative_to(data_dir))])
    with capture_logs() as lines:
        engine = await open_engine()
    assert [line["file"] for line in lines if line["log_level"] == "warning"] == [str(stray)] * name.endswith(".log")
    assert await everything(engine) == before
    assert stray.read_bytes() == b"not a segment"

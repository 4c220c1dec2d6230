from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.log.api import TopicConfig
from penstock.log.embedded.clean_stop import CLEAN_STOP_FILE, encode_clean_stop, read_clean_stop
from penstock.log.embedded.verify import verify
from penstock.log.salts import encode_metadata
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import everything
from tests.log.storage import fill, make_partition


async def test_the_mark_says_where_each_partition_ended(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, config=TopicConfig(partitions=3)))
    topic_id = engine.topics()["orders"].id
    assert read_clean_stop(data_dir) is None
    await engine.close()
    assert read_clean_stop(data_dir) == {topic_id: [15, 0, 0]}


def test_an_empty_mark_is_that_of_a_clean_stop_and_promises_nothing(tmp_path: Path) -> None:
    (tmp_path / CLEAN_STOP_FILE).write_bytes(b"")
    assert read_clean_stop(tmp_path) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        encode_clean_stop({"a": [1]})[:-3],
        encode_metadata({"version": 2}),
        encode_metadata({"version": 2, "ends": {"a": [None]}}),
        encode_metadata({"version": 2, "ends": [1]}),
    ],
)
async def test_a_damaged_mark_is_reported_and_not_believed(
    open_engine: OpenEngine, data_dir: Path, data: bytes
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    expected = await everything(engine)
    await engine.close()
    (data_dir / CLEAN_STOP_FILE).write_bytes(data)
    with pytest.raises(ValueError, match=r"."):
        read_clean_stop(data_dir)
    [finding] = verify(data_dir).findings
    assert (finding.severity, finding.path) == ("damage", CLEAN_STOP_FILE)
    with capture_logs() as lines:
        engine = await open_engine()
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["clean_shutdown_marker_damaged"]
    assert await everything(engine) == expected

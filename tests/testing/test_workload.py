"""The check of the workload finds what is missing in each kind of topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.checker import Rule
from penstock.testing.workload import COMPACTED, GROUP, RETAINED, SINGLE, Workload


@pytest.fixture
def workload(tmp_path: Path) -> Iterator[Workload]:
    workload = Workload(tmp_path)
    workload.broker.start()
    try:
        yield workload
    finally:
        workload.close()


@pytest.mark.timeout(120)
def test_every_kind_of_load_runs_and_a_sound_broker_passes(workload: Workload) -> None:
    with workload.running() as load:
        load.wait_until_acked(500)
    report = workload.check()
    assert report.ok, str(report)
    assert (report.sent, report.acked) == (workload.sent().sent, workload.sent().acked)
    producers = {attempt.producer.rpartition("-")[0] for attempt in workload.journal.attempts()}
    assert len(producers) == 4
    without_place = [attempt for attempt in workload.journal.attempts() if attempt.offset < 0]
    assert {attempt.state for attempt in without_place} == {"acked"}, "BlipMQ tells no offsets"
    with workload.broker.connect() as client:
        assert (client.committed(SINGLE, GROUP, 0) or 0) > 0
        assert list(client.records(COMPACTED))
        assert list(client.records(RETAINED))


@pytest.mark.timeout(120)
def test_what_cannot_be_read_is_lost_and_the_reason_is_told(workload: Workload) -> None:
    with workload.producing(SINGLE) as load:
        load.wait_until_acked(200)
    workload.broker.terminate()
    (segment, *_) = sorted(workload.broker.data_dir.glob(f"topics/{SINGLE}.*/0/*.log"))
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    workload.broker.start()
    report = workload.check()
    assert report.lost > 0
    assert report.wrong == 1
    assert f"{SINGLE}: corrupt block in {segment}" in str(report)


@pytest.mark.timeout(120)
def test_what_was_changed_behind_its_back_is_found(workload: Workload) -> None:
    with workload.running() as load:
        load.wait_until_acked(200)
    with workload.broker.connect() as client:
        client.commit(SINGLE, GROUP, 0, 0)
        client.send(COMPACTED, b"older", key=b"key-0")
        client.send(RETAINED, b"never sent")
        client.send(SINGLE, b"never sent")
    assert {violation.rule for violation in workload.check().violations} == {
        Rule.OFFSET_IS_KEPT,
        Rule.LATEST_IS_KEPT,
        Rule.NOTHING_INVENTED,
    }

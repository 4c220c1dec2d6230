"""Reports of pipelines over FlyMQ, against a real broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import EntryNotFound, InvalidRequest, ProtocolViolation
from penstock.protocols.flymq.operations.operation import (
    BadRequest,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from penstock.protocols.flymq.operations.spark import (
    LeftOut,
    PipelineList,
    PipelineListing,
    PipelineReport,
    StageReport,
    with_left_out,
)
from penstock.protocols.flymq.wire import HEADER_BYTES
from penstock.testing import RunningBroker

STAGE = StageReport("silver/orders", "running", 90, 7, -1, 2, 400)
REPORT = PipelineReport("sales", "run-1", 1_700_000_000_000, "running", "fine", [STAGE])


def test_a_report_is_listed_as_it_was_made(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    assert not client.pipelines.report(REPORT)
    [listed] = client.pipelines.list()
    assert (listed.name, listed.run, listed.started_ms, listed.message) == ("sales", "run-1", 1_700_000_000_000, "fine")
    assert (listed.stages, listed.alive, listed.stopping) == ([STAGE], True, False)
    assert listed.updated_ms == penstock_broker.clock.now_ms()


def test_rows_that_are_left_out_are_listed_and_cost_peers_that_do_not_know_them_nothing(
    penstock_broker: RunningBroker,
) -> None:
    client = penstock_broker.connect()
    stages = [STAGE, replace(STAGE, name="silver/payments", dropped=3), replace(STAGE, name="gold/g", late=1, future=2)]
    client.pipelines.report(replace(REPORT, stages=stages))
    client.pipelines.report(replace(REPORT, pipeline="other"))
    other, sales = client.pipelines.list()
    assert (other.stages, sales.stages) == ([STAGE], stages)
    old_reply = encode_reply(PipelineList, PipelineListing([other]))
    decoded = decode_reply(PipelineList, old_reply[HEADER_BYTES:])
    assert ([*decoded.pipelines], decoded.left_out) == ([other], [])
    unknown = replace(REPORT, left_out=[LeftOut("nothing/there", 1, 0, 0)])
    assert with_left_out(unknown.stages, unknown.left_out) == [STAGE]


def test_a_stop_comes_with_the_answer_to_the_next_report(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    with pytest.raises(EntryNotFound):
        client.pipelines.stop("sales")
    client.pipelines.report(REPORT)
    assert client.pipelines.stop("sales")
    assert client.pipelines.list()[0].stopping
    assert client.pipelines.report(REPORT)


def test_what_makes_no_sense_is_refused(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    with pytest.raises(InvalidRequest, match="is not known: use starting"):
        client.pipelines.report(PipelineReport("sales", "run-1", 1, "dancing", "", []))


def test_a_count_that_lies_costs_nothing() -> None:
    payload = encode_request(PipelineReport("p", "r", 1, "running", "", []))[HEADER_BYTES:-4] + b"\xff\xff\xff\xff"
    refused = decode_request(PipelineReport.opcode, payload)
    assert isinstance(refused, BadRequest)
    assert "stages are announced" in refused.message
    with pytest.raises(ProtocolViolation, match="are announced"):
        decode_reply(PipelineList, b"\xff\xff\xff\xff")

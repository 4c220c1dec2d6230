"""What each request about staged records does, asked of a real broker over a session."""

from __future__ import annotations

import pytest

from penstock.errors import ProtocolViolation
from penstock.log.block import encode_block
from penstock.protocols.flymq.codec.record_layouts import decode_fetched
from penstock.protocols.flymq.operations.operation import decode_reply, encode_request
from penstock.protocols.flymq.operations.records import Fetch
from penstock.protocols.flymq.operations.spark import (
    BeginRun,
    Run,
    Stage,
    StageAbort,
    StageCommit,
    Unstaged,
    Winner,
)
from penstock.protocols.flymq.operations.topics import CreateTopic, DeleteTopic
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.flymq.wire import frame
from tests.protocols.flymq.conversation import Conversation


def stage(sequence: int, *values: bytes, topic: str = "orders", epoch: int = 0, run: int = 1) -> bytes:
    return encode_request(Stage("app", run, epoch, "a", sequence, topic, [(0, encode_block(0, 0, values))]))


async def begin(talk: Conversation, name: str = "one") -> Run:
    return decode_reply(BeginRun, (await talk.ask(encode_request(BeginRun("app", name, lasting=True)))).payload)


async def values(talk: Conversation, topic: str = "orders") -> list[bytes]:
    reply = await talk.ask(encode_request(Fetch(topic, 0, 0, 1000)))
    return decode_fetched(reply.payload, native=False).values


async def test_an_epoch_from_its_run_to_its_commit(talk: Conversation) -> None:
    begun = await talk.ask(encode_request(BeginRun("app", "one", lasting=True)))
    assert begun == (0xD2, bytes.fromhex("0000000000000001 ffffffffffffffff"))
    block = encode_block(0, 0, [b"v"])
    staged = bytes.fromhex(
        "0003 617070 0000000000000001 0000000000000000 0001 61 00000000 0006 6f7264657273 00000001 00000000"
    )
    payload = staged + len(block).to_bytes(4, "big") + block
    assert stage(0, b"v") == frame(Stage.opcode, payload)
    assert await talk.ask(stage(0, b"v")) == (0xD3, b"\x01")
    assert await values(talk) == []
    commit = encode_request(StageCommit("app", 1, 0, [Winner("a", 1)]))
    assert commit == frame(
        StageCommit.opcode,
        bytes.fromhex("0003 617070 0000000000000001 0000000000000000 00000001 0001 61 00000001"),
    )
    assert await talk.ask(commit) == (0xD4, b"\x01")
    assert await values(talk) == [b"v"]
    assert await talk.ask(commit) == (0xD4, b"\x00")
    abort = encode_request(StageAbort("app", 1, 0))
    assert abort == frame(StageAbort.opcode, bytes.fromhex("0003 617070 0000000000000001 0000000000000000"))
    assert await talk.ask(abort) == (0xD5, b"\x00")
    assert await talk.ask(encode_request(StageAbort("app", 1, 1))) == (0xD5, b"\x01")
    assert await begin(talk) == Run(1, 0)


async def described(talk: Conversation, topic: str = "orders") -> Run:
    """The run, with what it says of a topic."""
    request = encode_request(BeginRun("app", "one", lasting=True, topic=topic))
    return decode_reply(BeginRun, (await talk.ask(request)).payload)


async def test_a_run_says_which_topic_there_is(talk: Conversation) -> None:
    request = encode_request(BeginRun("app", "one", lasting=True, query="q", topic="new"))
    layout = "0003 617070 0003 6f6e65 01 0001 71 00 0003 6e6577"
    assert request == frame(BeginRun.opcode, bytes.fromhex(layout))
    assert decode_reply(BeginRun, (await talk.ask(request)).payload) == Run(1, -1, "q")
    await talk.ask(encode_request(CreateTopic("new", 3)))
    begun = await talk.ask(request)
    run = decode_reply(BeginRun, begun.payload)
    assert (run.number, run.epoch, run.query, run.partitions) == (1, -1, "q", 3)
    id_bytes = run.topic_id.encode()
    head = bytes.fromhex("0000000000000001 ffffffffffffffff 0001 71")
    assert begun == (0xD2, head + len(id_bytes).to_bytes(2, "big") + id_bytes + bytes.fromhex("00000003"))
    await talk.ask(encode_request(DeleteTopic("new")))
    assert (await described(talk, "new")).partitions == 0
    assert (await described(talk, "not\na name")).partitions == 0


def bringing(run: Run, epoch: int, *values: bytes, topic: str = "orders", partition: int = 0) -> bytes:
    parts = [(partition, encode_block(0, 0, values))]
    return encode_request(StageCommit("app", run.number, epoch, [], [Unstaged(topic, run.topic_id, parts)]))


async def test_a_commit_brings_its_records(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    run = await described(talk)
    block, id_bytes = encode_block(0, 0, [b"v"]), run.topic_id.encode()
    request = bringing(run, 4, b"v")
    payload = bytes.fromhex("0003 617070 0000000000000001 0000000000000004 00000000 00000001 0006 6f7264657273")
    payload += len(id_bytes).to_bytes(2, "big") + id_bytes + bytes.fromhex("00000001 00000000")
    assert request == frame(StageCommit.opcode, payload + len(block).to_bytes(4, "big") + block)
    assert await talk.ask(request) == (0xD4, b"\x01")
    assert await values(talk) == [b"v"]
    assert await talk.ask(request) == (0xD4, b"\x00")
    assert await values(talk) == [b"v"]
    assert (await described(talk)).epoch == 4


async def test_a_topic_that_was_created_again_gets_no_records_that_were_laid_out_before(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("new", 1)))
    run = await described(talk, "new")
    await talk.ask(bringing(run, 0, b"v", topic="new"))
    await talk.ask(encode_request(DeleteTopic("new")))
    assert await talk.ask(bringing(run, 0, b"v", topic="new")) == (0xD4, b"\x00"), "it was committed before"
    for _ in range(2):
        refused = await talk.ask(bringing(run, 1, b"w", topic="new"))
        assert refused.error.startswith("topic not found: new was deleted after records were laid out for it")
        await talk.ask(encode_request(CreateTopic("new", 1)))
    assert await values(talk, "new") == []
    assert await talk.ask(bringing(await described(talk, "new"), 1, b"w", topic="new")) == (0xD4, b"\x01")
    assert await values(talk, "new") == [b"w"]


async def test_records_that_a_commit_brings_are_counted_when_they_are_written(talk: Conversation, flymq: FlyMQ) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    run = await described(talk)
    assert (await talk.ask(bringing(run, 0, b"v", partition=5))).error.startswith("partition 5 not found")
    assert (await talk.ask(bringing(run, 0, b"v", topic="not\na name"))).error.startswith("topic not found")
    assert flymq.stats.received_records == 0
    for _ in range(2):
        await talk.ask(bringing(run, 0, b"v", b"w"))
    assert flymq.stats.received_records == 2


async def test_requests_to_stage_do_not_wait_for_one_another_and_a_commit_after_them_finds_them(
    talk: Conversation,
) -> None:
    await begin(talk)
    stages = [stage(number, b"%d" % number) for number in range(20)]
    talk.say(*stages, stages[3], encode_request(StageCommit("app", 1, 0, [Winner("a", 20)])))
    assert [reply.opcode for reply in await talk.replies(22)] == [0xD3] * 21 + [0xD4]
    assert await values(talk) == [b"%d" % number for number in range(20)]


async def test_staged_records_are_counted_once_their_blocks_are_checked(talk: Conversation, flymq: FlyMQ) -> None:
    await begin(talk)
    await talk.ask(stage(0, b"a", b"b", b"c"))
    assert flymq.stats.received_records == 3
    lie = bytearray(encode_block(0, 0, [b"d"]))
    lie[28:32] = b"\xff" * 4  # the count of records, in a block whose checksum does not match any more
    refused = encode_request(Stage("app", 1, 0, "a", 1, "orders", [(0, bytes(lie)), (0, b"short")]))
    assert (await talk.ask(refused)).error
    assert flymq.stats.received_records == 3


async def test_a_topic_that_is_missing_is_created(talk: Conversation) -> None:
    await begin(talk)
    assert await talk.ask(stage(0, b"v", topic="new")) == (0xD3, b"\x01")
    await talk.ask(encode_request(StageCommit("app", 1, 0, [Winner("a", 1)])))
    assert await values(talk, "new") == [b"v"]


async def test_refusals_say_what_is_wrong(talk: Conversation) -> None:
    assert "run 1 of application app has not begun" in (await talk.ask(stage(0, b"v"))).error
    await begin(talk)
    await begin(talk, "two")
    assert (await talk.ask(stage(0, b"v"))).error.startswith("producer fenced: run 1 of application app is fenced")
    fenced = await talk.ask(encode_request(BeginRun("app", "one", lasting=True)))
    assert fenced.error.startswith("producer fenced: run one")
    missing = await talk.ask(encode_request(StageCommit("app", 2, 0, [Winner("a", 1)])))
    assert missing.error.startswith("transaction not found: of 1 requests of attempt a")
    bad = encode_request(Stage("app", 2, 0, "a", 0, "orders", [(0, b"nonsense")]))
    assert "the block for partition 0 of orders is not whole" in (await talk.ask(bad)).error
    out = encode_request(Stage("app", 2, 0, "a", 0, "orders", [(5, encode_block(0, 0, [b"v"]))]))
    assert (await talk.ask(out)).error.startswith("partition 5 not found")


WITHOUT_RECORDS = encode_request(StageCommit("app", 1, 2, [Winner("a", 3)]))
WITH_RECORDS = encode_request(
    StageCommit("app", 1, 2, [Winner("a", 3)], [Unstaged("orders", "id", [(0, encode_block(0, 0, [b"v"]))])])
)


@pytest.mark.parametrize("data", [stage(0, b"v"), WITH_RECORDS])
async def test_a_request_that_is_cut_short_or_continues_says_so(talk: Conversation, data: bytes) -> None:
    for end in range(8, len(data)):
        if data is WITH_RECORDS and end == len(WITHOUT_RECORDS):
            continue  # a whole request
        cut = frame(data[2], data[8:end])
        assert (await talk.ask(cut)).error.startswith(("buffer too small", "invalid binary format"))
    assert "unexpected bytes" in (await talk.ask(frame(data[2], data[8:] + b"x"))).error


def test_an_outcome_that_is_none_is_refused() -> None:
    assert decode_reply(StageCommit, b"\x02") == 2
    for payload in (b"\x02", b""):
        with pytest.raises(ProtocolViolation):
            decode_reply(StageAbort, payload)

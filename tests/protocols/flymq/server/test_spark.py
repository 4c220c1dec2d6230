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
    Winner,
    WriteEpoch,
    WrittenEpoch,
)
from penstock.protocols.flymq.operations.topics import DeleteTopic
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


async def test_an_epoch_in_one_request(talk: Conversation) -> None:
    block = encode_block(0, 0, [b"v"])
    request = encode_request(WriteEpoch("app", "one", "query", False, 4, "orders", [(0, block)]))
    head = bytes.fromhex(
        "0003 617070 0003 6f6e65 0005 7175657279 00 0000000000000004 0006 6f7264657273 00000001 00000000"
    )
    assert request == frame(WriteEpoch.opcode, head + len(block).to_bytes(4, "big") + block)
    written = await talk.ask(request)
    assert written == (0xE2, bytes.fromhex("0000000000000001 ffffffffffffffff 0005 7175657279 01"))
    assert await values(talk) == [b"v"]
    again = await talk.ask(request)
    assert decode_reply(WriteEpoch, again.payload) == WrittenEpoch(1, 4, "query", 0)
    assert await values(talk) == [b"v"]


def whole(epoch: int, *values: bytes, topic: str = "orders", partition: int = 0) -> bytes:
    parts = [(partition, encode_block(0, 0, values))]
    return encode_request(WriteEpoch("app", "one", "", False, epoch, topic, parts))


async def test_an_epoch_creates_the_topic_it_is_for_but_not_again_when_it_is_repeated(talk: Conversation) -> None:
    assert (await talk.ask(whole(0, b"v", topic="new"))).opcode == WriteEpoch.opcode
    assert await values(talk, "new") == [b"v"]
    assert (await talk.ask(encode_request(DeleteTopic("new")))).opcode == DeleteTopic.opcode
    repeated = await talk.ask(whole(0, b"v", topic="new"))
    assert decode_reply(WriteEpoch, repeated.payload).outcome == 0
    assert (await talk.ask(encode_request(Fetch("new", 0, 0, 1)))).error.startswith("topic not found")
    assert (await talk.ask(whole(1, b"w", topic="new"))).opcode == WriteEpoch.opcode
    assert await values(talk, "new") == [b"w"]


async def test_records_of_an_epoch_are_counted_when_it_is_written(talk: Conversation, flymq: FlyMQ) -> None:
    assert (await talk.ask(whole(0, b"v", partition=5))).error.startswith("partition 5 not found")
    assert "invalid topic name" in (await talk.ask(whole(0, b"v", topic="not\na name"))).error
    assert flymq.stats.received_records == 0
    for _ in range(2):
        await talk.ask(whole(0, b"v", b"w"))
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


@pytest.mark.parametrize(
    "data", [stage(0, b"v"), encode_request(StageCommit("app", 1, 2, [Winner("a", 3)])), whole(0, b"v")]
)
async def test_a_request_that_is_cut_short_or_continues_says_so(talk: Conversation, data: bytes) -> None:
    for end in range(8, len(data)):
        cut = frame(data[2], data[8:end])
        assert (await talk.ask(cut)).error.startswith(("buffer too small", "invalid binary format"))
    assert "unexpected bytes" in (await talk.ask(frame(data[2], data[8:] + b"x"))).error


def test_an_outcome_that_is_none_is_refused() -> None:
    assert decode_reply(StageCommit, b"\x02") == 2
    for payload in (b"\x02", b""):
        with pytest.raises(ProtocolViolation):
            decode_reply(StageAbort, payload)

"""Schemas asked for over a session with a real broker, byte for byte as deployed clients ask."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.schemas import validation
from penstock.protocols.flymq.client.exchanges import metadata_of
from penstock.protocols.flymq.codec.frames import Call, RequestDecoder
from penstock.protocols.flymq.codec.record_layouts import decode_fetched, encode_produce
from penstock.protocols.flymq.operations.access import Whoami
from penstock.protocols.flymq.operations.operation import BadRequest, decode_reply, encode_request
from penstock.protocols.flymq.operations.records import Fetch, ProduceWithTtl
from penstock.protocols.flymq.operations.schemas import (
    BindSchema,
    DeleteSchema,
    GetSchema,
    ListSchemas,
    ProduceWithSchema,
    RegisteredSchema,
    RegisterSchema,
    SchemaReading,
    ValidateSchema,
)
from penstock.protocols.flymq.operations.topics import CreateTopic, Metadata
from penstock.protocols.flymq.wire import HEADER, MAGIC, VERSION, frame
from penstock.testing.clock import START_MS
from tests.protocols.flymq.conversation import Conversation

USER = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'


def sent(text: str) -> bytes:
    return bytes.fromhex(text)


async def values_of(talk: Conversation, topic: str) -> list[bytes]:
    reply = await talk.ask(encode_request(Fetch(topic, 0, 0, 1000, "")))
    return decode_fetched(reply.payload, native=True).values


# --- as deployed clients have it ---


async def test_a_schema_is_registered_read_and_listed_in_the_layouts_deployed_clients_know(talk: Conversation) -> None:
    registered = await talk.ask(sent("af 01 10 01 00 00 00 11 00 04 75 73 65 72 04 6a 73 6f 6e 00 00 00 02 7b 7d"))
    assert registered == (0x10, sent("0004 75736572 04 6a736f6e 00000001 08") + b"backward")
    got = await talk.ask(sent("af 01 11 01 00 00 00 0a 00 04 75 73 65 72 00 00 00 00"))
    head = sent("00000001 0004 75736572 04 6a736f6e 00000001")
    assert got == (
        0x11,
        head + sent("00000002 7b7d 08") + b"backward" + START_MS.to_bytes(8, "big") + sent("000186a1 00000001"),
    )
    everything = (
        sent("00000001 0007 757365722d7631 04 6a736f6e 00000001 08") + b"backward" + START_MS.to_bytes(8, "big")
    )
    for request in (frame(ListSchemas.opcode), frame(ListSchemas.opcode, b"\0\0"), encode_request(ListSchemas("user"))):
        assert await talk.ask(request) == (0x12, everything)
    assert await talk.ask(encode_request(ListSchemas("other"))) == (0x12, bytes(4))


async def test_a_type_may_have_a_wide_length_and_its_alias_is_echoed(talk: Conversation) -> None:
    wide = frame(RegisterSchema.opcode, sent("0004 75736572 0004 6a736f6e 00000002 7b7d"))
    assert decode_reply(RegisterSchema, (await talk.ask(wide)).payload) == RegisteredSchema(
        "user", "json", 1, "backward"
    )
    definition = 'syntax = "proto3"; message A { int32 x = 1; }'
    registered = decode_reply(
        RegisterSchema, (await talk.ask(encode_request(RegisterSchema("p", "proto", definition.encode())))).payload
    )
    assert registered.type_name == "proto"
    assert decode_reply(GetSchema, (await talk.ask(encode_request(GetSchema("p", 1)))).payload).type_name == "protobuf"


async def test_a_record_is_validated_as_deployed_clients_ask(talk: Conversation) -> None:
    request = sent("af 01 13 01 00 00 00 0c 00 04 75 73 65 72 00 00 00 02 7b 7d")
    assert (await talk.ask(request)).error == "schema not found: user"
    await talk.ask(encode_request(RegisterSchema("user", "json", USER.encode())))
    assert decode_reply(ValidateSchema, (await talk.ask(request)).payload).errors == ['"name" is a required property']
    assert await talk.ask(encode_request(ValidateSchema("user:1", b'{"name": "x"}'))) == (0x13, b"\x01\0\0\0\0")


@pytest.mark.dense
@pytest.mark.parametrize(
    "request_hex",
    [
        "af 01 14 01 00 00 00 12 00 04 74 65 73 74 00 00 00 02 7b 7d 00 04 75 73 65 72",
        "af 01 14 01 00 00 00 12 00 04 74 65 73 74 00 04 75 73 65 72 00 00 00 02 7b 7d",
    ],
    ids=["data first", "schema first"],
)
async def test_producing_with_a_schema_takes_both_field_orders(talk: Conversation, request_hex: str) -> None:
    assert (await talk.ask(sent(request_hex))).error == "schema not found: user"
    await talk.ask(encode_request(RegisterSchema("user", "json", b"{}")))
    metadata = "0004 74657374 00000000 0000000000000000" + f"{START_MS:016x}" + "ffffffff 00000002"
    assert await talk.ask(sent(request_hex)) == (0x14, sent(metadata))
    assert await values_of(talk, "test") == [b"{}"]


async def test_what_the_command_line_sent(talk: Conversation) -> None:
    await talk.ask(encode_request(RegisterSchema("nosch", "json", USER.encode())))
    captured = "af 01 14 01 00 00 00 18 00 04 63 6c 69 74 00 05 6e 6f 73 63 68 00 00 00 07 7b 22 61 22 3a 31 7d"
    assert (
        await talk.ask(sent(captured))
    ).error == 'schema validation failed: "name" is a required property (nosch-v1)'


@pytest.mark.parametrize("version", [0, 2])
async def test_deleting_takes_one_version_or_with_zero_all(talk: Conversation, version: int) -> None:
    for title in ("one", "two"):
        await talk.ask(encode_request(RegisterSchema("user", "json", json.dumps({"title": title}).encode())))
    assert await talk.ask(encode_request(DeleteSchema("user", version))) == (0x15, b"\x01\0\x02OK")
    left = decode_reply(ListSchemas, (await talk.ask(encode_request(ListSchemas()))).payload)
    assert [head.version for head, _ in left] == ([] if version == 0 else [1])


@pytest.mark.parametrize(
    ("request_bytes", "text"),
    [
        (encode_request(RegisterSchema("u", "xml", b"{}")), "unsupported schema type: xml (use json, avro, protobuf)"),
        (encode_request(RegisterSchema("u", "json", b"{")), "failed to register schema: invalid schema definition: not a JSON"),
        (frame(RegisterSchema.opcode, b"\0\x01u\x04json\0\0\0\x01\xff"), "failed to register schema: invalid schema def"),
        (encode_request(RegisterSchema("user", "json", b'{"required": ["x"]}')),
         "failed to register schema: schema compatibility check failed: new required field 'x' not in old schema"),
        (encode_request(RegisterSchema("user", "json", b"{}", "sideways")), "invalid request: compatibility 'sideways'"),
        (encode_request(GetSchema("user", 9)), "schema not found: user v9"),
        (encode_request(GetSchema("none", 0)), "no schema found for topic: none"),
        (encode_request(DeleteSchema("user", 9)), "schema not found: user v9"),
        (encode_request(DeleteSchema("none", 0)), "schema not found: none"),
        (encode_request(ValidateSchema("user:1:2:3", b"")), "invalid request: 'user:1:2:3' does not name a schema"),
        (frame(ProduceWithSchema.opcode, b"\0\x01t\0\0"), "invalid binary format: what follows the topic"),
        (encode_request(BindSchema("nope", "user")), "topic not found: nope"),
        (frame(GetSchema.opcode, b"\0\x01u"), "buffer too small: version"),
    ],
)  # fmt: skip
async def test_refusals_have_the_words_clients_know(talk: Conversation, request_bytes: bytes, text: str) -> None:
    await talk.ask(encode_request(RegisterSchema("user", "json", b"{}")))
    assert (await talk.ask(request_bytes)).error.startswith(text)
    assert (await talk.ask(encode_request(Whoami()))).opcode == Whoami.opcode


# --- beyond ---


async def test_a_record_with_a_schema_may_have_a_key_and_a_partition(talk: Conversation, broker: Broker) -> None:
    await talk.ask(encode_request(RegisterSchema("user", "json", b"{}")))
    await talk.ask(encode_request(CreateTopic("test", 3)))
    stored = metadata_of(
        decode_reply(
            ProduceWithTtl,
            (
                await talk.ask(encode_request(ProduceWithSchema("test", [SchemaReading("user", b"{}", b"k", 2)])))
            ).payload,
        )
    )
    assert (stored.partition, stored.offset) == (2, 0)
    [block] = await broker.records.partition(ANONYMOUS, "test", 2).read(0)
    assert block.keys() == [b"k"]
    assert (
        await talk.ask(encode_request(ProduceWithSchema("test", [SchemaReading("user", b"{}", b"k", 9)])))
    ).error.startswith("partition 9")


async def test_of_two_readings_the_one_whose_schema_exists_is_meant(talk: Conversation) -> None:
    # The schema "ab" behind its length is also the length of data, 0x00026162 bytes, behind which another schema's name stands.
    size = 0x00026162
    data = b"x" * (size - 4) + b"\0\x04user"
    request = frame(ProduceWithSchema.opcode, b"\0\x04test" + b"\0\x02ab" + len(data).to_bytes(4, "big") + data)
    assert (await talk.ask(request)).error == "schema not found: ab"
    fixed = json.dumps({"type": "fixed", "name": "f", "size": size})
    await talk.ask(encode_request(RegisterSchema("user", "avro", fixed.encode())))
    assert (await talk.ask(request)).opcode == 0x14
    assert await values_of(talk, "test") == [len(data).to_bytes(4, "big") + b"x" * (size - 4)]


def test_readings_that_do_not_end_where_the_payload_does_do_not_count() -> None:
    [call] = RequestDecoder().feed(frame(ProduceWithSchema.opcode, b"\0\x04test\0\x04user\0\0\0\x02{}x"))
    assert isinstance(call, Call)
    assert isinstance(call.body, BadRequest)
    [call] = RequestDecoder().feed(encode_request(ProduceWithSchema("test", [SchemaReading("user", b"{}", b"k", 1)])))
    assert isinstance(call, Call)
    assert call.body == ProduceWithSchema("test", [SchemaReading("user", b"{}", b"k", 1)])


@pytest.mark.dense
async def test_writes_with_a_schema_do_not_wait_for_each_other_and_only_those_at_fault_fail(talk: Conversation) -> None:
    await talk.ask(encode_request(RegisterSchema("user", "json", USER.encode())))
    good, bad = b'{"name": "x"}', b"{}"
    talk.say(
        *(encode_request(ProduceWithSchema("test", [SchemaReading("user", good if n % 3 else bad)])) for n in range(30))
    )
    replies = await talk.replies(30)
    assert [reply.opcode for reply in replies] == [0x14 if n % 3 else 0xFF for n in range(30)]
    assert [
        metadata_of(decode_reply(ProduceWithTtl, reply.payload)).offset for reply in replies if reply.opcode == 0x14
    ] == list(range(20))
    assert await values_of(talk, "test") == [good] * 20


async def test_a_bound_topic_checks_plain_writes_and_shows_its_schema(talk: Conversation) -> None:
    await talk.ask(encode_request(RegisterSchema("user", "json", USER.encode())))
    created = await talk.ask(encode_request(CreateTopic("users", 1, [("schema", "user:1"), ("retention_ms", "7d")])))
    assert created.opcode == CreateTopic.opcode
    config = decode_reply(Metadata, (await talk.ask(encode_request(Metadata("users")))).payload).config
    assert (config["schema"], config["retention_ms"]) == ("user:1", "604800000")
    good, bad = b'{"name": "x"}', b'{"name": 1}'
    talk.say(*(encode_produce("users", good if n % 3 else bad) for n in range(30)))
    replies = await talk.replies(30)
    assert [reply.opcode for reply in replies] == [0x01 if n % 3 else 0xFF for n in range(30)]
    assert replies[0].error == 'schema validation failed: at /name: 1 is not of type "string" (user-v1)'
    assert await values_of(talk, "users") == [good] * 20
    assert await talk.ask(encode_request(BindSchema("users", ""))) == (0xC0, b"\x01\0\x02OK")
    assert (await talk.ask(encode_produce("users", bad))).opcode == 0x01
    await talk.ask(encode_request(BindSchema("users", "user")))
    assert (await talk.ask(encode_produce("users", bad))).opcode == 0xFF
    config = decode_reply(Metadata, (await talk.ask(encode_request(Metadata("users")))).payload).config
    assert config["schema"] == "user"


async def test_a_topic_cannot_be_created_with_a_schema_that_is_not_there(talk: Conversation, broker: Broker) -> None:
    refused = await talk.ask(encode_request(CreateTopic("users", 1, [("schema", "nope")])))
    assert refused.error == "schema not found: nope"
    assert not broker.topics.exists("users")


async def test_a_run_that_is_refused_later_is_answered_in_its_place_and_only_those_at_fault_fail(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "ON_LOOP_COST_MAX", -1)
    await talk.ask(encode_request(RegisterSchema("user", "json", USER.encode())))
    await talk.ask(encode_request(CreateTopic("users", 1, [("schema", "user")])))
    good = [json.dumps({"name": str(n)}).encode() for n in range(20)]
    values = [*good[:10], b"{}", *good[10:]]
    talk.say(*(encode_produce("users", value) for value in values))
    await asyncio.sleep(0)
    talk.say(encode_produce("users", b'{"name": "behind"}'), encode_request(Whoami()))
    replies = await talk.replies(len(values) + 2)
    opcodes = [reply.opcode for reply in replies]
    assert opcodes == [*[0x01] * 10, 0xFF, *[0x01] * 10, 0x01, Whoami.opcode]
    assert await values_of(talk, "users") == [*good, b'{"name": "behind"}']
    assert talk.connection.held_bytes == 0


async def test_a_compressed_write_with_a_schema_is_a_write_too(talk: Conversation) -> None:
    await talk.ask(encode_request(RegisterSchema("user", "json", b"{}")))
    payload = gzip.compress(encode_request(ProduceWithSchema("test", [SchemaReading("user", b"{}")]))[8:])
    packed = HEADER.pack(MAGIC, VERSION, ProduceWithSchema.opcode, 0x03, len(payload)) + payload
    assert (await talk.ask(packed)).opcode == 0x14
    assert await values_of(talk, "test") == [b"{}"]

"""FlyMQ requests as the server reads them.

One table leads from opcode to payload reader, and whatever does not decode becomes a `BadRequest`, so that the connection can
answer and go on. Layouts are in `wire`; `codec` cuts runs of PRODUCE itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.errors import ProtocolViolation
from penstock.protocols.bytes import ByteReader
from penstock.protocols.flymq.access import requests as access_requests
from penstock.protocols.flymq.blocks import layouts as block_layouts
from penstock.protocols.flymq.keys import layouts as key_layouts
from penstock.protocols.flymq.lifetime import requests as lifetime_requests
from penstock.protocols.flymq.limits import SETTINGS_MAX
from penstock.protocols.flymq.pipelines import layouts as pipeline_layouts
from penstock.protocols.flymq.request_messages import (
    Authenticate,
    BadRequest,
    Body,
    ClusterMetadata,
    Commit,
    Consume,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DescribeGroup,
    Fetch,
    GetLag,
    GetOffset,
    ListGroups,
    ListTopics,
    Metadata,
    ResetOffset,
    SeekToTimestamp,
    Subscribe,
    WhoAmI,
)
from penstock.protocols.flymq.schemas import requests as schema_requests
from penstock.protocols.flymq.snapshots import layouts as snapshot_layouts
from penstock.protocols.flymq.staging import layouts as staging_layouts
from penstock.protocols.flymq.transactions import requests as transaction_requests
from penstock.protocols.flymq.wire import Opcode


def decode_request(opcode: int, data: bytes, start: int = 0, end: int | None = None) -> Body:
    """The request whose payload is `data[start:end]`."""
    reader = _READERS.get(opcode)
    if reader is None:
        return BadRequest(f"unknown opcode: {opcode}")
    try:
        return reader(ByteReader(data, start, end))
    except ProtocolViolation as violation:
        # What deployed brokers say of bad credentials; deployed clients show it.
        return BadRequest(f"invalid auth request: {violation.message}" if opcode == Opcode.AUTH else violation.message)


def produce_fault(data: bytes, start: int, end: int) -> str:
    """What is wrong with the PRODUCE payload `data[start:end]`, which `codec` could not read."""
    reader = ByteReader(data, start, end)
    try:
        reader.text16("topic")
        reader.blob32("key")
        reader.blob32("value")
        reader.i32("partition")
        reader.finish("partition")
    except ProtocolViolation as violation:
        return violation.message
    raise AssertionError("a PRODUCE payload with nothing wrong with it was refused")


def _consume(reader: ByteReader) -> Consume:
    body = Consume(reader.text16("topic"), reader.i32("partition"), reader.u64("offset"))
    reader.finish("offset")
    return body


def _create_topic(reader: ByteReader) -> CreateTopic:
    topic, partitions = reader.text16("topic"), reader.i32("partitions")
    settings = []
    if reader.remaining:
        settings = [
            (reader.text16("setting name"), reader.text16("setting value"))
            for _ in range(reader.count32("settings", 4, SETTINGS_MAX))
        ]
        reader.finish("settings")
    return CreateTopic(topic, partitions, settings)


def _metadata(reader: ByteReader) -> Metadata:
    body = Metadata(reader.text16("topic"))
    reader.finish("topic")
    return body


def _subscribe(reader: ByteReader) -> Subscribe:
    topic, group, partition = reader.text16("topic"), reader.text16("group"), reader.i32("partition")
    start = reader.peek(1)
    # A u8 length can only equal what follows it where the u16 reading does not, so the two forms never both fit.
    if start and start[0] == reader.remaining - 1:
        return Subscribe(topic, group, partition, reader.text8("mode"), native=True)
    mode = reader.text16("mode")
    reader.finish("mode")
    return Subscribe(topic, group, partition, mode, native=False)


def _commit(reader: ByteReader) -> Commit:
    body = Commit(reader.text16("topic"), reader.text16("group"), reader.i32("partition"), reader.u64("offset"))
    reader.finish("offset")
    return body


def _fetch(reader: ByteReader) -> Fetch:
    topic, partition, offset = reader.text16("topic"), reader.i32("partition"), reader.u64("offset")
    max_records = reader.i32("max_messages")
    wanted = None
    if reader.remaining:
        wanted = reader.text16("filter")
        reader.finish("filter")
    return Fetch(topic, partition, offset, max_records, wanted)


def _list_topics(reader: ByteReader) -> ListTopics:
    reader.finish("the header of LIST_TOPICS, which has no payload")
    return ListTopics()


def _delete_topic(reader: ByteReader) -> DeleteTopic:
    body = DeleteTopic(reader.text16("topic"))
    reader.finish("topic")
    return body


def _cluster_metadata(reader: ByteReader) -> ClusterMetadata:
    topic = reader.text16("topic") if reader.remaining else ""
    reader.finish("topic")
    return ClusterMetadata(topic)


def _get_offset(reader: ByteReader) -> GetOffset:
    body = GetOffset(reader.text16("topic"), reader.text16("group"), reader.i32("partition"))
    reader.finish("partition")
    return body


def _reset_offset(reader: ByteReader) -> ResetOffset:
    topic, group, partition = reader.text16("topic"), reader.text16("group"), reader.i32("partition")
    # A mode is never empty nor 256 bytes long, so a first byte of zero is the high half of a u16 length.
    mode = reader.text16("mode") if reader.peek(1) == b"\0" else reader.text8("mode")
    offset = reader.u64("offset") if reader.remaining or mode == "offset" else None
    reader.finish("offset")
    return ResetOffset(topic, group, partition, mode, offset)


def _list_groups(reader: ByteReader) -> ListGroups:
    reader.finish("the header of LIST_GROUPS, which has no payload")
    return ListGroups()


def _describe_group(reader: ByteReader) -> DescribeGroup:
    topic, group, group_only = _topic_and_group(reader)
    return DescribeGroup(topic, group, group_only)


def _delete_group(reader: ByteReader) -> DeleteGroup:
    topic, group, _ = _topic_and_group(reader)
    return DeleteGroup(topic, group)


def _topic_and_group(reader: ByteReader) -> tuple[str, str, bool]:
    first = reader.text16("topic or group")
    if not reader.remaining:
        return "", first, True
    group = reader.text16("group")
    reader.finish("group")
    return first, group, False


def _get_lag(reader: ByteReader) -> GetLag:
    body = GetLag(reader.text16("topic"), reader.text16("group"), reader.i32("partition"))
    reader.finish("partition")
    return body


def _seek_to_timestamp(reader: ByteReader) -> SeekToTimestamp:
    body = SeekToTimestamp(
        reader.text16("topic"), reader.text16("group"), reader.i32("partition"), reader.i64("timestamp")
    )
    reader.finish("timestamp")
    return body


def _authenticate(reader: ByteReader) -> Authenticate:
    body = Authenticate(reader.text16("user"), reader.text16("password"))
    reader.finish("password")
    return body


def _who_am_i(reader: ByteReader) -> WhoAmI:
    reader.finish("the header of WHOAMI, which has no payload")
    return WhoAmI()


_READERS: Mapping[int, Callable[[ByteReader], Body]] = {
    Opcode.CONSUME: _consume,
    Opcode.CREATE_TOPIC: _create_topic,
    Opcode.METADATA: _metadata,
    Opcode.SUBSCRIBE: _subscribe,
    Opcode.COMMIT: _commit,
    Opcode.FETCH: _fetch,
    Opcode.LIST_TOPICS: _list_topics,
    Opcode.DELETE_TOPIC: _delete_topic,
    Opcode.CONSUME_ZERO_COPY: _consume,
    Opcode.FETCH_BINARY: _fetch,
    Opcode.CLUSTER_METADATA: _cluster_metadata,
    Opcode.GET_OFFSET: _get_offset,
    Opcode.RESET_OFFSET: _reset_offset,
    Opcode.LIST_GROUPS: _list_groups,
    Opcode.DESCRIBE_GROUP: _describe_group,
    Opcode.GET_LAG: _get_lag,
    Opcode.DELETE_GROUP: _delete_group,
    Opcode.SEEK_TO_TIMESTAMP: _seek_to_timestamp,
    Opcode.AUTH: _authenticate,
    Opcode.WHOAMI: _who_am_i,
    **access_requests.READERS,
    **block_layouts.READERS,
    **key_layouts.READERS,
    **pipeline_layouts.READERS,
    **snapshot_layouts.READERS,
    **lifetime_requests.READERS,
    **schema_requests.READERS,
    **staging_layouts.READERS,
    **transaction_requests.READERS,
}

"""Felix messages: the JSON objects, and the binary publish batch.

Fields stand in the order in which deployed encoders write them, `type` first, so that a message encodes to the bytes they write. What a
deployed encoder leaves out is UNSET; what it writes as null is None. On input the order is free and fields nobody knows are ignored.

Ids are texts in the contract and integers in deployed software. Both are taken, and given back as they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

BATCH_EVENTS_MAX: Final = 500_000
"""In one publish. A frame has room for millions of tiny events, each of which takes some 40 bytes more in memory than on the wire."""

ID_CHARS_MAX: Final = 1024
"""For an id that is a text. It is given back with the answer, so its length is a bound on that of answers."""
NAME_CHARS_MAX: Final = 1024
"""Of the names of a cache, for the same reason; those that exist are shorter."""
KEY_CHARS_MAX: Final = 4096
GROUP_CHARS_MAX: Final = 256
ROUTING_KEY_BYTES_MAX: Final = 0xFFFF
"""What a binary batch has room for."""

Id = int | Annotated[str, Meta(max_length=ID_CHARS_MAX)] | UnsetType | None
Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)] | UnsetType | None
Key = Annotated[str, Meta(max_length=KEY_CHARS_MAX)]
RoutingKey = Annotated[bytes, Meta(max_length=ROUTING_KEY_BYTES_MAX)] | UnsetType | None
Group = Annotated[str, Meta(min_length=1, max_length=GROUP_CHARS_MAX)]
AckMode = Literal["none", "per_message", "per_batch"]
StartName = Literal["latest", "earliest"]


class Message(msgspec.Struct, tag_field="type", gc=False):
    """Anything that is sent as JSON."""


# -- from the client ------------------------------------------------------------------------------------------------------


class Auth(Message, tag="auth", kw_only=True):
    tenant_id: str
    token: str
    client_flags: int | UnsetType | None = UNSET
    client_features: int | UnsetType | None = UNSET


class OnStream(Message, kw_only=True):
    tenant_id: str
    namespace: str
    stream: str


class OnGroup(OnStream, kw_only=True):
    shard: int = 0
    group: Group


class OnKey(Message, kw_only=True):
    tenant_id: Name = UNSET
    namespace: Name = UNSET
    cache: Name = UNSET
    key: Key


class Publish(OnStream, tag="publish", kw_only=True):
    payload: bytes
    key: RoutingKey = UNSET
    shard: int | UnsetType | None = UNSET
    request_id: Id = UNSET
    ack: AckMode | UnsetType | None = UNSET


class PublishBatch(OnStream, tag="publish_batch", kw_only=True):
    payloads: Annotated[list[bytes], Meta(max_length=BATCH_EVENTS_MAX)]
    key: RoutingKey = UNSET
    shard: int | UnsetType | None = UNSET
    request_id: Id = UNSET
    ack: AckMode | UnsetType | None = UNSET


class StartOffset(msgspec.Struct, gc=False):
    offset: int


class Subscribe(OnStream, tag="subscribe", kw_only=True):
    subscription_id: Id = UNSET
    request_id: Id = UNSET
    start: StartName | StartOffset | UnsetType | None = UNSET
    shard: int | UnsetType | None = UNSET


class CachePut(OnKey, tag="cache_put", kw_only=True):
    value: bytes
    request_id: Id = UNSET
    ttl_ms: int | None = None


class CacheGet(OnKey, tag="cache_get", kw_only=True):
    request_id: Id = UNSET


class CacheDelete(OnKey, tag="cache_delete", kw_only=True):
    request_id: Id = UNSET


class StreamShards(OnStream, tag="stream_shards", kw_only=True):
    request_id: Id = UNSET


class GroupPoll(OnGroup, tag="group_poll", kw_only=True):
    max_records: int
    wait_ms: int = 0
    request_id: Id = UNSET
    consumer: str | UnsetType | None = UNSET
    visibility_ms: int = 0


class GroupAck(OnGroup, tag="group_ack", kw_only=True):
    offset: int
    request_id: Id = UNSET


class GroupNack(OnGroup, tag="group_nack", kw_only=True):
    offset: int
    request_id: Id = UNSET
    delay_ms: int = 0
    attempts: int = 0


class BinaryPublish(msgspec.Struct, gc=False):
    """A publish batch that came as bytes. `request_id` is None if no acknowledgement is asked for."""

    tenant_id: str
    namespace: str
    stream: str
    payloads: Sequence[bytes]
    key: bytes | None = None
    request_id: int | None = None


# -- from the server ------------------------------------------------------------------------------------------------------


class Ok(Message, tag="ok", kw_only=True):
    request_id: Id = UNSET


class Error(Message, tag="error", kw_only=True):
    request_id: Id = UNSET
    message: str
    code: str | UnsetType = UNSET
    retry: str | UnsetType = UNSET


class AuthOk(Message, tag="auth_ok", kw_only=True):
    server_flags: int
    server_features: int | UnsetType = UNSET
    publish_window: int | UnsetType = UNSET


class PublishOk(Message, tag="publish_ok", kw_only=True):
    request_id: Id
    offset: int | UnsetType = UNSET


class PublishError(Message, tag="publish_error", kw_only=True):
    request_id: Id
    message: str
    code: str | UnsetType = UNSET
    retry: str | UnsetType = UNSET


class Subscribed(Message, tag="subscribed", kw_only=True):
    subscription_id: Id
    request_id: Id = UNSET
    start_offset: int | UnsetType = UNSET
    """The offset of the first record that is delivered."""
    live_offset: int | UnsetType = UNSET
    """The end of the stream at the time. A client may drop what it is too slow for from there on; what lies before it, it asked for."""


class SubscribeCursorError(Message, tag="subscribe_cursor_error", kw_only=True):
    reason: Literal["too_old", "in_future"]
    requested: int
    available: int
    request_id: Id = UNSET


class EventStreamHello(Message, tag="event_stream_hello", kw_only=True):
    subscription_id: Id


class Event(Message, tag="event", kw_only=True):
    tenant_id: str
    namespace: str
    stream: str
    payload: bytes
    offset: int | UnsetType = UNSET


class EventBatch(Message, tag="event_batch", kw_only=True):
    tenant_id: str
    namespace: str
    stream: str
    payloads: list[bytes]
    base_offset: int | UnsetType = UNSET


class CacheOk(Message, tag="cache_ok", kw_only=True):
    request_id: Id


class CacheValue(Message, tag="cache_value", kw_only=True):
    """With the scope of the cache, as deployed software has it."""

    tenant_id: Name = UNSET
    namespace: Name = UNSET
    cache: Name = UNSET
    key: Key
    value: bytes | None
    request_id: Id = UNSET


class SpecCacheValue(Message, tag="cache_value", kw_only=True):
    """In the order of the contract, which has no scope."""

    request_id: Id = UNSET
    tenant_id: Name = UNSET
    namespace: Name = UNSET
    cache: Name = UNSET
    key: str
    value: bytes | None


class StreamShardsView(Message, tag="stream_shards_view", kw_only=True):
    shards: int
    request_id: Id


class GroupRecord(msgspec.Struct, gc=False):
    offset: int
    payload: bytes
    attempts: int
    """Deliveries of this record to the group, this one included."""


class GroupRecords(Message, tag="group_records", kw_only=True):
    records: list[GroupRecord]
    request_id: Id


class BadRequest(msgspec.Struct, gc=False):
    """A frame that is whole and makes no sense: what to answer, and the id to answer with where one could be found."""

    text: str
    request_id: Id = UNSET
    binary: bool = False
    """Whether it was an acked publish batch, whose answer is binary too."""


GroupRequest = GroupPoll | GroupAck | GroupNack
FromClient = Auth | Publish | PublishBatch | Subscribe | CachePut | CacheGet | CacheDelete | StreamShards | GroupRequest
FromServer = (
    Ok
    | Error
    | AuthOk
    | PublishOk
    | PublishError
    | Subscribed
    | SubscribeCursorError
    | EventStreamHello
    | Event
    | EventBatch
    | CacheOk
    | CacheValue
    | StreamShardsView
    | GroupRecords
)
Request = FromClient | BinaryPublish | BadRequest

SERVER_TYPES: Final = frozenset(str(each.__struct_config__.tag) for each in get_args(FromServer))
"""Types that only a server may send."""

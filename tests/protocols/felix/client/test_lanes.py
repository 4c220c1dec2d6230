"""A client's stream for requests: whose answer is whose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import AuthenticationFailed, ConnectionLost, PenstockError, ProtocolViolation, TopicNotFound
from penstock.protocols.felix.client.lanes import Lane
from penstock.protocols.felix.codec.frames import encode_message
from penstock.protocols.felix.codec.messages import (
    Auth,
    AuthOk,
    CacheValue,
    Error,
    EventStreamHello,
    Message,
    Ok,
    PublishError,
    PublishOk,
)

AUTH = Auth(tenant_id="t", token="x")


class FakeStream:
    """Both a connection that opens one stream, and that stream."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.can_send = True
        self.arrives: Callable[[bytes], None] = lambda _: None

    async def open_stream_when_allowed(self, *, on_data: Callable[[bytes], None]) -> FakeStream:
        self.arrives = on_data
        return self

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    def end(self) -> None:
        self.can_send = False

    def say(self, *messages: Message) -> None:
        self.arrives(b"".join(map(encode_message, messages)))


@pytest.fixture
def stream() -> FakeStream:
    return FakeStream()


async def begun(stream: Any, welcome: Message) -> Lane:
    lane = Lane()
    beginning = asyncio.ensure_future(lane.begin(stream, AUTH))
    await asyncio.sleep(0)
    stream.say(welcome)
    await beginning
    return lane


async def asked(lane: Lane, *ids: int) -> list[asyncio.Future[Any]]:
    asking: list[asyncio.Future[Any]] = [asyncio.ensure_future(lane.request(id_, b"%d" % id_)) for id_ in ids]
    await asyncio.sleep(0)
    return asking


@pytest.mark.parametrize("welcome", [Ok(), AuthOk(server_flags=1)])
async def test_it_begins_by_saying_who_it_is(stream: FakeStream, welcome: Message) -> None:
    await begun(stream, welcome)
    assert stream.written == [encode_message(AUTH)]


async def test_a_login_that_is_refused_is_told(stream: FakeStream) -> None:
    with pytest.raises(AuthenticationFailed):
        await begun(stream, Error(message="auth failed"))


async def test_answers_may_come_in_any_order(stream: FakeStream) -> None:
    lane = await begun(stream, Ok())
    first, second, third = await asked(lane, 1, 2, 3)
    stream.say(CacheValue(key="k", value=b"3", request_id=3), PublishOk(request_id=1))
    stream.say(PublishError(request_id=2, message="stream not found"), PublishOk(request_id=9))
    assert await first == PublishOk(request_id=1)
    assert (await third).value == b"3"
    with pytest.raises(TopicNotFound):
        await second


async def test_an_error_without_an_id_is_for_the_oldest_request(stream: FakeStream) -> None:
    lane = await begun(stream, Ok())
    first, second = await asked(lane, 1, 2)
    stream.say(Error(message="stream not found"))
    with pytest.raises(TopicNotFound):
        await first
    stream.say(PublishOk(request_id=2))
    assert await second == PublishOk(request_id=2)


async def test_an_answer_that_nobody_waits_for_any_more_is_dropped(stream: FakeStream) -> None:
    lane = await begun(stream, Ok())
    first, second = await asked(lane, 1, 2)
    first.cancel()
    await asyncio.sleep(0)
    stream.say(PublishOk(request_id=1), PublishOk(request_id=2))
    assert await second == PublishOk(request_id=2)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ConnectionLost),
        (b"HTTP/1.1 400 Bad Request", ProtocolViolation),
        (encode_message(EventStreamHello(subscription_id=1)), ProtocolViolation),
        (encode_message(Auth(tenant_id="t", token="x")), ProtocolViolation),
    ],
    ids=["its end", "what is not Felix", "what belongs elsewhere", "what no broker says"],
)
async def test_what_is_no_answer_fails_everything_that_waits_and_all_that_comes(
    stream: FakeStream, data: bytes, error: type[PenstockError]
) -> None:
    lane = await begun(stream, Ok())
    waiting = await asked(lane, 1, 2)
    stream.arrives(data)
    for each in waiting:
        with pytest.raises(error):
            await each
    with pytest.raises(error):
        await lane.request(3, b"")
    with pytest.raises(error):
        await lane.post(b"")


async def test_it_finishes_when_the_broker_has_answered_and_ended(stream: FakeStream) -> None:
    lane = await begun(stream, Ok())
    (waiting,) = await asked(lane, 1)
    finishing = asyncio.ensure_future(lane.finish())
    await asyncio.sleep(0)
    assert not stream.can_send
    with pytest.raises(ConnectionLost, match="closed"):
        await lane.request(2, b"")
    stream.say(PublishOk(request_id=1))
    assert await waiting == PublishOk(request_id=1)
    assert not finishing.done()
    stream.arrives(b"")
    await finishing
    await lane.finish()


async def test_it_waits_for_what_is_not_answered_and_for_nothing_where_nothing_was_sent(stream: FakeStream) -> None:
    idle = await begun(stream, Ok())
    await idle.finish()
    busy = await begun(stream, Ok())
    await busy.post(b"an event")
    finishing = asyncio.ensure_future(busy.finish())
    await asyncio.sleep(0)
    assert not finishing.done()
    stream.arrives(b"")
    await finishing

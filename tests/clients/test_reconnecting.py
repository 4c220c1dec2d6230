"""A conversation over QUIC that is begun once, and again when it was lost. Connections are made of nothing here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from penstock.clients import reconnecting
from penstock.clients.nodes import Nodes
from penstock.clients.options import ClientOptions
from penstock.clients.reconnecting import Reconnecting
from penstock.clients.retry import Attempts, RetryPolicy
from penstock.clients.returning import Return
from penstock.clients.url import parse_quic_url
from penstock.errors import (
    AuthenticationFailed,
    ConnectionLost,
    InvalidRequest,
    LimitExceeded,
    ProtocolViolation,
    RequestTimeout,
    ShuttingDown,
    Unreachable,
)
from penstock.testing.clock import ManualClock

OPTIONS = ClientOptions(retry=RetryPolicy(attempts_max=4))
IMPATIENT = ClientOptions(connect_timeout_s=0.01, request_timeout_s=0.01)
"""For what never comes."""


class Connection:
    """What is known of one here."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Talk:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_broken = False
        self.is_busy = False


class Net:
    """Connects, unless told to fail, and remembers every connection."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.made: list[Connection] = []
        self.slept_s: list[float] = []
        self.clock = ManualClock()
        self.silent: set[str] = set()
        self.tried: list[str] = []
        self.awake = asyncio.Event()

    async def connect(self, host: str, port: int, **_: object) -> Connection:
        await asyncio.sleep(0)
        self.tried.append(host)
        if host in self.silent:
            await asyncio.Event().wait()
        if self.failures:
            raise self.failures.pop(0)
        self.made.append(Connection())
        return self.made[-1]

    async def sleep(self, delay_s: float) -> None:
        self.slept_s.append(delay_s)
        self.clock.advance(delay_s)

    async def nap(self, delay_s: float) -> None:
        """The pause of a client that is to return to its first node."""
        await self.awake.wait()
        await asyncio.sleep(0)


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    net = Net()
    monkeypatch.setattr(reconnecting, "connect_quic", net.connect)
    return net


async def begin(connection: Any) -> Talk:
    await asyncio.sleep(0)
    return Talk(connection)


def talks_over(
    net: Net, begin: Callable[[Any], Any] = begin, options: ClientOptions = OPTIONS, hosts: str = "broker"
) -> Reconnecting[Talk]:
    nodes = Nodes(parse_quic_url(f"fujin://{hosts}?hosts=in-order", "fujin", port=1, tls=None), Random(1))
    return Reconnecting(
        nodes,
        options,
        partial(Attempts, options.retry, clock=net.clock, random=Random(1), sleep=net.sleep),
        partial(Return, nodes, after_s=60.0, random=Random(1), sleep=net.nap),
        alpn="fujin",
        begin=begin,
        is_usable=lambda talk: not talk.is_broken,
        is_idle=lambda talk: not talk.is_busy,
        replaced=lambda talk: talk.connection.close(),
    )


async def test_it_is_begun_once_however_many_need_it(net: Net) -> None:
    talks = talks_over(net)
    found = await asyncio.gather(*(talks.get() for _ in range(10)))
    assert len(set(found)) == len(net.made) == 1
    assert await talks.get() is found[0]


async def test_it_is_begun_again_where_it_broke_and_nothing_is_left_open(net: Net) -> None:
    talks = talks_over(net)
    first = await talks.get()
    first.is_broken = True
    second = await talks.get()
    assert second is not first
    assert [connection.is_closed for connection in net.made] == [True, False]
    assert talks.leave() is second
    assert (await talks.get()).connection is net.made[2]
    assert not second.connection.is_closed  # the caller that took it over closes it


async def test_callers_that_wait_too_short_for_a_silent_node_get_to_the_next(net: Net) -> None:
    net.silent = {"silent"}
    talks = talks_over(net, hosts="silent,live")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(talks.get(), 0.01)
    await talks.get()
    assert net.tried == ["silent", "live"]


async def test_callers_that_wait_too_short_come_back_to_the_node_that_was_lost(net: Net) -> None:
    net.silent = {"silent"}
    talks = talks_over(net, hosts="live,silent")
    (await talks.get()).is_broken = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(talks.get(), 0.01)
    await talks.get()
    assert net.tried == ["live", "silent", "live"]


@pytest.mark.parametrize("error", [ProtocolViolation("what?"), LimitExceeded("full"), ShuttingDown("stopping")])
async def test_a_node_that_is_no_broker_or_takes_nobody_is_passed_over(net: Net, error: Exception) -> None:
    async def begin_later(connection: Any) -> Talk:
        if len(net.made) == 1:
            raise error
        return await begin(connection)

    assert (await talks_over(net, begin_later, hosts="a,b").get()).connection is net.made[1]
    assert net.made[0].is_closed
    net.made.clear()
    with pytest.raises(type(error)):
        await talks_over(net, begin_later).get()


async def test_a_node_that_refuses_a_login_is_not_asked_first_again(net: Net) -> None:
    async def begin_later(connection: Any) -> Talk:
        if len(net.made) == 1:
            raise AuthenticationFailed("no")
        return await begin(connection)

    talks = talks_over(net, begin_later, hosts="a,b")
    with pytest.raises(AuthenticationFailed):
        await talks.get()
    await talks.get()
    assert net.tried == ["a", "b"]


async def test_it_is_tried_again_a_few_times_unless_asked_for_at_once(net: Net) -> None:
    net.failures = [Unreachable("no")] * 3
    assert (await talks_over(net).get()).connection is net.made[0]
    assert len(net.slept_s) == 3
    net.failures = [Unreachable("no")] * 9
    with pytest.raises(Unreachable):
        await talks_over(net).get()
    assert len(net.failures) == 9 - 4
    with pytest.raises(Unreachable):
        await talks_over(net).open()
    assert len(net.failures) == 9 - 5


@pytest.mark.parametrize("error", [RequestTimeout("late"), ConnectionLost("gone")])
async def test_a_conversation_that_cannot_begin_is_unreachable_because_no_request_was_sent(
    net: Net, error: Exception
) -> None:
    async def fail(connection: Any) -> Talk:
        raise error

    with pytest.raises(Unreachable, match=f"cannot connect to fujin://broker:1: {error}"):
        await talks_over(net, fail).get()
    assert [connection.is_closed for connection in net.made] == [True] * 4


@pytest.mark.parametrize("error", [RequestTimeout("late"), ConnectionLost("gone")])
async def test_what_was_sent_on_a_connection_of_its_own_is_not_reported_as_unreachable(
    net: Net, error: Exception
) -> None:
    async def fail(connection: Any) -> Talk:
        net.failures = [Unreachable("no")] * 9
        raise error

    with pytest.raises(type(error), match=str(error)):
        await talks_over(net).connect(fail)
    assert len(net.failures) == 9 - 3
    with pytest.raises(Unreachable):
        await talks_over(net).connect(fail)


async def test_what_the_beginning_refuses_is_final_and_leaves_no_connection(net: Net) -> None:
    async def refuse(connection: Any) -> Talk:
        raise AuthenticationFailed("auth failed")

    with pytest.raises(AuthenticationFailed):
        await talks_over(net, refuse).get()
    assert [connection.is_closed for connection in net.made] == [True]


async def test_a_beginning_that_takes_too_long_is_given_up(net: Net) -> None:
    async def wait(connection: Any) -> Talk:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(Unreachable, match="fujin://broker:1 did not answer"):
        await talks_over(net, wait, IMPATIENT).open()
    assert [connection.is_closed for connection in net.made] == [True]


async def test_who_needs_a_connection_for_itself_gets_one(net: Net) -> None:
    talks = talks_over(net)
    own = await talks.connect(begin)
    shared = await talks.get()
    assert own.connection is not shared.connection
    assert await talks.get() is shared


async def test_a_closed_one_is_not_begun_again_also_where_it_was_just_beginning(net: Net) -> None:
    talks = talks_over(net)
    asked = asyncio.ensure_future(talks.get())
    await asyncio.sleep(0)
    assert talks.close() is None
    with pytest.raises(InvalidRequest, match="closed while it was connecting"):
        await asked
    assert [connection.is_closed for connection in net.made] == [True]
    with pytest.raises(InvalidRequest, match="is closed"):
        await talks.get()


async def test_what_takes_too_long_is_told_and_what_is_too_much_waits(net: Net) -> None:
    with pytest.raises(RequestTimeout):
        await talks_over(net, options=IMPATIENT).in_time(asyncio.Event().wait)
    talks = talks_over(net)
    under_way: list[int] = []
    most: list[int] = []

    async def work() -> None:
        under_way.append(1)
        most.append(len(under_way))
        await asyncio.sleep(0)
        under_way.pop()

    half = OPTIONS.in_flight_bytes_max // 2
    await asyncio.gather(*(talks.in_time(work, size_bytes=half) for _ in range(6)))
    assert max(most) == 2


async def talk_with_the_second(net: Net) -> tuple[Reconnecting[Talk], Talk]:
    """The first is lost, and could be had again."""
    talks = talks_over(net, hosts="first,second")
    (await talks.get()).is_broken = True
    return talks, await talks.get()


async def test_the_first_node_is_talked_to_again_once_nothing_is_in_flight(net: Net) -> None:
    talks, second = await talk_with_the_second(net)
    second.is_busy = True
    net.awake.set()
    await turns()
    assert net.tried == ["first", "second"]
    second.is_busy = False
    async with asyncio.TaskGroup() as group:
        group.create_task(talks.in_time(turns))
        await asyncio.sleep(0)
        assert net.tried == ["first", "second"], "a request is in flight"
    await turns()
    assert net.tried == ["first", "second", "first"]
    assert second.connection.is_closed
    assert (await talks.get()).connection is net.made[2]
    (await talks.get()).is_broken = True
    await talks.get()
    assert net.tried[3:] == ["second"], "after the first comes the one after it"


async def test_a_conversation_that_is_needed_while_another_begins_is_kept(net: Net) -> None:
    talks, second = await talk_with_the_second(net)
    net.awake.set()
    while len(net.tried) < 3:
        await asyncio.sleep(0)
    net.awake.clear()
    assert await talks.get() is second
    await turns()
    assert not second.connection.is_closed
    assert net.made[2].is_closed
    assert await talks.get() is second


async def test_a_closed_client_returns_to_no_node(net: Net) -> None:
    talks, _ = await talk_with_the_second(net)
    talks.close()
    net.awake.set()
    await turns()
    assert net.tried == ["first", "second"]


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)

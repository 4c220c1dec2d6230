"""The official Felix client, `felix-client` from PyPI, against a broker over real QUIC: everything of it that a broker can serve."""

from __future__ import annotations

import asyncio
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import felix
import pytest

import penstock
from penstock.clock import SystemClock
from penstock.testing import RunningBroker

TENANT, NAMESPACE = "t1", "default"
TOKEN = "a secret"
EVENT_S_MAX = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    topics = [{"name": "t1/demo"}, {"name": "t1/wide", "partitions": 4}, {"name": "t1/shop/orders"}, {"name": "plain"}]
    with RunningBroker(clock=SystemClock(), topics=topics) as broker:
        yield broker


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[RunningBroker]:
    """Asks for tokens."""
    settings = {"felix": {"tokens": {TENANT: TOKEN}}}
    with RunningBroker(clock=SystemClock(), topics=[{"name": "t1/demo"}], listeners=settings) as broker:
        yield broker


def connected(broker: RunningBroker, *, token: str = TOKEN, tenant: str = TENANT, alpn: bool = False) -> felix.Client:
    return felix.Client(
        broker.addresses["felix"], tenant_id=tenant, token=token, ca_file=str(broker.certificate), offer_alpn=alpn
    )


@pytest.fixture
def client(broker: RunningBroker) -> felix.Client:
    return connected(broker)


def events(subscription: felix.SubscriptionHandle, count: int) -> list[felix.Event]:
    found = [subscription.next_event(timeout=EVENT_S_MAX) for _ in range(count)]
    assert None not in found
    return [event for event in found if event is not None]


def payloads(subscription: felix.SubscriptionHandle, count: int) -> list[bytes]:
    return [event.payload for event in events(subscription, count)]


@pytest.mark.parametrize("alpn", [False, True], ids=["without ALPN", "with ALPN"])
def test_it_connects_publishes_and_reads(broker: RunningBroker, alpn: bool) -> None:
    client = connected(broker, alpn=alpn)
    with client.subscribe(TENANT, NAMESPACE, "demo") as subscription:
        client.publish(TENANT, NAMESPACE, "demo", b"hello")
        (event,) = events(subscription, 1)
        assert (event.tenant_id, event.namespace, event.stream, event.payload) == ("t1", "default", "demo", b"hello")


def test_every_kind_of_acknowledgement(client: felix.Client) -> None:
    with client.subscribe(TENANT, NAMESPACE, "demo") as subscription:
        assert client.publish(TENANT, NAMESPACE, "demo", b"unheard", ack="none") is None
        first = client.publish(TENANT, NAMESPACE, "demo", b"each", ack="per_message")
        second = client.publish(TENANT, NAMESPACE, "demo", b"batch", ack="per_batch")
        found = events(subscription, 3)
    assert first is not None
    assert second == first + 1
    assert [event.payload for event in found] == [b"unheard", b"each", b"batch"]
    assert [event.offset for event in found] == [first - 1, first, second]


def test_a_key_comes_with_its_record_and_keeps_records_together(broker: RunningBroker, client: felix.Client) -> None:
    sent = {b"K%d" % number: [b"%d-%d" % (number, row) for row in range(5)] for number in range(6)}
    with client.subscribe(TENANT, NAMESPACE, "wide") as subscription:
        for row in range(5):
            for key, values in sent.items():
                client.publish(TENANT, NAMESPACE, "wide", values[row], key=key)
        assert sorted(payloads(subscription, 30)) == sorted(value for values in sent.values() for value in values)
    reader = broker.connect()
    stored: dict[bytes | None, list[bytes | None]] = {}
    for partition in range(4):
        for record in reader.records("t1/wide", partition):
            stored.setdefault(record.key, []).append(record.value)
    assert stored == sent


@pytest.mark.parametrize("start", ["earliest", 1])
def test_it_may_begin_where_it_likes(broker: RunningBroker, client: felix.Client, start: Any) -> None:
    name = f"begins-{start}"
    broker.connect().create_topic(f"t1/{name}")
    for value in (b"0", b"1", b"2"):
        client.publish(TENANT, NAMESPACE, name, value)
    with client.subscribe(TENANT, NAMESPACE, name, start=start) as subscription:
        assert payloads(subscription, 2) == ([b"0", b"1"] if start == "earliest" else [b"1", b"2"])


def test_older_events_come_once_however_slowly_they_are_read() -> None:
    """The client drops live events that it has no room for, and subscribes again; older ones it makes the broker wait with."""
    values = [b"%d " % number + bytes(1_000) for number in range(10_000)]
    with RunningBroker(clock=SystemClock(), topics=[{"name": "t1/old"}], admin=True) as broker:
        with broker.connect() as other:
            other.send_many("t1/old", values)
        with connected(broker).subscribe(TENANT, NAMESPACE, "old", start="earliest") as subscription:
            assert payloads(subscription, len(values)) == values
        with urllib.request.urlopen(f"http://{broker.addresses['admin']}/metrics") as reply:
            figures = reply.read().decode()
    delivered = re.search(r'penstock_push_events_total\{listener="felix",result="delivered"\} (\S+)', figures)
    assert delivered is not None
    assert float(delivered[1]) == len(values)


def test_a_beginning_past_the_end_is_a_cursor_error(client: felix.Client) -> None:
    with pytest.raises(felix.CursorError):
        client.subscribe(TENANT, NAMESPACE, "demo", start=1 << 40)


def test_many_events_come_in_order(client: felix.Client) -> None:
    values = [b"%d " % number + bytes(number % 700) for number in range(400)]
    with client.subscribe(TENANT, "shop", "orders") as subscription:
        for value in values:
            client.publish(TENANT, "shop", "orders", value, ack="none")
        assert payloads(subscription, len(values)) == values


def test_it_reads_what_other_protocols_write(broker: RunningBroker) -> None:
    client = connected(broker, tenant="default")
    with client.subscribe("default", "default", "plain") as subscription:
        broker.connect().send_many("plain", [b"one", b"two"])
        assert payloads(subscription, 2) == [b"one", b"two"]


def test_large_events_pass(client: felix.Client) -> None:
    value = bytes(range(256)) * 12_000
    with client.subscribe(TENANT, NAMESPACE, "demo") as subscription:
        client.publish(TENANT, NAMESPACE, "demo", value)
        assert payloads(subscription, 1) == [value]


def test_the_cache(broker: RunningBroker, client: felix.Client) -> None:
    client.cache_put(TENANT, NAMESPACE, "primary", "k", b"v")
    client.cache_put(TENANT, NAMESPACE, "primary", "gone", b"v", ttl=0.001)
    client.cache_put(TENANT, NAMESPACE, "primary", "stays", b"v", ttl=3600.0)
    assert client.cache_get(TENANT, NAMESPACE, "primary", "k") == b"v"
    assert client.cache_get(TENANT, NAMESPACE, "primary", "stays") == b"v"
    assert client.cache_get(TENANT, NAMESPACE, "primary", "never") is None
    assert client.cache_get(TENANT, NAMESPACE, "other", "k") is None
    while client.cache_get(TENANT, NAMESPACE, "primary", "gone") is not None:
        pass
    url = f"felix://{broker.addresses['felix']}?ca={broker.certificate}"
    with closing(penstock.connect(url, tenant=TENANT)) as own:
        assert own.cache_get("k", cache="primary") == b"v"
    assert client.cache_delete(TENANT, NAMESPACE, "primary", "k") == b"v"
    assert client.cache_delete(TENANT, NAMESPACE, "primary", "k") is None
    assert client.cache_get(TENANT, NAMESPACE, "primary", "k") is None


def test_a_group_shares_records_and_gets_back_what_was_not_finished(
    broker: RunningBroker, client: felix.Client
) -> None:
    broker.connect().create_topic("t1/work")
    for value in (b"one", b"two", b"three"):
        client.publish(TENANT, NAMESPACE, "work", value)
    work = (TENANT, NAMESPACE, "work", 0, "billing")
    first, second = client.group_poll(*work, max_records=2)
    (third,) = connected(broker).group_poll(*work)
    assert [(each.offset, each.payload, each.attempts) for each in (first, second, third)] == [
        (0, b"one", 1),
        (1, b"two", 1),
        (2, b"three", 1),
    ]
    client.group_ack(*work, first.offset)
    client.group_ack(*work, first.offset)
    client.group_nack(*work, second)
    connected(broker).group_ack(*work, third.offset)
    (again,) = client.group_poll(*work, wait=EVENT_S_MAX)
    assert (again.offset, again.payload, again.attempts) == (1, b"two", 2)
    client.group_ack(*work, again.offset)
    assert client.group_poll(*work, wait=0) == []


def test_a_group_survives_a_crash_of_the_broker() -> None:
    with RunningBroker(clock=SystemClock(), topics=[{"name": "t1/work"}]) as broker:
        work = (TENANT, NAMESPACE, "work", 0, "billing")
        client = connected(broker)
        for value in (b"finished", b"begun", b"untouched"):
            client.publish(TENANT, NAMESPACE, "work", value)
        finished, _ = client.group_poll(*work, max_records=2)
        client.group_ack(*work, finished.offset)
        broker.kill()
        broker.start()
        client = connected(broker)
        again = [record for _ in range(2) for record in client.group_poll(*work, max_records=1, wait=EVENT_S_MAX)]
        assert [(each.payload, each.attempts) for each in again] == [(b"begun", 2), (b"untouched", 1)]


def test_a_poll_waits_for_work(broker: RunningBroker, client: felix.Client) -> None:
    broker.connect().create_topic("t1/later")
    later = (TENANT, NAMESPACE, "later", 0, "billing")
    found: list[bytes] = []
    waiting = threading.Thread(
        target=lambda: found.extend(each.payload for each in client.group_poll(*later, wait=EVENT_S_MAX))
    )
    waiting.start()
    connected(broker).publish(TENANT, NAMESPACE, "later", b"work")
    waiting.join()
    assert found == [b"work"]


async def test_a_group_with_the_async_client(broker: RunningBroker) -> None:
    client = await felix.AsyncClient.connect(
        broker.addresses["felix"], tenant_id=TENANT, token=TOKEN, ca_file=str(broker.certificate)
    )
    work = (TENANT, NAMESPACE, "demo", 0, "async")
    await client.publish(TENANT, NAMESPACE, "demo", b"x")
    while polled := await client.group_poll(*work, max_records=500, wait=0):
        await asyncio.gather(*(client.group_ack(*work, record.offset) for record in polled))
    assert await client.group_poll(*work, wait=0) == []


def test_a_group_says_why_it_refuses(client: felix.Client) -> None:
    demo = (TENANT, NAMESPACE, "demo", 0)
    with pytest.raises(felix.NotFoundError, match="stream not found: tenant=t1 namespace=default stream=nope"):
        client.group_poll(TENANT, NAMESPACE, "nope", 0, "g")
    with pytest.raises(felix.NotFoundError, match="group not found: nobody has never polled t1/demo"):
        client.group_ack(*demo, "nobody", 0)
    with pytest.raises(felix.NotFoundError, match="shard 1 not found"):
        client.group_poll(TENANT, NAMESPACE, "demo", 1, "g")
    with pytest.raises(felix.FelixError, match="a group needs a stream with one partition"):
        client.group_poll(TENANT, NAMESPACE, "wide", 0, "g")
    client.group_poll(*demo, "g", wait=0)
    with pytest.raises(felix.FelixError, match="stale claim: offset 99999") as stale:
        client.group_ack(*demo, "g", 99_999)
    assert (stale.value.code, stale.value.retry) == ("stale_claim", "retry")


def test_a_refusal_has_a_code_and_costs_no_connection(broker: RunningBroker) -> None:
    client = connected(broker)
    client.publish(TENANT, NAMESPACE, "demo", b"x")
    stats = broker.server.listeners["felix"].stats
    before = stats.connections_total
    for _ in range(3):
        with pytest.raises(felix.NotFoundError) as refused:
            client.publish(TENANT, NAMESPACE, "nope", b"x")
        assert (refused.value.code, refused.value.retry) == ("not_found", "fatal")
    with pytest.raises(felix.NotFoundError) as refused:
        client.subscribe(TENANT, NAMESPACE, "nope")
    assert refused.value.code == "not_found"
    with pytest.raises(felix.FelixError) as malformed:
        client.cache_put(TENANT, NAMESPACE, "p", "k" * 5000, b"v")
    assert malformed.value.code == "invalid_request"
    assert stats.connections_total == before


@pytest.mark.parametrize("stream", ["demo", "wide"])
def test_a_stream_has_one_shard_whatever_its_partitions(client: felix.Client, stream: str) -> None:
    assert client.stream_shards(TENANT, NAMESPACE, stream) == 1
    with client.subscribe_sharded(TENANT, NAMESPACE, stream) as subscription:
        assert subscription.shards == 1
        for number in range(8):
            client.publish(TENANT, NAMESPACE, stream, b"%d" % number)
        found = [subscription.next_event(timeout=EVENT_S_MAX) for _ in range(8)]
    payloads = [each.event.payload for each in found if isinstance(each, felix.ShardRecord)]
    assert sorted(payloads) == [b"%d" % number for number in range(8)]


NOT_SERVED: dict[str, tuple[Any, str]] = {
    "dead letters": (lambda c: c.group_dead_letters(TENANT, NAMESPACE, "demo", 0, "g"), "does not serve dead letters"),
    "discarding": (lambda c: c.group_discard(TENANT, NAMESPACE, "demo", 0, "g", 0), "does not serve dead letters"),
    "redriving": (lambda c: c.group_redrive(TENANT, NAMESPACE, "demo", 0, "g", 0), "does not serve dead letters"),
    "named consumers": (
        lambda c: c.group_poll(TENANT, NAMESPACE, "demo", 0, "g", consumer="me"),
        "does not record which member holds a group's records",
    ),
    "adding to a counter": (lambda c: c.counter_add(TENANT, NAMESPACE, "p", "k", 1), "does not support counters"),
    "reading a counter": (lambda c: c.counter_get(TENANT, NAMESPACE, "p", "k"), "does not support counters"),
    "atomic commits": (
        lambda c: c.commit(TENANT, NAMESPACE, b"e", [felix.CommitOp.publish("demo", b"x")]),
        "does not support atomic commits",
    ),
    "state": (
        lambda c: c.state_get(TENANT, NAMESPACE, "demo", b"e", "k"),
        "does not support atomic commits",
    ),
    "watching a key": (
        lambda c: c.watch_cache(TENANT, NAMESPACE, "p", felix.CacheWatchFilter.key("k")),
        "does not support cache watch",
    ),
    "watching a prefix from what is there": (
        lambda c: c.watch_cache(TENANT, NAMESPACE, "p", felix.CacheWatchFilter.prefix("k"), retained=True),
        "does not support retained cache watch",
    ),
}


@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_is_not_served_is_refused_in_words_and_the_client_continues(client: felix.Client, name: str) -> None:
    ask, text = NOT_SERVED[name]
    with pytest.raises(felix.FelixError, match=f"this broker {text}"):
        ask(client)
    assert client.publish(TENANT, NAMESPACE, "demo", b"still connected") is not None


def test_an_unknown_stream_is_not_found(client: felix.Client) -> None:
    with pytest.raises(felix.NotFoundError, match="stream not found: tenant=t1 namespace=default stream=nope"):
        client.publish(TENANT, NAMESPACE, "nope", b"x")
    with pytest.raises(felix.NotFoundError, match="stream not found"):
        client.subscribe(TENANT, NAMESPACE, "nope")
    assert client.publish(TENANT, NAMESPACE, "demo", b"still connected") is not None


def test_a_token_opens_its_tenant_and_no_other(strict_broker: RunningBroker) -> None:
    client = connected(strict_broker)
    assert client.publish(TENANT, NAMESPACE, "demo", b"x") == 0
    with pytest.raises(felix.AuthError, match="tenant mismatch") as refused:
        client.publish("t2", NAMESPACE, "demo", b"x")
    assert refused.value.code in (None, "forbidden")


def test_a_bad_token_is_refused(strict_broker: RunningBroker) -> None:
    with pytest.raises(felix.FelixError, match="auth failed"):
        connected(strict_broker, token="guess").publish(TENANT, NAMESPACE, "demo", b"x")


async def test_the_async_client(broker: RunningBroker) -> None:
    client = await felix.AsyncClient.connect(
        broker.addresses["felix"], tenant_id=TENANT, token=TOKEN, ca_file=str(broker.certificate)
    )
    subscription = await client.subscribe(TENANT, NAMESPACE, "demo")
    offsets = await asyncio.gather(*(client.publish(TENANT, NAMESPACE, "demo", b"%d" % n) for n in range(50)))
    assert len(set(offsets)) == 50
    found = [await subscription.next_event(timeout=EVENT_S_MAX) for _ in range(50)]
    assert sorted(event.payload for event in found if event) == sorted(b"%d" % n for n in range(50))
    await subscription.close()


def test_several_of_them_at_once(broker: RunningBroker) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            client = connected(broker)
            for row in range(20):
                client.cache_put(TENANT, NAMESPACE, "many", f"{number}-{row}", b"%d" % row)
                assert client.cache_get(TENANT, NAMESPACE, "many", f"{number}-{row}") == b"%d" % row
                assert client.publish(TENANT, NAMESPACE, "demo", b"x") is not None
        except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

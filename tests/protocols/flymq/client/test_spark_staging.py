"""Staging records through the clients, against a real broker and against one that hangs up."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.clients.options import ClientOptions
from penstock.clients.retry import RetryPolicy
from penstock.errors import PartitionNotFound, ProducerFenced, ProtocolViolation, RecordTooLarge, TransactionNotFound
from penstock.log.block import encode_block
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.flymq.operations.operation import encode_reply
from penstock.protocols.flymq.operations.spark import Run, StageCommit, Unstaged, Winner
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess, RunningBroker
from tests.protocols.flymq.scripted import connected, scripted

PATIENT = ClientOptions(retry=RetryPolicy(attempts_max=600, elapsed_s_max=60.0, delay_s_max=0.1))
"""A broker on a busy machine takes its time to come back."""


def parts(*values: bytes, partition: int = 0) -> list[tuple[int, bytes]]:
    return [(partition, encode_block(0, 0, values))]


async def test_attempts_are_staged_and_the_winner_is_published(penstock_broker: RunningBroker) -> None:
    async with await penstock.connect_async(penstock_broker.url) as client:
        assert isinstance(client, AsyncFlyMQClient)
        run = await client.staging.begin_run("app", "run")
        assert run == Run(1, -1)
        winners = []
        for name in ("first", "second"):
            attempt = client.staging.attempt("app", run.number, 0, name)
            for number in range(30):
                await attempt.stage("orders", parts(b"%s %d" % (name.encode(), number)))
            winners.append(await attempt.finish())
        assert winners == [Winner("first", 30), Winner("second", 30)]
        assert await client.staging.commit("app", run.number, 0, winners[1:])
        assert not await client.staging.commit("app", run.number, 0, winners[1:])
        assert not await client.staging.abort("app", run.number, 0)
        assert [record.value async for record in client.records("orders")] == [b"second %d" % n for n in range(30)]
        assert await client.staging.begin_run("app", "run") == Run(1, 0)


def test_the_sync_twin_stages_too(penstock_broker: RunningBroker) -> None:
    with FlyMQClient(penstock_broker.url) as client:
        run = client.staging.begin_run("app", "run", lasting=False)
        attempt = client.staging.attempt("app", run.number, 0, "a")
        attempt.stage("orders", parts(b"one"))
        attempt.cancel()
        attempt = client.staging.attempt("app", run.number, 0, "b")
        attempt.stage("orders", parts(b"two"))
        winner = attempt.finish()
        assert client.staging.commit("app", run.number, 0, [winner])
        assert not client.staging.abort("app", run.number, 0)
        assert [record.value for record in client.records("orders")] == [b"two"]


async def test_an_error_of_any_request_ends_the_attempt(penstock_broker: RunningBroker) -> None:
    async with await penstock.connect_async(penstock_broker.url) as client:
        assert isinstance(client, AsyncFlyMQClient)
        await client.staging.begin_run("app", "run")
        attempt = client.staging.attempt("app", 1, 0, "a")
        await attempt.stage("orders", parts(b"v"))
        await attempt.stage("orders", parts(b"v", partition=9))
        with pytest.raises(PartitionNotFound):
            await attempt.finish()
        with pytest.raises(TransactionNotFound):
            await client.staging.commit("app", 1, 0, [attempt.winner])
        await client.staging.begin_run("app", "newer")
        with pytest.raises(ProducerFenced):
            await client.staging.commit("app", 1, 0, [])


async def test_what_no_request_can_hold_is_refused_before_it_is_sent(penstock_broker: RunningBroker) -> None:
    async with await penstock.connect_async(penstock_broker.url) as client:
        assert isinstance(client, AsyncFlyMQClient)
        run = await client.staging.begin_run("app", "run")
        attempt = client.staging.attempt("app", run.number, 0, "a")
        with pytest.raises(RecordTooLarge, match="topic orders do not fit into one request: at most 33554432"):
            await attempt.stage("orders", parts(bytes(32 << 20)))
        with pytest.raises(RecordTooLarge, match="does not fit into a frame: at most 33554432"):
            await client.staging.commit("app", run.number, 0, [], [Unstaged("orders", "id", parts(bytes(32 << 20)))])
        await attempt.stage("orders", parts(b"v"))
        assert await attempt.finish() == Winner("a", 1)


async def test_a_commit_that_continues_is_asked_for_until_it_is_done() -> None:
    outcomes = iter([2, 2, 0])
    async with (
        scripted(lambda peer, opcode, payload: encode_reply(StageCommit, next(outcomes))) as broker,
        connected(broker) as client,
    ):
        assert await client.staging.commit("app", 1, 0, [])
    assert [opcode for opcode, _ in broker.requests] == [StageCommit.opcode] * 3


async def test_an_outcome_of_a_commit_that_is_not_known_is_a_violation() -> None:
    async with (
        scripted(lambda peer, opcode, payload: encode_reply(StageCommit, 3)) as broker,
        connected(broker) as client,
    ):
        with pytest.raises(ProtocolViolation, match="outcome must be at most 2, not 3"):
            await client.staging.commit("app", 1, 0, [])


@pytest.mark.timeout(240)
def test_a_commit_that_brings_its_records_is_done_once_after_the_broker_was_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.connect(PATIENT) as client:
        client.create_topic("orders", 1)
        for epoch in range(5):
            run = client.staging.begin_run("app", "run", topic="orders")
            assert (run.epoch, run.partitions) == (epoch - 1, 1)
            assert client.staging.commit("app", 1, epoch, [], [Unstaged("orders", run.topic_id, parts(b"%d" % epoch))])
            broker.kill9()
            broker.start()
            again = [Unstaged("orders", run.topic_id, parts(b"again"))]
            assert not client.staging.commit("app", 1, epoch, [], again)
        assert [record.value for record in client.records("orders")] == [b"%d" % epoch for epoch in range(5)]


@pytest.mark.timeout(240)
def test_an_attempt_continues_after_the_broker_was_killed_and_is_published_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.connect(PATIENT) as client:
        run = client.staging.begin_run("app", "run")
        attempt = client.staging.attempt("app", run.number, 0, "a")
        for number in range(20):
            if number == 10:
                broker.kill9()
                broker.start()
            attempt.stage("orders", parts(b"%d" % number))
        winner = attempt.finish()
        broker.kill9()
        broker.start()
        client.staging.commit("app", run.number, 0, [winner])
        broker.kill9()
        broker.start()
        assert not client.staging.commit("app", run.number, 0, [winner])
        assert [record.value for record in client.records("orders")] == [b"%d" % number for number in range(20)]

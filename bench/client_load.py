"""Records sent by Penstock's own async client, as an idempotent producer or not. Run by the benchmarks as `python -m bench.client_load`."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack

import msgspec

from bench.batches import BatchResult
from bench.jobs import answer_job
from bench.load import cpu_seconds
from penstock.protocols.flymq.client import AsyncFlyMQClient


class ClientJob(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    topic: str
    payload_bytes: int
    records: int
    """Of one call of `send_many`, or sent one by one at the same time."""
    singly: bool
    idempotent: bool
    clients: int
    warm_up_s: float = 0.5
    seconds: float = 2.0
    server_pid: int


async def _one_after_another(client: AsyncFlyMQClient, job: ClientJob, values: list[bytes], until_s: float) -> int:
    sent = 0
    while time.perf_counter() < until_s:
        if job.singly:
            await asyncio.gather(*(client.send(job.topic, value) for value in values))
        else:
            await client.send_many(job.topic, values)
        sent += len(values)
    return sent


async def run(job: ClientJob) -> BatchResult:
    values = [os.urandom(job.payload_bytes) for _ in range(job.records)]
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncFlyMQClient(job.url, idempotent=job.idempotent))
            for _ in range(job.clients)
        ]

        async def drive(seconds: float) -> tuple[int, float]:
            started = time.perf_counter()
            sending: list[Awaitable[int]] = [
                _one_after_another(client, job, values, started + seconds) for client in clients
            ]
            return sum(await asyncio.gather(*sending)), time.perf_counter() - started

        warm_up, _ = await drive(job.warm_up_s)
        gc.disable()
        server_before, own_before = cpu_seconds(job.server_pid), time.process_time()
        records, seconds = await drive(job.seconds)
        own_seconds, server_seconds = time.process_time() - own_before, cpu_seconds(job.server_pid) - server_before
    return BatchResult(
        records=records,
        seconds=seconds,
        load_cpu=own_seconds / seconds,
        server_cpu=server_seconds / seconds,
        acknowledged=warm_up + records,
    )


def main() -> None:
    answer_job(ClientJob, lambda job: asyncio.run(run(job)))


if __name__ == "__main__":
    main()

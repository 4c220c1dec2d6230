"""The same load from a client that is not ours: `felix-client` from PyPI, over quinn. `python -m bench.felix_client_load`.

It plays three parts of `bench.felix_load`: a reader that counts events and says `ready` once it is subscribed, and publishes and cache
gets one after another, each waiting for its answer. The client is a library in Rust; what Python does for each event counts as its load.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Final

import felix

from bench.dialects import RecordLost
from bench.felix_load import NAMESPACE, SILENCE_S_MAX, TENANT, FelixJob, FelixResult
from bench.jobs import answer_job
from bench.load import cpu_seconds

KEY: Final = "key"
WARM_UP: Final = 20
"""Requests before the clock starts: the client opens its connections with the first."""


def _connect(job: FelixJob) -> felix.Client:
    address = f"{job.host}:{job.port}"
    return felix.Client(address, tenant_id=TENANT, token="none", ca_file=job.certificate)  # noqa: S106


def _read(job: FelixJob) -> FelixResult:
    count = job.batches * job.batch
    with _connect(job).subscribe(TENANT, NAMESPACE, job.stream) as subscription:
        cpu, started = time.process_time(), time.perf_counter()
        print("ready", flush=True)
        for _ in range(count):
            if subscription.next_event(timeout=SILENCE_S_MAX) is None:
                raise RecordLost("the broker has nothing more to deliver, and not all of it came")
        ended = time.perf_counter()
    return FelixResult(count=count, started=started, ended=ended, cpu_s=time.process_time() - cpu)


def _publish(job: FelixJob) -> FelixResult:
    client, payload = _connect(job), os.urandom(job.payload_bytes)
    return _one_after_another(job, lambda: client.publish(TENANT, NAMESPACE, job.stream, payload))


def _cache(job: FelixJob) -> FelixResult:
    client, value = _connect(job), os.urandom(job.payload_bytes)
    client.cache_put(TENANT, NAMESPACE, job.stream, KEY, value)

    def get() -> None:
        if client.cache_get(TENANT, NAMESPACE, job.stream, KEY) != value:
            raise RecordLost("the cache returned another value")

    return _one_after_another(job, get)


def _one_after_another(job: FelixJob, ask: Callable[[], object]) -> FelixResult:
    for _ in range(WARM_UP):
        ask()
    server_cpu, cpu, started, count = cpu_seconds(job.server_pid), time.process_time(), time.perf_counter(), 0
    deadline = started + job.seconds
    while (ended := time.perf_counter()) < deadline:
        ask()
        count += 1
    cpu, server_cpu = time.process_time() - cpu, cpu_seconds(job.server_pid) - server_cpu
    return FelixResult(count=count, started=started, ended=ended, cpu_s=cpu, server_cpu_s=server_cpu)


def main() -> None:
    gc.disable()
    parts = {"publish": _publish, "read": _read, "cache": _cache}
    answer_job(FelixJob, lambda job: parts[job.part](job))


if __name__ == "__main__":
    main()

"""Load over Felix, from processes of its own: `python -m bench.felix_load`. A job comes as JSON, its result goes as JSON.

Three parts, one a process: a publisher that keeps acknowledged binary batches in flight; readers, each with a connection of its own, that
count events and say `ready` when all of them are subscribed; and a stream of cache operations with so many in flight. Clocks of
processes of one machine agree, so the publisher's first moment and the readers' last make a duration.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from abc import ABC, abstractmethod
from typing import Final, Literal

import msgspec
import uvloop

from bench.dialects import RecordLost
from bench.jobs import answer_job
from bench.load import cpu_seconds
from penstock.clients.quic import QuicConnection, QuicStream, connect_quic
from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.frames import Frame, FrameDecoder, decode_reply, encode_frame, encode_message
from penstock.protocols.felix.codec.messages import Auth, AuthOk, CacheGet, CachePut, CacheValue, Error, Subscribe
from penstock.protocols.felix.wire import (
    ACKED,
    BASE_OFFSET,
    EVENT_BATCH,
    PUBLISH_ACK,
    PUBLISH_BATCH,
    SHARED_EVENT_BATCH,
    SUPPORTED,
)

SILENCE_S_MAX: Final = 60.0
TENANT = NAMESPACE = "default"
KEYS: Final = 256
"""Of the cache."""
BATCHES_MADE: Final = 64
"""Batches that are made beforehand and sent again and again, under ids of their own."""


class FelixJob(msgspec.Struct, frozen=True, kw_only=True):
    part: Literal["publish", "read", "cache"]
    host: str
    port: int
    stream: str
    payload_bytes: int
    batch: int = 1
    batches: int = 0
    """To publish; a reader waits for all their events."""
    in_flight: int = 1
    """Batches, or cache operations."""
    readers: int = 1
    seconds: float = 2.0
    certificate: str = ""
    """The file with the broker's certificate, for clients that insist on one."""
    server_pid: int = 0
    """The broker's, if its processor time is asked for."""


class FelixResult(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    """Events read or published, or cache operations."""
    started: float
    ended: float
    cpu_s: float
    """Processor time in between."""
    server_cpu_s: float = 0.0
    """That of the broker."""

    @property
    def rate(self) -> float:
        return self.count / (self.ended - self.started)

    @property
    def load_cpu(self) -> float:
        return self.cpu_s / (self.ended - self.started)

    @property
    def server_cpu(self) -> float:
        return self.server_cpu_s / (self.ended - self.started)


class _Conversation(ABC):
    """One stream of one connection that has said who it is; frames go to `take`."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stream: QuicStream

    async def open(self, connection: QuicConnection) -> None:
        self.stream = connection.open_stream(on_data=self._receive)
        self.stream.send(encode_message(Auth(tenant_id=TENANT, token="none", client_flags=SUPPORTED)))  # noqa: S106
        await asyncio.wait_for(self._ready, SILENCE_S_MAX)

    def _receive(self, data: bytes) -> None:
        if not data:
            self.fail("the broker ended a stream")
        for frame in self._decoder.feed(data):
            if self._ready.done():
                self.take(frame)
            elif isinstance(decode_reply(frame), AuthOk):
                self._ready.set_result(None)
            else:
                self.fail(f"the broker answered {frame.payload!r}")

    @abstractmethod
    def take(self, frame: Frame) -> None:
        """Count what the broker said."""

    def fail(self, why: str) -> None:
        for waiting in (self._ready, self.over):
            if not waiting.done():
                waiting.set_exception(RecordLost(why))
                return


class _Publisher(_Conversation):
    def __init__(self, job: FelixJob) -> None:
        super().__init__()
        self._left = job.batches
        self._owed = 0
        payloads = [os.urandom(job.payload_bytes) for _ in range(job.batch)]
        self._frames = [
            encode_frame(
                PUBLISH_BATCH | ACKED,
                binary.encode_publish(TENANT, NAMESPACE, job.stream, payloads, request_id=number),
            )
            for number in range(BATCHES_MADE)
        ]

    def send(self, count: int) -> None:
        for _ in range(min(count, self._left)):
            self.stream.send(self._frames[self._left % BATCHES_MADE])
            self._left -= 1
            self._owed += 1

    def take(self, frame: Frame) -> None:
        if not frame.flags & PUBLISH_ACK or frame.payload[0]:
            self.fail(f"a batch was answered with {frame.payload[:200]!r}")
            return
        self._owed -= 1
        self.send(1)
        if not self._owed and not self.over.done():
            self.over.set_result(None)


class _Reader(_Conversation):
    """Counts events; the subscription's own stream is opened by the broker."""

    def __init__(self, job: FelixJob) -> None:
        super().__init__()
        self._stream_name = job.stream
        self._left = job.batches * job.batch
        self._events = FrameDecoder()
        self.subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = 0.0

    def subscribe(self, connection: QuicConnection) -> None:
        connection.on_stream = lambda stream: stream.on_data(self._take_events)
        request = Subscribe(tenant_id=TENANT, namespace=NAMESPACE, stream=self._stream_name, request_id=1)
        self.stream.send(encode_message(request))

    def take(self, frame: Frame) -> None:
        reply = decode_reply(frame)
        if isinstance(reply, Error):
            self.fail(f"a subscription was refused: {reply.message}")

    def _take_events(self, data: bytes) -> None:
        for frame in self._events.feed(data):
            flags, payload = frame.flags, frame.payload
            if not flags & (EVENT_BATCH | SHARED_EVENT_BATCH):
                self.subscribed.set_result(None)  # the hello
                continue
            at = 8 * (bool(flags & EVENT_BATCH) + bool(flags & BASE_OFFSET))
            self._left -= int.from_bytes(payload[at : at + 4])
        if self._left <= 0 and not self.over.done():
            self.ended = time.perf_counter()
            self.over.set_result(None)


class _Cache(_Conversation):
    """Puts and gets in turn, over a few hundred keys."""

    def __init__(self, job: FelixJob) -> None:
        super().__init__()
        self._seconds = job.seconds
        self._deadline = 0.0
        self._value = os.urandom(job.payload_bytes)
        self._requests: list[bytes] = []
        for number in range(KEYS):
            key, where = f"key-{number}", (TENANT, NAMESPACE, job.stream)
            put, get = 2 * number, 2 * number + 1
            self._requests += (_put(where, key, self._value, put), _get(where, key, get))
        self._sent = 0
        self.count = 0
        self.ended = 0.0

    def begin(self, in_flight: int) -> None:
        self._deadline = time.perf_counter() + self._seconds
        for _ in range(in_flight):
            self._send()

    def _send(self) -> None:
        self.stream.send(self._requests[self._sent % len(self._requests)])
        self._sent += 1

    def take(self, frame: Frame) -> None:
        reply = decode_reply(frame)
        if isinstance(reply, Error) or (isinstance(reply, CacheValue) and reply.value != self._value):
            self.fail(f"a cache operation was answered with {reply}")
            return
        self.count += 1
        self.ended = time.perf_counter()
        if self.ended < self._deadline:
            self._send()
        elif self.count == self._sent:
            self.over.set_result(None)


def _put(where: tuple[str, str, str], key: str, value: bytes, request_id: int) -> bytes:
    tenant, namespace, cache = where
    return encode_message(
        CachePut(tenant_id=tenant, namespace=namespace, cache=cache, key=key, value=value, request_id=request_id)
    )


def _get(where: tuple[str, str, str], key: str, request_id: int) -> bytes:
    tenant, namespace, cache = where
    return encode_message(CacheGet(tenant_id=tenant, namespace=namespace, cache=cache, key=key, request_id=request_id))


async def _connect(job: FelixJob) -> QuicConnection:
    return await connect_quic(job.host, job.port, verify=False)


async def _publish(job: FelixJob) -> FelixResult:
    publisher = _Publisher(job)
    await publisher.open(await _connect(job))
    cpu, started = time.process_time(), time.perf_counter()
    publisher.send(job.in_flight)
    await publisher.over
    ended = time.perf_counter()
    return FelixResult(count=job.batches * job.batch, started=started, ended=ended, cpu_s=time.process_time() - cpu)


async def _read(job: FelixJob) -> FelixResult:
    readers = [_Reader(job) for _ in range(job.readers)]
    for reader in readers:
        connection = await _connect(job)
        await reader.open(connection)
        reader.subscribe(connection)
        await asyncio.wait_for(reader.subscribed, SILENCE_S_MAX)
    cpu, started = time.process_time(), time.perf_counter()
    print("ready", flush=True)
    await asyncio.gather(*(reader.over for reader in readers))
    ended = max(reader.ended for reader in readers)
    return FelixResult(
        count=job.readers * job.batches * job.batch, started=started, ended=ended, cpu_s=time.process_time() - cpu
    )


async def _cache(job: FelixJob) -> FelixResult:
    cache = _Cache(job)
    await cache.open(await _connect(job))
    server_cpu, cpu, started = cpu_seconds(job.server_pid), time.process_time(), time.perf_counter()
    cache.begin(job.in_flight)
    await cache.over
    cpu, server_cpu = time.process_time() - cpu, cpu_seconds(job.server_pid) - server_cpu
    return FelixResult(count=cache.count, started=started, ended=cache.ended, cpu_s=cpu, server_cpu_s=server_cpu)


def main() -> None:
    gc.disable()
    parts = {"publish": _publish, "read": _read, "cache": _cache}
    answer_job(FelixJob, lambda job: uvloop.run(parts[job.part](job)))


if __name__ == "__main__":
    main()

"""The replies to a writer, in pieces that a network may make of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from penstock.errors import PenstockError, ServerError
from penstock.protocols.fujin.client.streams import WriterStream
from tests.protocols.fujin import requests


class Quiet:
    """A stream that takes everything."""

    can_send = True

    def __init__(self) -> None:
        self.receive: Callable[[bytes], None]

    def on_data(self, receive: Any) -> None:
        self.receive = receive

    def send(self, data: bytes) -> None:
        pass

    async def write(self, data: bytes) -> None:
        pass


class CountedBytes(bytes):
    """Counts what is added to and cut out of it."""

    copied_bytes = 0

    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        if isinstance(part, bytes):
            CountedBytes.copied_bytes += len(part)
            return CountedBytes(part)
        return part

    def __add__(self, other: Any) -> CountedBytes:
        whole = super().__add__(other)
        CountedBytes.copied_bytes += len(whole)
        return CountedBytes(whole)


async def written(
    values: list[int], replies: bytes, pieces: list[int]
) -> list[list[PenstockError | None] | BaseException]:
    """Write batches of this many records at once, answered by `replies`, cut at `pieces`; what each batch came to."""
    writer, stream = WriterStream(with_headers=False), Quiet()
    writer.attach(stream, b"")  # type: ignore[arg-type]
    tasks = [asyncio.create_task(writer.write("orders", [b"v"] * count)) for count in values]
    await asyncio.sleep(0)
    for start, stop in pairwise([0, *pieces, len(replies)]):
        stream.receive(replies[start:stop])
    return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(20))
async def test_writes_are_answered_however_the_replies_are_cut(seed: int) -> None:
    random = Random(seed)
    batches = [random.randrange(1, 6) for _ in range(8)]
    refused = {random.randrange(1, sum(batches) + 1) for _ in range(seed % 4)}
    replies = b"".join(
        requests.failed(2, each, b"refused") if each in refused else requests.done(2, each)
        for each in range(1, sum(batches) + 1)
    )
    pieces = sorted({random.randrange(1, len(replies)) for _ in range(random.randrange(12))})
    results = await written(batches, replies, pieces)
    number = 0
    for count, result in zip(batches, results, strict=True):
        assert isinstance(result, list)
        expected = [ServerError if number + at + 1 in refused else type(None) for at in range(count)]
        assert [type(each) for each in result] == expected
        number += count


@pytest.mark.parametrize(("batches", "piece_bytes"), [([4000], 12), ([1] * 4000, 24_000)])
async def test_replies_are_compared_without_copying_the_rest_each_time(batches: list[int], piece_bytes: int) -> None:
    CountedBytes.copied_bytes = 0
    replies = CountedBytes(requests.written(*range(1, 4001)))
    results = await written(batches, replies, list(range(piece_bytes, len(replies), piece_bytes)))
    assert [result for result in results if result != [None] * batches[0]] == []
    assert CountedBytes.copied_bytes < 5 * len(replies)

"""Appending for callers that wait for the answer."""

from __future__ import annotations

import asyncio

from penstock.errors import PenstockError
from penstock.log.api import Appended, Batch, BlockBatch, Partition


def start_append(partition: Partition, batch: Batch | BlockBatch) -> asyncio.Future[Appended]:
    """Append; the future fails with the error the engine gave."""
    future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    def done(result: Appended | PenstockError) -> None:
        if future.cancelled():
            return  # the caller was cancelled
        if isinstance(result, PenstockError):
            future.set_exception(result)
        else:
            future.set_result(result)

    partition.append(batch, done)
    return future

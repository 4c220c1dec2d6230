"""Appending for callers that wait for the answer."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.futures import set_outcome
from penstock.log.api import Appended, Batch, BlockBatch, Partition


def start_append(partition: Partition, batch: Batch | BlockBatch) -> asyncio.Future[Appended]:
    """Append; the future fails with the error the engine gave."""
    future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    partition.append(batch, partial(set_outcome, future))
    return future

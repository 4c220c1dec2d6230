"""The lag of a query to its very end: a listener that publishes what each batch has read.

Spark tells a source of a batch only once it begins the next one, so the last batch of a query that ends (`Trigger.AvailableNow`) is never
told of. A listener hears of every batch when it is done:

```python
spark.streams.addListener(OffsetPublisher({"penstock.bootstrap": "127.0.0.1:9092"}, group="billing"))
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog
from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.errors import PenstockError
from penstock.spark.connection import connection_settings, pooled_client
from penstock.spark.offsets import Positions, StreamOffset
from penstock.spark.options import GROUP_PREFIX_DEFAULT
from penstock.spark.publishing import publish

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = structlog.get_logger(__name__)


class OffsetPublisher(StreamingQueryListener):
    """Publishes, for queries that read topics, what their batches have read, as offsets of a group.

    `options` are those of the connection. Without a group it is the one a query uses by itself that subscribes to topics by name. With
    `query_name` it listens to the query of that name only; several queries that read the same topics want a group each.
    """

    def __init__(
        self, options: Mapping[str, str] | None = None, *, group: str | None = None, query_name: str | None = None
    ) -> None:
        self._settings = connection_settings(options or {})
        self._group = group
        self._query_name = query_name

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        if self._query_name is None or event.progress.name == self._query_name:
            for source in event.progress.sources:
                self.publish(source.endOffset)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def publish(self, end_offset: str | None) -> None:
        """Publish the end of a batch, as `query.lastProgress` has it, if it is one of ours. A broker that refuses stops no query."""
        positions = _positions(end_offset)
        group = self._group or f"{GROUP_PREFIX_DEFAULT}-{'+'.join(sorted(positions))}"
        try:
            if positions:
                publish(pooled_client(self._settings), group, positions)
        except PenstockError as error:
            _log.warning("group offsets not published", group=group, error=str(error))


def _positions(end_offset: str | None) -> Positions:
    try:
        offset: Any = json.loads(end_offset or "null")
    except ValueError:
        return {}
    if not isinstance(offset, dict) or not StreamOffset.ids_in(offset):
        return {}  # some other source's
    return StreamOffset.decode(offset).positions

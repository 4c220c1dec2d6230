"""The clients that the Spark data source keeps open in this process."""

from __future__ import annotations

from penstock.spark.connection import _clients


def close_pooled_clients() -> None:
    """Close them. Later requests for a pooled client get a new one."""
    with _clients._lock:
        pooled = list(_clients._clients.values())
        _clients._clients.clear()
    for each in pooled:
        if each.client is not None:
            each.client.close()

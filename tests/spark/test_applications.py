"""Names towards the sink: readable, different, and never too long."""

from __future__ import annotations

from penstock.spark.applications import application_name
from penstock.spark.sink_options import APPLICATION_BYTES_MAX


def test_names_are_readable_where_they_fit_and_different_where_they_do_not() -> None:
    assert application_name("sales", "silver/orders", "orders.dlq", "q1") == "sales/silver/orders/orders.dlq/q1"
    one, other = (application_name("sales", "\u00e4" * 120, query) for query in ("q1", "q2"))
    assert one != other
    assert len(one.encode()) <= APPLICATION_BYTES_MAX

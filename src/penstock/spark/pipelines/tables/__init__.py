"""Tables that take each batch once: Parquet, Delta and Iceberg behind one interface."""

from __future__ import annotations

"""What Spark finds by itself as `penstock-delta`; see `pyspark_penstock`."""

from __future__ import annotations

try:
    from penstock.spark.delta_source import DeltaDataSource as DefaultSource
except ImportError:  # `pip install penstock` without [spark], in an environment that has another Spark
    pass
else:
    __all__ = ["DefaultSource"]

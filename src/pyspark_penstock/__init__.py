"""What Spark finds by itself: it imports every top-level module whose name begins with `pyspark_` and looks for a `DefaultSource`.

It does so for each use of any Python data source, so this stays light, and where the extras are not installed it stays silent: an error
here would break every other source too.
"""

from __future__ import annotations

try:
    from penstock.spark.source import PenstockDataSource as DefaultSource
except ImportError:  # `pip install penstock` without [spark], in an environment that has another Spark
    pass
else:
    __all__ = ["DefaultSource"]

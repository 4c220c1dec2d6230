"""What programs that measure Spark share: a session, and a result that stands alone on standard output."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

import penstock.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def answer_in_session(settings: Mapping[str, str], work: Callable[[SparkSession], msgspec.Struct]) -> None:
    """Write what `work` returns to standard output as JSON. What the virtual machine prints there goes to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    spark = penstock.spark.session("bench", config=dict(settings))
    spark.sparkContext.setLogLevel("ERROR")
    try:
        result = work(spark)
    finally:
        spark.stop()
    os.write(output, msgspec.json.encode(result))

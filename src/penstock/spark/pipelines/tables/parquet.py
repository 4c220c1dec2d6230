"""Parquet through Spark's own file sink.

The sink is the one behind `writeStream.format("parquet")`, called for each batch: files first, then one entry in the log `_spark_metadata`,
which names the files of each batch and is what Spark reads a table by. A batch whose entry is there is passed over. Calling the sink
ourselves instead of leaving it to the stream is what lets one batch go to a table and elsewhere (dead letters, topics) without being
computed twice.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.pipelines.tables.parquet_log import LOG
from penstock.spark.pipelines.tables.table import Compacted, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ParquetTable(Table):
    def exists(self) -> bool:
        return bool(self._files.names(f"{self.path}/{LOG}"))

    def append(self, rows: DataFrame, batch_id: int) -> None:
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001  the sink has no Python face
        sink = jvm.org.apache.spark.sql.execution.streaming.sinks.FileStreamSink(
            rows._jdf.sparkSession(),  # noqa: SLF001
            self.path,
            jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat(),
            jvm.PythonUtils.toSeq([]),
            jvm.PythonUtils.toScalaMap({}),
        )
        sink.addBatch(batch_id, rows._jdf)  # noqa: SLF001

    def read(self) -> DataFrame:
        return self._spark.read.option("mergeSchema", "true").parquet(self.path)

    def compact(self, file_bytes: int, keep_s: float) -> Compacted:
        from penstock.spark.pipelines.tables.parquet_compaction import compact

        return compact(Path(self.path), file_bytes=file_bytes, keep_s=keep_s, now_s=time.time())

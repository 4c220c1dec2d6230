"""Records of a topic, distinguished, where no Spark is needed to tell."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StringType, StructField, StructType

from penstock.errors import ConfigError
from penstock.spark.pipelines.silver import check_key

MAP = MapType(StringType(), IntegerType())


@pytest.mark.parametrize("kind", [MAP, StructType([StructField("a", ArrayType(MAP))])])
def test_a_key_that_cannot_be_compared_is_refused(kind: DataType) -> None:
    fine = StructType([StructField("a", IntegerType()), StructField("b", ArrayType(StringType()))])
    columns = StructType([StructField("id", fine), StructField("labels", kind)])
    check_key(columns, ["id"])
    with pytest.raises(ConfigError, match=r"names labels, which is .*: maps cannot be compared; name other columns"):
        check_key(columns, ["id", "labels"])

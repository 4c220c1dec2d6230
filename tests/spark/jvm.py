"""Settings and a home that make Spark start and turn small batches around quickly; they suit tests and nothing else."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

FAST_MASTER = "local[2]"

FAST_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    # The second compiler and a concurrent collector cost more start-up than they can win back in a test.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}


def link_home(home: Path) -> None:
    """Make a directory a home of Spark that has all of the installed one but its Python modules in a zip.

    Spark puts that zip at the head of the path of each Python process that it starts. What is in a zip is compiled anew by each, which
    takes half of its start. Without it they find the same modules where the driver does, compiled.
    """
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(spec.submodule_search_locations[0], name))

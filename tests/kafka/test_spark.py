"""Spark on a broker with its log in Kafka: a job and a stream read every record, and write each once. `make test-cluster ENGINE=kafka` does
so on a cluster of Spark whose processes are killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench.kafka import Kafka
from tests.crash.process_tree import run_module
from tests.kafka.nodes import node_process
from tests.kafka.spark_copy import BY_JOB, BY_STREAM, SOURCE

RECORDS = [(b"key %d" % (number % 7), b"%d" % number) for number in range(100)]
COPIED_S_MAX = 150


@pytest.mark.usefixtures("spark_home")
@pytest.mark.timeout(200)
def test_a_job_and_a_stream_copy_every_record_once(kafka: Kafka, prefix: str, tmp_path: Path) -> None:
    with node_process(tmp_path, kafka, prefix, "one") as node, node.connect() as client:
        for topic in (SOURCE, BY_JOB, BY_STREAM):
            client.create_topic(topic, partitions=2)
        for first in range(0, len(RECORDS), 25):  # each transaction leaves an offset out in every partition
            with client.transaction() as transaction:
                transaction.send_many(SOURCE, RECORDS[first : first + 25])
        run_module("tests.kafka.spark_copy", node.address, str(tmp_path), within_s=COPIED_S_MAX)
        for topic in (BY_JOB, BY_STREAM):
            assert Counter((record.key, record.value) for record in client.records(topic)) == Counter(RECORDS)

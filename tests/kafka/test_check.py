"""What `penstock doctor` says of a cluster."""

from __future__ import annotations

from bench.kafka import Kafka
from penstock.broker.limits import RECORD_BYTES_CEILING
from penstock.log.kafka.check import ClusterFinding, check_cluster
from penstock.log.kafka.settings import KafkaSettings
from tests.kafka import foreign
from tests.kafka.cluster import Cluster
from tests.log.storage import make_partition


async def findings(settings: KafkaSettings) -> dict[str, ClusterFinding]:
    return {each.check: each async for each in check_cluster(settings, RECORD_BYTES_CEILING)}


async def test_topics_of_ours_on_one_broker_lack_only_brokers(storage: Cluster) -> None:
    engine = await storage.open()
    await make_partition(engine)
    found = await findings(storage.settings)
    assert {check: each.status for check, each in found.items()} == {
        "Kafka": "warn",
        "replication": "ok",
        "in-sync bound": "ok",
        "election": "ok",
        "transactions": "ok",
        "message size": "ok",
    }
    assert found["Kafka"].found == "1 broker"


async def test_topics_of_others_that_may_lose_or_refuse_records_are_named(kafka: Kafka, prefix: str) -> None:
    admin = foreign.admin(kafka)
    for number in range(5):
        config = {"unclean.leader.election.enable": "true", "max.message.bytes": "1000000"}
        foreign.create_topic(admin, f"{prefix}theirs{number}", 1, config)
    found = await findings(KafkaSettings(bootstrap=[kafka.bootstrap], topic_prefix=prefix))
    assert found["election"].status == "fail"
    assert found["election"].found.endswith("and 2 more")
    assert "unclean.leader.election.enable=false" in found["election"].advice
    assert found["message size"].status == "warn"
    assert f"{prefix}theirs0" in found["message size"].found


async def test_a_largest_append_that_no_request_can_carry_is_a_failure(kafka: Kafka, prefix: str) -> None:
    settings = KafkaSettings(bootstrap=[kafka.bootstrap], topic_prefix=prefix, message_bytes_max=200 << 20)
    found = await findings(settings)
    assert found["message size"].status == "fail"
    assert "socket.request.max.bytes is 100 MiB" in found["message size"].found


async def test_a_cluster_that_is_not_there_is_one_finding() -> None:
    found = await findings(KafkaSettings(bootstrap=["127.0.0.1:1"]))
    assert list(found) == ["Kafka"]
    assert found["Kafka"].status == "fail"

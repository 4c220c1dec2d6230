"""What a cluster lacks to be trusted with a log, for `penstock doctor`. Nothing is changed in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from penstock.errors import PenstockError
from penstock.log.kafka.client import KafkaClient
from penstock.log.kafka.faults import KafkaFault, Unanswered
from penstock.log.kafka.lock import TRANSACTION_MS
from penstock.log.kafka.names import OWNED
from penstock.log.kafka.settings import KafkaSettings
from penstock.log.kafka.topics import CONFIGS_AT_ONCE, REPLICATION
from penstock.units import round_size

NAMED_MAX: Final = 3
"""Topics that are named in a finding; the others are counted."""
INSYNC_MIN: Final = 2
RECORD_OVERHEAD_BYTES: Final = 4096
"""A record batch with one record is larger than the record by less than this, but for its headers."""


class ClusterFinding(NamedTuple):
    """What one check found: `advice` says what to do unless all is well."""

    check: str
    status: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


async def check_cluster(settings: KafkaSettings, record_bytes_max: int) -> AsyncIterator[ClusterFinding]:
    """Every check in turn."""
    client = KafkaClient(settings)
    try:
        await client.start()
    except PenstockError as error:
        yield ClusterFinding("Kafka", "fail", str(error), "start it, or correct [kafka]")
        return
    try:
        async for finding in _checks(client, settings, record_bytes_max):
            yield finding
    except (KafkaFault, Unanswered) as error:
        yield ClusterFinding(
            "Kafka", "fail", f"a question was not answered: {error}", "give this user the right to describe"
        )
    finally:
        await client.close()


async def _checks(client: KafkaClient, settings: KafkaSettings, record_bytes_max: int) -> AsyncIterator[ClusterFinding]:
    nodes = client.nodes()
    yield _brokers(len(nodes))
    prefix = settings.topic_prefix
    topics = sorted(topic for topic in client.partition_counts() if topic.startswith(prefix))
    configs: dict[str, dict[str, str]] = {}
    for at in range(0, len(topics), CONFIGS_AT_ONCE):
        configs |= await client.topic_configs(topics[at : at + CONFIGS_AT_ONCE])
    yield _replication(client, topics, min(settings.replication or REPLICATION, len(nodes)))
    yield _in_sync(configs, len(nodes))
    brokers = {node: await client.broker_configs(node) for node in nodes}
    yield _unclean_election(configs, brokers)
    yield _transactions(brokers)
    users = {topic: config for topic, config in configs.items() if not topic.removeprefix(prefix).startswith(OWNED)}
    yield _sizes(users, brokers, settings.message_bytes_max, record_bytes_max)


def _brokers(count: int) -> ClusterFinding:
    found = f"{count} broker{'s' * (count != 1)}"
    if count < REPLICATION:
        advice = f"run {REPLICATION}, so that the loss of one loses nothing and stops nothing"
        return ClusterFinding("Kafka", "warn", found, advice)
    return ClusterFinding("Kafka", "ok", found)


def _replication(client: KafkaClient, topics: Sequence[str], wanted: int) -> ClusterFinding:
    few, behind = [], []
    for (topic, index), (replicas, in_sync) in client.replicas().items():
        if topic in topics:
            if replicas < wanted and index == 0:
                few.append(topic)
            if in_sync < replicas and topic not in behind:
                behind.append(topic)
    if few:
        advice = "add replicas with kafka-reassign-partitions"
        return ClusterFinding("replication", "warn", f"fewer than {wanted} replicas: {_named(few)}", advice)
    if behind:
        advice = "find out which broker is down or too slow"
        return ClusterFinding("replication", "warn", f"replicas not in sync: {_named(behind)}", advice)
    return ClusterFinding("replication", "ok", f"{len(topics)} topics, all in sync")


def _in_sync(configs: Mapping[str, Mapping[str, str]], brokers: int) -> ClusterFinding:
    check = "in-sync bound"
    wanted = INSYNC_MIN if brokers >= REPLICATION else 1
    low = [topic for topic, config in configs.items() if int(config.get("min.insync.replicas", 1)) < wanted]
    if low:
        advice = f"set min.insync.replicas={wanted}: else a record is acknowledged that only one broker has"
        return ClusterFinding(check, "warn", f"min.insync.replicas below {wanted}: {_named(low)}", advice)
    return ClusterFinding(check, "ok", f"min.insync.replicas is at least {wanted}")


def _unclean_election(
    configs: Mapping[str, Mapping[str, str]], brokers: Mapping[int, Mapping[str, str]]
) -> ClusterFinding:
    check, name = "election", "unclean.leader.election.enable"
    unclean = [topic for topic, config in configs.items() if config.get(name) == "true"]
    if any(config.get(name) == "true" for config in brokers.values()):
        unclean.append("all brokers")
    if unclean:
        advice = f"set {name}=false: else acknowledged records are lost when a replica that lacks them becomes leader"
        return ClusterFinding(check, "fail", f"unclean for {_named(unclean)}", advice)
    return ClusterFinding(check, "ok", "clean only")


def _transactions(brokers: Mapping[int, Mapping[str, str]]) -> ClusterFinding:
    for config in brokers.values():
        longest_ms = int(config.get("transaction.max.timeout.ms", TRANSACTION_MS))
        if longest_ms < TRANSACTION_MS:
            found = f"transaction.max.timeout.ms is {longest_ms}"
            return ClusterFinding("transactions", "fail", found, f"raise it to {TRANSACTION_MS} at least")
        replicas = int(config.get("transaction.state.log.replication.factor", REPLICATION))
        if replicas < min(REPLICATION, len(brokers)):
            found = f"their state has {replicas} replica{'s' * (replicas != 1)}"
            advice = "raise transaction.state.log.replication.factor, and the replicas of __transaction_state"
            return ClusterFinding("transactions", "warn", found, advice)
    return ClusterFinding("transactions", "ok", f"up to {TRANSACTION_MS // 1000} s")


def _sizes(
    topics: Mapping[str, Mapping[str, str]],
    brokers: Mapping[int, Mapping[str, str]],
    message_bytes_max: int,
    record_bytes_max: int,
) -> ClusterFinding:
    check = "message size"
    wanted = record_bytes_max + RECORD_OVERHEAD_BYTES
    if message_bytes_max < wanted:
        found = f"kafka.message_bytes_max is {round_size(message_bytes_max)}, and a record may have {round_size(record_bytes_max)}"
        return ClusterFinding(check, "warn", found, "raise it, or lower limits.record_bytes_max")
    for config in brokers.values():
        request_bytes_max = int(config.get("socket.request.max.bytes", 100 << 20))
        if request_bytes_max < message_bytes_max + RECORD_OVERHEAD_BYTES:
            found = f"socket.request.max.bytes is {round_size(request_bytes_max)}"
            return ClusterFinding(check, "fail", found, "raise it above kafka.message_bytes_max, or lower that")
    small = [topic for topic, config in topics.items() if int(config.get("max.message.bytes", wanted)) < wanted]
    if small:
        advice = f"larger records are refused there: set max.message.bytes={wanted}, or lower limits.record_bytes_max"
        return ClusterFinding(check, "warn", f"max.message.bytes below {round_size(wanted)}: {_named(small)}", advice)
    return ClusterFinding(check, "ok", f"records of {round_size(record_bytes_max)} fit")


def _named(topics: Sequence[str]) -> str:
    more = len(topics) - NAMED_MAX
    topics = sorted(topics)
    return ", ".join(topics[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")

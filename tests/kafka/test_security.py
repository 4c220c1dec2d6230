"""Connections to Kafka over TLS and SASL, and what is told if they fail."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from pydantic import SecretStr

from bench.kafka import Kafka
from penstock.errors import Unreachable
from penstock.log.kafka.engine import KafkaEngine
from penstock.log.kafka.settings import KafkaSasl, KafkaSettings, KafkaTls
from tests.kafka import foreign
from tests.log.records import append, read_values
from tests.log.storage import make_partition


def settings(kafka: Kafka, prefix: str, ca: Path | None, mechanism: str, password: str) -> KafkaSettings:
    sasl = KafkaSasl(mechanism=mechanism, username="ada", password=SecretStr(password))
    return KafkaSettings(
        bootstrap=[kafka.addresses["SECURED"]], topic_prefix=prefix, tls=KafkaTls(ca=ca), sasl=sasl, request_s_max=30
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_log_is_kept_over_tls_with_a_password(
    kafka: Kafka, prefix: str, kafka_ca: Path, mechanism: str
) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("ada", info, b"secret")
    admin = foreign.admin(kafka)  # lives until it is answered
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(30)
    engine = KafkaEngine(settings(kafka, prefix, kafka_ca, mechanism, "secret"))
    await engine.start()
    try:
        partition = await make_partition(engine)
        await append(partition, [b"x"])
        assert await read_values(partition) == [b"x"]
    finally:
        await engine.close()


async def test_a_token_is_read_from_its_file(kafka: Kafka, prefix: str, kafka_ca: Path, tmp_path: Path) -> None:
    def encoded(part: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    now_s = int(time.time())
    claims: dict[str, object] = {"sub": "ada", "iat": now_s, "exp": now_s + 600}
    file = tmp_path / "token"
    sasl = KafkaSasl(mechanism="OAUTHBEARER", token_file=file)
    tls = KafkaTls(ca=kafka_ca)
    given = KafkaSettings(bootstrap=[kafka.addresses["SECURED"]], topic_prefix=prefix, tls=tls, sasl=sasl)
    file.write_text(f"{encoded({'alg': 'none'})}.{encoded(claims)}.\n")
    engine = KafkaEngine(given)
    await engine.start()
    await engine.close()


async def test_a_wrong_password_and_an_unknown_authority_are_told_as_such(
    kafka: Kafka, prefix: str, kafka_ca: Path
) -> None:
    with pytest.raises(Unreachable, match=r"Authentication failed.*check kafka\.bootstrap, kafka\.tls and kafka\.sasl"):
        await KafkaEngine(settings(kafka, prefix, kafka_ca, "PLAIN", "wrong")).start()
    with pytest.raises(Unreachable, match="certificate"):
        await KafkaEngine(settings(kafka, prefix, None, "PLAIN", "secret")).start()
    with pytest.raises(Unreachable, match="lets us in"):
        await KafkaEngine(KafkaSettings(bootstrap=[kafka.addresses["SECURED"]], request_s_max=1)).start()

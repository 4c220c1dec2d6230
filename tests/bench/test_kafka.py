from __future__ import annotations

from pathlib import Path

import pytest

from bench import kafka


def test_without_kafka_the_script_that_fetches_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "CACHE", tmp_path)
    with pytest.raises(kafka.KafkaMissing, match="run scripts/install-kafka"):
        kafka.Kafka(tmp_path / "data", 2)
    with pytest.raises(kafka.KafkaMissing):
        kafka.connector_jars()
    assert kafka.versions() == "not installed"
    assert list(tmp_path.iterdir()) == []


def test_the_versions_are_those_that_were_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "CACHE", tmp_path)
    (tmp_path / "versions.txt").write_text("what was asked for\nApache Kafka 4.5.6\norg.apache.spark:connector:4.2.0\n")
    assert kafka.versions() == "Apache Kafka 4.5.6, connector:4.2.0"
    (tmp_path / "connector").mkdir()
    (tmp_path / "connector" / "b.jar").touch()
    (tmp_path / "connector" / "a.jar").touch()
    assert [jar.name for jar in kafka.connector_jars()] == ["a.jar", "b.jar"]

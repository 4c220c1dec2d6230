"""Kafka and its connector are fetched by name, whatever of them Maven has. Maven is played by a script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.scripts.test_setup import ROOT, Machine

PROGRAMS = ("cat", "grep", "head", "mkdir", "mktemp", "mv", "rm", "sed", "tail")
SPARK_VERSION = next(
    line.partition("==")[2]
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.startswith("pyspark==")
)
# Notes the artifacts that it is asked for, leaves a jar for each, and knows no artifact of a version in $MISSING.
MAVEN = """
out=; pom=; artifact=
while [ $# -gt 0 ]; do
    case $1 in
        --file) pom=$2; shift ;;
        -DoutputDirectory=*) out=${1#*=} ;;
        -Dartifact=*) artifact=${1#*=} ;;
    esac
    shift
done
mkdir -p "$out"
if [ -n "$artifact" ]; then
    IFS=: read -r _ name version _ <<<"$artifact"
    case " $MISSING " in *" $version "*) echo "[ERROR] Could not find artifact $artifact"; exit 1 ;; esac
    echo "<artifactId>kafka-clients</artifactId>
<version>9.8</version>
<artifactId>commons-pool2</artifactId>
<version>7.6</version>" > "$out/$name-$version.pom"
    exit 0
fi
sed -n 's:.*<artifactId>\\(.*\\)</artifactId><version>\\([^<]*\\)</version>.*</dependency>:\\1-\\2.jar:p' "$pom" > "$out/listed"
while read -r name; do : > "$out/$name"; done < "$out/listed"
rm "$out/listed"
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "bin").mkdir()
    machine = Machine(tmp_path / "bin")
    for name in PROGRAMS:
        machine.real(name)
    return machine


def install(machine: Machine, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return machine.run("install-kafka", str(cache), TMPDIR=str(cache.parent), MISSING="", **variables)


def jars(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_broker_and_the_connector_of_our_spark_are_fetched_once(machine: Machine, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    machine.program("mvn", MAVEN)
    first = install(machine, cache, KAFKA_VERSION="4.5.6")
    assert first.returncode == 0, first.stderr
    assert jars(cache / "broker") == {"kafka_2.13-4.5.6.jar"}
    assert jars(cache / "connector") == {
        f"spark-sql-kafka-0-10_2.13-{SPARK_VERSION}.jar",
        f"spark-token-provider-kafka-0-10_2.13-{SPARK_VERSION}.jar",
        "kafka-clients-9.8.jar",
        "commons-pool2-7.6.jar",
    }
    machine.program("mvn", "exit 1")
    again = install(machine, cache, KAFKA_VERSION="4.5.6")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert install(machine, cache, KAFKA_VERSION="4.5.7").returncode == 1


def test_where_maven_lacks_the_connector_of_our_spark_an_earlier_one_is_taken_and_named(
    machine: Machine, tmp_path: Path
) -> None:
    machine.program("mvn", MAVEN.replace("$MISSING", SPARK_VERSION))
    result = install(machine, tmp_path / "cache")
    assert result.returncode == 0, result.stderr
    assert f"Maven has no spark-sql-kafka-0-10_2.13 {SPARK_VERSION}; 4.2.0 is taken" in result.stderr
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" in (tmp_path / "cache" / "versions.txt").read_text()


def test_what_maven_says_is_passed_on_and_nothing_half_fetched_is_kept(machine: Machine, tmp_path: Path) -> None:
    machine.program("mvn", 'echo "[ERROR] Unknown host"; exit 1')
    result = install(machine, tmp_path / "cache")
    assert result.returncode == 1
    assert "Maven could not fetch org.apache.kafka:kafka_2.13:" in result.stderr
    assert "Unknown host" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_without_maven_the_package_to_install_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.program("dpkg-query", "exit 1")
    result = install(machine, tmp_path / "cache")
    assert result.returncode == 1
    assert "scripts/install-debian-packages maven" in result.stderr

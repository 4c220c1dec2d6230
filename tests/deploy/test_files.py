"""What deploy/ holds fits the broker: files for Docker, Prometheus and Grafana are read by their own parsers or linters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock.config.loading import load_config
from penstock.net.limits import DEPLOYED_STOP_S
from penstock.testing import BrokerProcess

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "penstock.json"
FROM_ELSEWHERE = re.compile(r"up|node_filesystem_\w+|process_\w+")
"""Metrics that Prometheus, its node exporter or the process collector makes."""


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    checked = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_the_dockerfile_copies_files_that_exist_and_are_not_ignored() -> None:
    ignored = (DEPLOY.parent / ".dockerignore").read_text()
    copied = [line.split()[1:-1] for line in DOCKERFILE.read_text().splitlines() if line.startswith("COPY ")]
    names = [name for names in copied for name in names if not name.startswith(("--", "/"))]
    assert {"pyproject.toml", "constraints.txt", "src"} <= set(names)
    for name in names:
        assert (DEPLOY.parent / name).exists(), name
        assert f"!{name}\n" in ignored, name


def test_compose_publishes_the_ports_of_the_configuration_on_loopback_only() -> None:
    config = load_config(DEPLOY / "docker" / "penstock.toml", env={})
    listeners = [config.listeners.flymq, config.listeners.rustlog, config.admin]
    bound = {each.bind.rpartition(":")[2] for each in listeners if each is not None}
    service = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]["penstock"]
    assert sorted(service["ports"]) == sorted(f"127.0.0.1:{port}:{port}" for port in bound)
    assert f"EXPOSE {' '.join(f'{port}/tcp' for port in sorted(bound))}\n" in DOCKERFILE.read_text()


def test_every_service_manager_gives_a_stop_as_long_as_the_check_of_the_configuration_says() -> None:
    unit = (DEPLOY / "systemd" / "penstock.service").read_text()
    values = yaml.safe_load((DEPLOY / "helm" / "penstock" / "values.yaml").read_text())
    service = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]["penstock"]
    assert f"\nTimeoutStopSec={DEPLOYED_STOP_S:g}\n" in unit
    assert values["terminationGracePeriodSeconds"] == DEPLOYED_STOP_S
    assert service["stop_grace_period"] == f"{DEPLOYED_STOP_S:g}s"


def alerts() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]
    return rules


def panel_queries() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "5m")


QUERIES = [*(rule["expr"] for rule in alerts()), *panel_queries()]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of every series that a broker may export."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", config='[admin]\nbind = "127.0.0.1:0"\n') as broker:
        with urllib.request.urlopen(f"http://{broker.addresses['admin']}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    names = set()
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(family.type, [""])
        names |= {family.name + suffix for suffix in suffixes}
    return names


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_one_and_its_metrics_exist(query: str, metrics: set[str]) -> None:
    promql_parser.parse(query)
    without_strings = re.sub(r'"[^"]*"|\{[^}]*\}|\bby \([^)]*\)', "", query)
    named = set(re.findall(r"\b(?:penstock|process|node)_\w+|\bup\b", without_strings))
    assert named
    unknown = {name for name in named if name not in metrics and not FROM_ELSEWHERE.fullmatch(name)}
    assert not unknown


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in {"warning", "critical"}, rule["alert"]
        assert {"summary", "action"} <= set(rule["annotations"]), rule["alert"]
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))

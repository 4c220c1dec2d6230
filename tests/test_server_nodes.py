"""The server as one of several nodes, as far as that needs no other: tests/kafka has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock.config import Config, FlyMQListener, FujinListener
from penstock.errors import ConfigError
from penstock.log.nodes import NodeInfo
from penstock.server import Server, _advertised, _peer_limits


def node_config(directory: Path, limits: dict[str, int] | None = None, **cluster: Any) -> Config:
    section = {"bind": "10.0.0.1:9700", "node": "one", "secret": "0123456789abcdef", "insecure": True, **cluster}
    return Config(
        data_dir=directory / "data",
        engine="kafka",
        kafka={"bootstrap": ["127.0.0.1:1"]},
        cluster=section,
        limits=limits or {},
        listeners={"flymq": {"bind": "127.0.0.1:0"}},
    )


async def test_a_node_that_was_chosen_and_does_not_lead_yet_passes_nothing_on_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(node_config(tmp_path))
    addresses = {"felix": "10.0.0.1:5000", "admin": "10.0.0.1:9600", "cluster": "10.0.0.1:9700"}
    nodes = [NodeInfo("one", addresses, leads=True), NodeInfo("two", {}, leads=False)]
    monkeypatch.setattr(server.engine, "nodes", lambda: nodes)
    assert server._other_leader_address("felix") is None, "datagrams would go round"
    assert server._leader_url() is None, "browsers would"
    assert server._owner_address(None) == "10.0.0.1:9700", "a connection waits there until it leads"
    nodes[0] = NodeInfo("another", addresses, leads=True)
    assert server._other_leader_address("felix") == "10.0.0.1:5000"
    assert server._leader_url() == "http://10.0.0.1:9600"


@pytest.mark.parametrize(
    ("advertise", "host"), [(None, "10.0.0.1"), ("node1.example", "node1.example")], ids=["by bind", "by name"]
)
def test_a_node_is_told_of_by_addresses_that_other_machines_reach(
    tmp_path: Path, advertise: str | None, host: str
) -> None:
    cluster = node_config(tmp_path, advertise=advertise).cluster
    assert cluster is not None
    listening = {
        "cluster": "10.0.0.1:9700",
        "felix": "0.0.0.0:5000",
        "fujin": "10.0.0.2:4848",
        "admin": "127.0.0.1:9600",
    }
    advertised = {"cluster": f"{host}:9700", "felix": f"{host}:5000", "fujin": "10.0.0.2:4848"}
    assert _advertised(cluster, listening) == advertised


def test_relayed_clients_have_the_bounds_of_all_others(tmp_path: Path) -> None:
    limits = _peer_limits(node_config(tmp_path, {"in_flight_bytes_max": 70_000, "descriptors_reserved": 7}))
    assert (limits.in_flight_bytes_max, limits.descriptors_reserved) == (70_000, 7)
    assert limits.idle_s_max == 24 * 3600, "the node that relays a client closes what is idle"
    flymq, fujin = FlyMQListener(), FujinListener()
    each_node = flymq.max_connections + fujin.max_connections * 100
    assert limits.max_connections > 2 * each_node, "the nodes that relay clients bound how many they are"


async def test_wrong_tls_files_of_a_node_are_found_before_kafka_is_asked(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = {name: tmp_path / f"{name}.pem" for name in ("cert", "key", "ca")}
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(files["cert"])
    issued.private_key_pem.write_to_path(files["key"])
    files["ca"].write_text("no certificate")
    with pytest.raises(ConfigError, match=r"cluster\.tls\.ca: .* holds no certificate in PEM form"):
        await Server(node_config(tmp_path, tls=files)).start()

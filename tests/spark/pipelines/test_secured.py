"""A pipeline of a user with a login, over TLS, from the address of its broker to its tables: the real command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from deltalake import DeltaTable

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import RunningBroker
from tests.spark.jvm import FAST_MASTER, FAST_SETTINGS
from tests.spark.pipelines.conftest import ORDER, order

PASSWORD = "pass:word@of/alice"
"""What no file may have."""
ORDERS = 20


def files_with(text: str, directory: Path) -> list[Path]:
    return [each for each in directory.rglob("*") if each.is_file() and text.encode() in each.read_bytes()]


@pytest.mark.jvm
@pytest.mark.timeout(300)
def test_a_pipeline_with_a_login_over_tls_is_written_and_run_and_no_file_has_the_password(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca, server = tmp_path / "ca.pem", tmp_path / "server.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(server)
    home = tmp_path / "home"
    (home / "events").mkdir(parents=True)
    listener = {"auth": "required", "tls": {"cert": server, "key": server}}
    with RunningBroker(dev=True, listeners={"flymq": listener}) as broker:
        with FlyMQClient(f"flymqs://admin:admin@{broker.address}?ca={ca}") as admin:
            admin.create_topic("orders", 2)
            admin.schemas.register("orders", json.dumps(ORDER))
            admin.send_many("orders", [*(order(n) for n in range(ORDERS)), b"nonsense"])
            admin.access.create_user("alice", PASSWORD, ["producer", "consumer"])
        variables = {
            "PENSTOCK_SERVER": f"flymqs://alice@{broker.address}?ca={ca}",
            "PENSTOCK_PASSWORD": PASSWORD,
            "XDG_CONFIG_HOME": str(home),
        }

        def penstock(*arguments: str, **more: str) -> str:
            command = [sys.executable, "-m", "penstock", *arguments]
            environment = {**os.environ, **variables, **more}
            ended = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
            assert ended.returncode == 0, ended.stderr
            assert PASSWORD not in ended.stdout + ended.stderr
            return ended.stdout

        penstock("pipeline", "init", "sales.toml", "--topic", "orders")
        settings = {**FAST_SETTINGS, "spark.eventLog.enabled": "true", "spark.eventLog.dir": str(home / "events")}
        settings["spark.eventLog.compress"] = "false"
        with (home / "sales.toml").open("a") as file:
            file.write(f'master = "{FAST_MASTER}"\n[spark.config]\n')
            file.writelines(f'"{name}" = "{value}"\n' for name, value in settings.items())
        penstock("pipeline", "run", "sales.toml", "--once")
        assert sorted(DeltaTable(home / "sales-tables/silver/orders").to_pyarrow_table()["id"].to_pylist()) == list(
            range(ORDERS)
        )
        assert "orders.dlq" in penstock("topic", "list"), "tasks of the sink log in too"
        assert files_with("penstock", home / "events"), "there is a log of events"
        assert not files_with(PASSWORD, home)
        # The file names all of its broker but the password.
        del variables["PENSTOCK_SERVER"]
        rebuilt = penstock("pipeline", "rebuild", "sales.toml", "silver/orders")
        assert rebuilt == f"rebuilt silver/orders up to batch 0: {ORDERS} rows, 1 rejects\n"
        assert not files_with(PASSWORD, home)

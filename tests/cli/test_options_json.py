"""`--json` on every command, before it or after it: nothing but JSON on standard output, whatever becomes of the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import logs
from penstock.testing import RunningBroker
from tests.cli.conftest import Run
from tests.cli.test_program import LEAVES
from tests.logging_state import logging_as_before

FAILS: dict[str, str] = {
    "audit export": "--format=csv",
    "cache delete": "k",
    "cache get": "k",
    "cache put": "k v --ttl=soon",
    "config init": "-",
    "migrate": "nope.toml there.toml",
    "pipeline compact": "nope.toml",
    "pipeline export": "nope.toml silver/x --to=x",
    "pipeline rebuild": "nope.toml silver/x",
    "pipeline replay": "nope.toml --topic=orders --to=x",
    "pipeline run": "nope.toml",
    "pipeline start": "nope",
    "pipeline stop": "nope",
    "restore": "backups there --at=never",
    "serve": "--config=nope.toml",
    "torture": "--data-dir=nope",
    "user setup": "--data-dir=nope",
    "user passwd": "nobody --password-stdin",
}
"""Commands that need a cluster, another protocol or minutes to succeed: they fail here, and still print no text."""

WORKS: dict[str, str] = {
    "acl delete": "orders",
    "acl describe": "orders",
    "acl list": "",
    "acl set": "orders --user=ann",
    "audit list": "",
    "audit tail": "--no-follow",
    "backup create": "{backups}",
    "backup list": "backups",
    "bench": "--records=10",
    "cluster": "",
    "completion": "bash",
    "config check": "",
    "console": "",
    "consume": "orders",
    "context create": "spare --server=127.0.0.1:1 --force",
    "context delete": "spare --yes",
    "context list": "",
    "context show": "kept",
    "context use": "kept",
    "delayed cancel": "orders {delayed}",
    "delayed list": "",
    "dlq list": "orders",
    "dlq purge": "orders --yes",
    "dlq replay": "orders --all",
    "doctor": "",
    "group delete": "billing --yes",
    "group describe": "billing",
    "group list": "",
    "group reset": "billing --topic=orders --to=earliest --yes",
    "help": "topic list",
    "key create": "{key}",
    "key list": "",
    "key revoke": "worker --yes",
    "pipeline init": "{file} --topic=orders",
    "pipeline status": "",
    "produce": "orders hello",
    "role delete": "ops --yes",
    "role list": "",
    "role set": "ops",
    "schema bind": "orders --none",
    "schema delete": "old --yes",
    "schema diff": "order:2 order:3",
    "schema get": "order:2",
    "schema list": "",
    "schema register": "order order.json",
    "schema validate": "order:2 {{}}",
    "spark pack": "-o pack.tar.gz",
    "status": "",
    "subscription describe": "#1",
    "subscription list": "",
    "subscription reset": "#1 --topic=orders --to=earliest --yes",
    "top": "--interval=0.1",
    "topic add-partitions": "orders --to=3",
    "topic alter": "orders --set=retention=7d",
    "topic create": "fresh --exist-ok",
    "topic delete": "doomed --yes",
    "topic describe": "orders",
    "topic list": "",
    "topic truncate": "orders --before=latest --yes",
    "txn commit": "{transaction}",
    "txn list": "",
    "txn produce": "records.tsv",
    "txn rollback": "{transaction}",
    "user create": "{user} --certificate",
    "user delete": "{user} --yes",
    "user describe": "ann",
    "user list": "",
    "user update": "ann --enable",
    "user whoami": "",
    "verify": "",
    "version": "",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with logging_as_before(), RunningBroker(admin=True, dev=True) as broker:
        logs.configure("error", form="json")  # what the broker logs is not what the command prints
        client = broker.connect()
        client.create_topic("orders", 3)
        client.access.create_user("ann", "secret", ["consumer"])
        for type_name in ("string", "number", "integer"):
            client.schemas.register(
                "order", f'{{"properties": {{"x": {{"type": "{type_name}"}}}}}}', compatibility="none"
            )
        yield broker


@pytest.fixture
def prepared(
    run: Run, shared: RunningBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], list[str]]:
    """What the arguments of a command name exists: `prepared("topic delete")` returns them."""
    monkeypatch.setenv("PENSTOCK_SERVER", shared.url)
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", f"http://{shared.addresses['admin']}")
    (tmp_path / "order.json").write_text('{"properties": {"x": {"type": "string"}}}')
    (tmp_path / "records.tsv").write_text("orders\tk\tv\n")

    def prepare(command: str) -> list[str]:
        client = shared.connect()
        names = {"backups": "", "delayed": "", "transaction": "", "key": "fresh", "user": "fresh", "file": "p.toml"}
        match command:
            case "topic delete":
                client.create_topic("doomed")
            case "group delete" | "group describe":
                client.commit("orders", "billing", 0, 0)
            case "delayed cancel":
                names["delayed"] = client.send_later("orders", b"v", 60.0).id
            case "txn commit" | "txn rollback":
                transaction = client.transaction()
                with transaction:
                    transaction.send("orders", b"v")
                names["transaction"] = transaction.id if command == "txn commit" else "txn-" + "0" * 32
            case "key create" | "user create":
                names["key"] = names["user"] = f"fresh-{next(NUMBERS)}"
            case "user delete":
                names["user"] = f"fresh-{next(NUMBERS)}"
                client.access.create_user(names["user"], "secret", [])
            case "key revoke":
                client.keys.create("worker")
            case "role delete":
                client.access.set_role("ops", [], "")
            case "acl delete":
                client.access.set_acl("orders", ["ann"], [])
            case "schema delete":
                client.schemas.register("old", "{}")
            case "pipeline init":
                names["file"] = f"p{next(NUMBERS)}.toml"
            case "backup list":
                assert run("backup", "create", "backups").code == 0
            case "backup create":
                names["backups"] = f"backups-{next(NUMBERS)}"
            case "consume" | "topic truncate":
                client.send("orders", b"v")
        if command.startswith("context"):
            run("context", "create", "kept", "--server", shared.url, "--force")
            run("context", "create", "spare", "--server", shared.url, "--force")
        return [each.format(**names) for each in {**FAILS, **WORKS}[command].split()]

    return prepare


NUMBERS = iter(range(1_000))


def test_every_command_is_tried() -> None:
    assert sorted(map(" ".join, LEAVES)) == sorted({*FAILS, *WORKS})
    assert not FAILS.keys() & WORKS.keys()


@pytest.mark.parametrize("command", sorted({*FAILS, *WORKS}))
@pytest.mark.parametrize("place", ["before", "after"])
def test_there_is_nothing_but_json_on_standard_output(
    run: Run, prepared: Callable[[str], list[str]], command: str, place: str
) -> None:
    words = [*command.split(), *prepared(command)]
    result = run("--json", *words, input=b"secret\n") if place == "before" else run(*words, "--json", input=b"secret\n")
    lines = result.text.splitlines()
    try:
        json.loads(result.text)
    except ValueError:
        for line in lines:
            json.loads(line)
    if command in WORKS and command not in {"subscription describe", "subscription reset", "doctor"}:
        assert (result.code, result.err) == (0, ""), result.err
        assert lines
    if command in FAILS:
        assert result.code in (1, 2)
        assert (lines, result.err.startswith("error: ")) == ([], True)

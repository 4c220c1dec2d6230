"""Commands that ask an admin address with TLS and a login."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from penstock.cli.admin_access import AdminAccess
from penstock.errors import InvalidRequest
from penstock.testing import RunningBroker
from tests.cli.conftest import Run


@pytest.fixture
def guarded(run: Run, tmp_path: Path) -> Iterator[RunningBroker]:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    tls = {"cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
    admin = {"auth": "required", "probes": "login", "tls": tls}
    with RunningBroker(dev=True, listeners={"flymq": {"auth": "required", "tls": tls}}, admin=admin) as broker:
        yield broker


def addresses(broker: RunningBroker, user: str = "admin") -> list[str]:
    return [
        "--server",
        f"flymqs://{user}@{broker.address}?ca=ca.pem",
        "--admin",
        f"https://{broker.addresses['admin']}",
    ]


def test_the_user_of_the_broker_logs_in(run: Run, guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PASSWORD", "admin")
    result = run("status", *addresses(guarded))
    assert (result.code, result.err) == (0, "")
    assert ": ready, up " in result.text
    assert json.loads(run("top", "--json", "--interval", "0.1", *addresses(guarded)).out)["ready"] is True


def test_a_context_has_all_that_is_needed(run: Run, guarded: RunningBroker) -> None:
    created = run("context", "create", "prod", *addresses(guarded), "--password-stdin", input=b"admin\n")
    assert created.code == 0
    assert run("status").code == 0


def test_who_does_not_log_in_hears_how(run: Run, guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = ["--server", f"flymqs://{guarded.address}?ca=ca.pem", "--admin", f"https://{guarded.addresses['admin']}"]
    refused = run("status", *nobody)
    assert refused.code == 1
    assert "asks for a login: name yourself in the address of the broker" in refused.err
    monkeypatch.setenv("PENSTOCK_PASSWORD", "guess")
    refused = run("status", *addresses(guarded))
    assert refused.code == 1
    assert "guess" not in refused.err
    assert "asks for a login" not in refused.err


def test_a_certificate_that_is_not_trusted_is_named(run: Run, guarded: RunningBroker) -> None:
    refused = run("status", "--admin", f"https://{guarded.addresses['admin']}")
    assert refused.code == 1
    assert "is not trusted" in refused.err
    assert "?ca=FILE" in refused.err


def test_no_password_goes_to_another_host(run: Run, guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PASSWORD", "admin")
    port = guarded.addresses["admin"].rpartition(":")[2]
    elsewhere = ["--server", "flymqs://admin@mq.example:9093?ca=ca.pem", "--admin", f"https://127.0.0.1:{port}"]
    monkeypatch.setenv("SSL_CERT_FILE", "ca.pem")
    assert "asks for a login: name yourself" in run("status", *elsewhere).err


def test_every_host_of_the_broker_gets_its_password(
    run: Run, guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PASSWORD", "admin")
    nodes = f"flymqs://admin@mq.example:9093,{guarded.address}?ca=ca.pem"
    assert run("status", "--server", nodes, "--admin", f"https://{guarded.addresses['admin']}").code == 0


def test_no_password_goes_to_another_machine_without_tls() -> None:
    access = AdminAccess("flymq://admin:secret@192.0.2.1:9092")
    with pytest.raises(InvalidRequest, match=r"a password can be read on its way there: write https://") as refused:
        access.log_in("http://192.0.2.1:9600/readyz")
    assert "secret" not in str(refused.value)
    assert not access.logged_in


def test_doctor_recognizes_a_broker_that_tells_nothing_without_a_login(
    run: Run, guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ADMIN__BIND", guarded.addresses["admin"])
    monkeypatch.setenv("PENSTOCK_ADMIN__TLS__CERT", "cert.pem")
    monkeypatch.setenv("PENSTOCK_ADMIN__TLS__KEY", "key.pem")
    monkeypatch.setenv("PENSTOCK_LISTENERS__FLYMQ__BIND", guarded.address)
    found = {each["check"]: each for each in json.loads(run("doctor", "--json").out)}
    assert "a Penstock broker is running; log in" in found["broker"]["found"]
    assert found["port admin"]["status"] == "ok"
    assert found["port flymq"] == {
        "check": "port flymq",
        "status": "ok",
        "found": f"{guarded.address} is in use, by this broker as far as can be told without a login",
        "advice": "",
    }

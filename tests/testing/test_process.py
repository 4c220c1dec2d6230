from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.errors import ConnectionLost, Unreachable
from penstock.testing import BrokerProcess
from penstock.testing.crashing import CRASHED
from penstock.testing.diskfaults import Crash
from penstock.testing.process import BrokerProcessFailed

pytestmark = pytest.mark.usefixtures("start")


@pytest.fixture(params=["interpreter", "fork"])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds whatever starts the process."""
    assert BrokerProcess.fork_server is not None
    if request.param == "interpreter":
        monkeypatch.setattr(BrokerProcess, "fork_server", None)


def test_it_survives_kill_9_on_the_same_directory_and_port(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        address = broker.address
        with broker.connect() as client:
            client.send_many("orders", [b"one", b"two"])
        broker.kill9()
        assert broker.exit_code == -9
        with pytest.raises(Unreachable):
            broker.connect()
        broker.start()
        assert broker.address == address
        with broker.connect() as client:
            assert [record.value for record in client.records("orders")] == [b"one", b"two"]
        assert broker.terminate() == 0
        assert (tmp_path / "data" / "clean-shutdown").exists()


def test_a_port_that_another_program_took_stops_no_start_where_any_port_will_do(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", keep_port=False) as broker:
        host, port = broker.address.split(":")
        broker.kill9()
        with socket.create_server((host, int(port)), reuse_port=False):
            broker.start()
            assert broker.address != f"{host}:{port}"


def test_it_can_be_made_to_end_itself(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker.start().connect() as client:
        client.create_topic("orders")  # a topic that is new is noted elsewhere too, and the commit goes another way
    broker.terminate()
    broker.start(disk=Crash("commit flush segment"))
    with broker.connect() as client, pytest.raises(ConnectionLost):
        client.send("orders", b"one")
    assert broker.wait_exit() == CRASHED
    broker.close()


def test_settings_in_the_environment_are_not_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path / "precious"))
    with BrokerProcess(tmp_path / "data") as broker, broker.connect() as client:
        client.send("orders", b"one")
    assert (tmp_path / "data" / "topics").is_dir()
    assert not (tmp_path / "precious").exists()


def test_modules_of_the_current_directory_are_not_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "penstock.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    with BrokerProcess(tmp_path / 'a "quoted" directory') as broker:
        assert broker.running


def test_a_start_that_fails_carries_what_was_printed(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", config='durability = "perhaps"')
    with pytest.raises(BrokerProcessFailed, match=r"(?s)before it was ready:.*perhaps"):
        broker.start()
    broker.close()


def test_misuse_is_told(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with pytest.raises(BrokerProcessFailed, match="was not started"):
        broker.kill9()
    with broker:
        with pytest.raises(BrokerProcessFailed, match="is running"):
            broker.start()
        assert broker.pid > 0
        assert "ready" in broker.output
    assert not broker.running


def test_a_broker_that_does_not_end_in_time_is_told(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", stop_s_max=0.2).start()
    broker.pause()
    with pytest.raises(BrokerProcessFailed, match=r"did not end within 0\.2 s"):
        broker.terminate()
    broker.resume()
    broker.close()

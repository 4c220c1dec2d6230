from __future__ import annotations

import socket

import pytest

from bench import processes


def test_a_free_port_is_one_that_nobody_has_and_no_client_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    port = processes.free_port()
    assert port in processes.PORTS
    monkeypatch.setattr(processes, "PORTS", range(port, port + 1))
    monkeypatch.setattr(processes, "PORTS_TRIED", 1)
    with socket.socket() as taken:
        taken.bind((processes.HOST, port))
        with pytest.raises(RuntimeError, match="are taken: end what listens there"):
            processes.free_port()
    assert processes.free_port() == port

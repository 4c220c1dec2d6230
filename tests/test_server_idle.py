"""What an idle connection takes of the memory that Python counts."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import tracemalloc
from pathlib import Path

import pytest
import trustme

from tests.test_server import LIST_TOPICS, config_for, running

TCP_CONNECTION_BYTES_MAX = 5_000
TLS_CONNECTION_BYTES_MAX = 8_000


@pytest.mark.parametrize("over_tls", [False, True])
async def test_an_idle_connection_takes_a_few_kilobytes(tmp_path: Path, over_tls: bool) -> None:
    """Besides what OpenSSL has, which is not counted here; what the client's sockets take is."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    tls = {"cert": tmp_path / "server.pem", "key": tmp_path / "server.pem"}
    listener = {"bind": "127.0.0.1:0", **({"tls": tls} if over_tls else {})}
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem") if over_tls else None
    async with running(config_for(tmp_path, listeners={"flymq": listener})) as server:
        host, _, port = server.addresses["flymq"].rpartition(":")
        clients: list[socket.socket] = []

        def dial_and_ask(count: int) -> None:
            for _ in range(count):
                client = socket.create_connection((host, int(port)))
                clients.append(client if context is None else context.wrap_socket(client, server_hostname=host))
                clients[-1].sendall(LIST_TOPICS)
                assert clients[-1].recv(100)[:3] == LIST_TOPICS[:3]

        try:
            await asyncio.to_thread(dial_and_ask, 20)  # what the first ones load is not theirs
            gc.collect()
            tracemalloc.start()
            await asyncio.to_thread(dial_and_ask, 100)
            gc.collect()
            taken_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            for client in clients:
                client.close()
    assert taken_bytes / 100 < (TLS_CONNECTION_BYTES_MAX if over_tls else TCP_CONNECTION_BYTES_MAX)

"""The admin address with TLS and a login: who may see what."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
import trustme

from penstock.broker.access.checks import SYSTEM
from penstock.config import Config
from penstock.server import Server


@asynccontextmanager
async def serving(tmp_path: Path, **settings: object) -> AsyncIterator[Server]:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    admin = {
        "bind": "127.0.0.1:0",
        "auth": "required",
        "probes": "login",
        "tls": {"cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem"},
        **settings,
    }
    config = Config(data_dir=tmp_path / "data", listeners={"flymq": {"bind": "127.0.0.1:0"}}, admin=admin)
    running = Server(config)
    await running.start()
    await running.broker.users.create_user(SYSTEM, "ann", "secret", ["admin"])
    yield running
    await running.stop()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path) as server:
        yield server


async def ask(server: Server, path: str, user: str = "", body: Any = None) -> tuple[int, dict[str, str], bytes]:
    """GET over TLS, or POST where there is a body."""

    def asking() -> tuple[int, dict[str, str], bytes]:
        context = ssl.create_default_context(cafile=server.config.data_dir.parent / "ca.pem")
        connection = http.client.HTTPSConnection(server.addresses["admin"], context=context, timeout=30)
        headers = {"content-type": "application/json"}
        if user:
            headers["authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        method = "GET" if body is None else "POST"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        content = response.read()
        connection.close()
        return response.status, found, content

    return await anyio.to_thread.run_sync(asking)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/health", "/api/v1/topics", "/registry/subjects"])
async def test_what_needs_a_login_is_told_after_one(server: Server, path: str) -> None:
    assert (await ask(server, path))[0] == 401
    assert (await ask(server, path, "ann:guess"))[0] == 401
    assert (await ask(server, path, "ann:secret"))[0] == 200


async def test_a_handshake_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    async with serving(tmp_path, handshake_s_max=0.1) as server:
        host, _, port = server.addresses["admin"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()


async def test_the_cookie_of_a_session_travels_over_tls_only(server: Server) -> None:
    status, headers, _ = await ask(server, "/api/v1/session", body={"user": "ann", "password": "secret"})
    assert status == 201
    assert "Secure" in headers["set-cookie"]


async def test_the_console_is_served_to_everybody_because_it_holds_nothing(server: Server) -> None:
    status, _, content = await ask(server, "/console/topics")
    assert status == 200
    assert b"<title>Penstock</title>" in content

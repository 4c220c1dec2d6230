"""The server, with every part real: what it starts, how it stops, and what is left when it cannot start."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from structlog.testing import capture_logs

from penstock import connect
from penstock.broker.access.checks import SYSTEM, Operation, Principal, Resource
from penstock.config import Config
from penstock.errors import (
    AuthenticationFailed,
    AuthenticationRequired,
    ConfigError,
    CorruptBlock,
    DataDirectoryInUse,
    LimitExceeded,
    Unreachable,
)
from penstock.net.connection import TcpConnection
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.flymq.operations.records import Fetch, Produce
from penstock.protocols.flymq.operations.topics import ListTopics
from penstock.protocols.flymq.wire import HEADER
from penstock.server import SETUP_FILE, Server
from penstock.session_sources import PROTOCOLS, QUIC_PROTOCOLS
from penstock.testing.faults import FaultyDisk
from tests.descriptors import open_sockets
from tests.net.line_session import hang_up, read_to_end, until
from tests.open_access import OpenAccess

LIST_TOPICS = struct.pack(">BBBBI", 0xAF, 1, ListTopics.opcode, 0, 0)
CONNECTION_KIB_MAX = 5


def config_for(directory: Path, **settings: Any) -> Config:
    given: dict[str, Any] = {"listeners": {"flymq": {"bind": "127.0.0.1:0"}}, "admin": None, **settings}
    return Config(data_dir=directory / "data", **given)


@asynccontextmanager
async def running(config: Config, disk: FaultyDisk | None = None) -> AsyncIterator[Server]:
    server = Server(config, disk=disk)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def client_of(server: Server) -> AsyncFlyMQClient:
    return AsyncFlyMQClient(f"flymq://{server.addresses['flymq']}")


async def dial(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.addresses["flymq"].rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_a_record_is_stored_read_and_still_there_after_a_restart(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    async with running(config) as server, client_of(server) as client:
        await client.send("orders", b"one")
        assert [record.value for record in (await client.fetch("orders", 0, 0)).records] == [b"one"]
    async with running(config) as server, client_of(server) as client:
        assert [record.value for record in (await client.fetch("orders", 0, 0)).records] == [b"one"]


async def test_a_damaged_internal_topic_is_refused_with_the_setting_that_starts_without_it(tmp_path: Path) -> None:
    async with running(config_for(tmp_path)) as server, client_of(server) as client:
        await client.send("orders", b"one")
        for group in ("lost", "kept"):
            await client.commit("orders", group, 0, 1)
    [path] = (tmp_path / "data" / "topics").glob("__groups.*/0/*.log")
    path.write_bytes(path.read_bytes().replace(b"lost", b"LOST"))
    with pytest.raises(CorruptBlock, match=r"__groups.*--set log\.accept_gaps=true"):
        await Server(config_for(tmp_path)).start()
    async with running(config_for(tmp_path, log={"accept_gaps": True})) as server, client_of(server) as client:
        assert [record.value for record in (await client.fetch("orders", 0, 0)).records] == [b"one"]
        assert await client.committed("orders", "kept", 0) == 1
        assert await client.committed("orders", "lost", 0) is None


async def test_every_address_is_named_with_the_port_that_was_picked(tmp_path: Path) -> None:
    async with running(config_for(tmp_path, admin={"bind": "127.0.0.1:0"})) as server:
        assert list(server.addresses) == ["flymq", "admin"]
        assert all(re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", address) for address in server.addresses.values())


def test_every_listener_of_the_configuration_has_a_protocol() -> None:
    assert {name for name, _ in Config().listeners.enabled()} == {*PROTOCOLS, *QUIC_PROTOCOLS}


async def test_declared_topics_are_created_and_then_altered_to_what_the_file_says(tmp_path: Path) -> None:
    declared = {"name": "orders", "partitions": 3, "compression": "zstd"}
    async with running(config_for(tmp_path, topics=[declared])) as server:
        created = server.engine.topics()["orders"]
        assert (created.config.partitions, created.config.compression) == (3, "zstd")
        await server.broker.topics.alter(SYSTEM, "orders", [("segment_bytes", "1 MiB")])
    declared = {"name": "orders", "partitions": 5, "retention_ms": "7d"}
    async with running(config_for(tmp_path, topics=[declared])) as server:
        altered = server.engine.topics()["orders"]
        assert altered.id == created.id
        assert altered.config == replace(
            created.config, partitions=5, retention_ms=604_800_000, segment_bytes=1 << 20
        ), "what the file does not name stays as it was"


async def test_a_declaration_that_would_remove_partitions_refuses_the_start_and_changes_nothing(tmp_path: Path) -> None:
    async with running(config_for(tmp_path, topics=[{"name": "a"}, {"name": "b", "partitions": 3}])):
        pass
    declared = [{"name": "a", "compression": "zstd"}, {"name": "b", "partitions": 2}]
    with pytest.raises(ConfigError, match=r"topics\[1\].partitions is 2, and topic b has 3: .* declare 3 or more"):
        await Server(config_for(tmp_path, topics=declared)).start()
    async with running(config_for(tmp_path)) as server:
        assert server.engine.topics()["a"].config.compression == "none"


async def test_the_admin_address_says_when_the_server_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    server = Server(config_for(tmp_path, admin={"bind": "127.0.0.1:0"}))
    states = []
    await server.start()
    assert server.admin is not None
    states.append(server.admin.state)
    await server.stop()
    states.append(server.admin.state)
    assert states == ["ready", "stopping"]


async def test_the_server_is_not_ready_while_maintenance_of_the_log_fails(tmp_path: Path) -> None:
    class Broken(FaultyDisk):
        failing = False

        def free_bytes(self, path: Path) -> int:
            if self.failing:
                raise OSError(5, "Input/output error")
            return super().free_bytes(path)

    async def status() -> tuple[str, dict[str, Any]]:
        reader, writer = await asyncio.open_connection(*server.addresses["admin"].split(":"))
        writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return head.split()[1], json.loads(body)

    disk = Broken()
    config = config_for(tmp_path, log={"maintenance_interval_s": 0.1}, admin={"bind": "127.0.0.1:0"})
    async with running(config, disk) as server:
        assert (await status())[0] == "200"
        disk.failing = True
        while (found := await status())[0] == "200":
            pass
        assert [task["task"] for task in found[1]["failing_tasks"]] == ["log_maintenance"]
        disk.failing = False
        while (await status())[0] == "503":
            pass


async def test_settings_reach_the_parts_they_are_for(tmp_path: Path) -> None:
    config = config_for(
        tmp_path,
        durability="none",
        limits={"topics_max": 7, "in_flight_bytes_max": 70_000, "send_buffer_bytes_max": 80_000},
        listeners={"flymq": {"bind": "127.0.0.1:0", "max_connections": 3, "idle_s_max": 40, "header_s_max": 5}},
    )
    async with running(config) as server:
        limits = server.listeners["flymq"].limits
        assert (limits.max_connections, limits.idle_s_max, limits.header_s_max) == (3, 40, 5)
        assert (limits.in_flight_bytes_max, limits.send_buffer_bytes_max) == (70_000, 80_000)
        assert server.broker.limits.topics_max == 7
        assert str(server.broker.topics.defaults.durability) == "none"


# -- what is left when it cannot start ---------------------------------------------------------------------------------


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


@pytest.mark.parametrize("part", ["listener", "admin", "topics"])
async def test_a_part_that_cannot_start_takes_down_those_before_it(tmp_path: Path, taken_port: int, part: str) -> None:
    taken = {"bind": f"127.0.0.1:{taken_port}"}
    settings: dict[str, Any] = {"admin": {"bind": "127.0.0.1:0"}}
    expected: type[Exception] = ConfigError
    if part == "listener":
        settings["listeners"] = {"flymq": taken}
    elif part == "admin":
        settings["admin"] = taken
    else:
        settings["topics"] = [{"name": "orders", "partitions": 2_000}]
        expected = LimitExceeded
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    with pytest.raises(expected):
        await Server(config_for(tmp_path, **settings)).start()
    await until(lambda: asyncio.all_tasks() <= tasks and open_sockets() <= sockets)
    async with running(config_for(tmp_path)):
        pass  # the data directory is free again


async def test_a_wrong_tls_file_is_found_before_the_log_is_touched(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("not a certificate")
    listener = {"bind": "127.0.0.1:0", "tls": {"cert": note, "key": note}}
    with pytest.raises(ConfigError, match=r"tls\.cert: .*note\.txt holds no certificate"):
        await Server(config_for(tmp_path, listeners={"flymq": listener})).start()
    assert not (tmp_path / "data").exists()


async def test_two_servers_do_not_share_a_data_directory(tmp_path: Path) -> None:
    async with running(config_for(tmp_path)) as server:
        with pytest.raises(DataDirectoryInUse):
            await Server(config_for(tmp_path)).start()
        async with client_of(server) as client:
            await client.send("orders", b"unharmed")


# -- stopping ----------------------------------------------------------------------------------------------------------


async def test_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    async with running(config_for(tmp_path, admin={"bind": "127.0.0.1:0"})) as server:
        async with client_of(server) as client:
            await client.send("orders", b"one")
        _, writer = await dial(server)
        writer.write(LIST_TOPICS[:5])
        await until(lambda: server.listeners["flymq"].stats.connections_open == 1)
    await hang_up(writer)
    await until(lambda: asyncio.all_tasks() <= tasks and open_sockets() <= sockets)


async def test_stopping_twice_or_without_a_start_does_nothing(tmp_path: Path) -> None:
    server = Server(config_for(tmp_path))
    await server.stop()
    await server.start()
    await server.stop()
    await server.stop()


async def test_a_stop_acknowledges_what_was_in_flight_only_once_it_is_on_disk(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with running(config_for(tmp_path, topics=[{"name": "orders"}]), disk) as server, client_of(server) as client:
        await client.send("orders", b"before")
        with disk.fsync_held() as flushing:
            sending = asyncio.create_task(client.send("orders", b"in flight"))
            await until(flushing.is_set)
            stopping = asyncio.create_task(server.stop())
            await until(lambda: server.listeners["flymq"]._stopping)
            assert not sending.done()
            assert not stopping.done()
        assert (await sending).offset == 1
        await stopping
    async with running(config_for(tmp_path)) as server, client_of(server) as client:
        assert [record.value for record in (await client.fetch("orders", 0, 0)).records] == [b"before", b"in flight"]


async def test_after_a_stop_nobody_is_let_in(tmp_path: Path) -> None:
    async with running(config_for(tmp_path)) as server:
        address = server.addresses["flymq"]
    with pytest.raises(Unreachable):
        await AsyncFlyMQClient(f"flymq://{address}").open()


# -- peers that misbehave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hello",
    [b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)],
    ids=["http", "tls"],
)
async def test_another_protocol_on_the_port_is_closed_with_one_line(tmp_path: Path, hello: bytes) -> None:
    async with running(config_for(tmp_path)) as server:
        with capture_logs() as lines:
            reader, writer = await dial(server)
            writer.write(hello)
            await read_to_end(reader)
            await hang_up(writer)
            await until(lambda: server.listeners["flymq"].stats.connections_open == 0)
        assert [line["event"] for line in lines] == ["protocol_violation"]
        assert server.listeners["flymq"].stats.protocol_errors == 1


async def test_a_producer_that_resets_its_connection_leaves_no_bytes_counted(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with running(config_for(tmp_path, topics=[{"name": "orders"}]), disk) as server:
        budget = server.listeners["flymq"].budget
        body = struct.pack(">H6sII3si", 6, b"orders", 0, 3, b"one", -1)
        with disk.fsync_held() as flushing:
            host, _, port = server.addresses["flymq"].rpartition(":")
            client = socket.create_connection((host, int(port)))
            client.sendall(HEADER.pack(0xAF, 1, Produce.opcode, 0, len(body)) + body)
            await until(lambda: flushing.is_set() and budget.held_bytes > 0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            await until(lambda: server.listeners["flymq"].stats.connections_open == 0)
            assert budget.held_bytes > 0  # the request is still being worked on
        await until(lambda: budget.held_bytes == 0)


async def test_a_client_certificate_names_the_principal(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    names = {"server": ("127.0.0.1", "broker"), "client": ("alice@example.org", "alice")}
    for name, (identity, common_name) in names.items():
        issued = authority.issue_cert(
            identity, common_name=common_name, organization_name="Example", organization_unit_name="Payments"
        )
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    tls = {"cert": tmp_path / "server.pem", "key": tmp_path / "server.pem", "client_ca": tmp_path / "ca.pem"}
    listener = {"bind": "127.0.0.1:0", "auth": "required", "tls": tls}
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "client.pem")
    asked: list[Principal] = []

    class Recorder(OpenAccess):
        def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
            asked.append(principal)

    async with running(config_for(tmp_path, listeners={"flymq": listener})) as server:
        server.broker.topics.access = Recorder()
        async with AsyncFlyMQClient(f"flymqs://{server.addresses['flymq']}", tls=context) as client:
            await client.topics()
    assert set(asked) == {Principal("CN=alice,OU=Payments,O=Example")}


# -- who is asking -----------------------------------------------------------------------------------------------------

REQUIRED = {"flymq": {"bind": "127.0.0.1:0", "auth": "required"}}


async def test_a_login_is_asked_for_only_where_it_is_required(tmp_path: Path) -> None:
    async with running(config_for(tmp_path)) as server, client_of(server) as client:
        await client.send("orders", b"x")
        assert not server.needs_setup
    async with running(config_for(tmp_path, listeners=REQUIRED)) as server, client_of(server) as client:
        with pytest.raises(AuthenticationRequired):
            await client.send("orders", b"x")
        assert server.needs_setup


async def test_the_set_up_secret_is_there_while_it_is_needed_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "data" / SETUP_FILE
    async with running(config_for(tmp_path, listeners=REQUIRED)) as server:
        assert file.stat().st_mode & 0o777 == 0o600
        first = file.read_text()
        address = server.addresses["flymq"]
        async with AsyncFlyMQClient(f"flymq://setup%3A:{first}@{address}") as client:
            assert await client.topics() == []
    assert not file.exists(), "stopped"
    file.write_text("left behind by a crash")
    async with running(config_for(tmp_path, listeners=REQUIRED)) as server:
        second = file.read_text()
        assert second not in (first, "left behind by a crash")
        address = server.addresses["flymq"]
        with pytest.raises(AuthenticationFailed):
            await AsyncFlyMQClient(f"flymq://setup%3A:{first}@{address}").open()
        async with AsyncFlyMQClient(f"flymq://setup%3A:{second}@{address}") as client:
            await client.access.create_user("root", "secret", ["admin"])
            with pytest.raises(AuthenticationRequired, match="there is an administrator now"):
                await client.access.create_user("eve", "secret", ["admin"])
    async with running(config_for(tmp_path, listeners=REQUIRED)) as server:
        assert not server.needs_setup
        assert not file.exists()


async def test_development_credentials_work_and_leave_nothing_behind(tmp_path: Path) -> None:
    async with running(config_for(tmp_path, listeners=REQUIRED, dev=True)) as server:
        assert not server.needs_setup
        async with AsyncFlyMQClient(f"flymq://admin:admin@{server.addresses['flymq']}") as client:
            await client.create_topic("orders")
            assert await client.access.users() == []
        with pytest.raises(AuthenticationFailed):
            await AsyncFlyMQClient(f"flymq://admin:guess@{server.addresses['flymq']}").open()
    async with running(config_for(tmp_path, listeners=REQUIRED)) as server:
        with pytest.raises(AuthenticationFailed):
            await AsyncFlyMQClient(f"flymq://admin:admin@{server.addresses['flymq']}").open()


async def test_public_topics_are_open_where_the_configuration_says_so(tmp_path: Path) -> None:
    access = {"allow_anonymous": True, "default_public": True}
    async with running(config_for(tmp_path, listeners=REQUIRED, access=access)) as server, client_of(server) as client:
        await client.send("orders", b"x")
        assert await client.topics() == ["orders"]
        with pytest.raises(AuthenticationRequired):
            await client.delete_topic("orders")


async def test_no_password_is_logged(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with running(config_for(tmp_path, listeners=REQUIRED, dev=True)) as server:
            address = server.addresses["flymq"]
            async with AsyncFlyMQClient(f"flymq://admin:admin@{address}") as client:
                await client.access.create_user("ann", "hunter2", ["guest"])
                await client.access.set_password("ann", "hunter3")
            with pytest.raises(AuthenticationFailed, match="refuses user 'ann'") as refused:
                await AsyncFlyMQClient(f"flymq://ann:hunter4@{address}").open()
    assert "hunter" not in str(refused.value)
    assert "hunter" not in str(logs)
    assert [entry["users"] for entry in logs if entry["event"] == "development_credentials"] == [["admin"]]
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert b"hunter" not in stored


# -- as a process ------------------------------------------------------------------------------------------------------


class Process:
    """`penstock serve` as somebody's shell starts it."""

    def __init__(self, directory: Path, descriptors_max: int | None = None) -> None:
        config = directory / "penstock.toml"
        config.write_text(f'data_dir = "{directory / "data"}"\n[listeners.flymq]\nbind = "127.0.0.1:0"\n')
        command = [sys.executable, "-m", "penstock", "serve", "--config", str(config)]
        if descriptors_max is not None:
            command = ["/bin/sh", "-c", f'ulimit -n {descriptors_max}; exec "$@"', "sh", *command]
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.port = 0

    def wait_for(self, text: str) -> list[str]:
        """Read what it prints up to the line that has this text; at the end of its output, what there was."""
        assert self.popen.stdout is not None
        lines = []
        for line in self.popen.stdout:
            lines.append(line.rstrip("\n"))
            if listening := re.search(r"^flymq on .*:(\d+)$", line):
                self.port = int(listening[1])
            if text in line:
                break
        return lines

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    @property
    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1])


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path)
    yield started
    _end(started)


def _end(started: Process) -> None:
    started.popen.kill()
    started.popen.wait()
    assert started.popen.stdout is not None
    started.popen.stdout.close()


def _ask(client: socket.socket) -> None:
    client.sendall(LIST_TOPICS)
    assert client.recv(100)[:3] == LIST_TOPICS[:3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_process_cleanly(process: Process, number: signal.Signals, tmp_path: Path) -> None:
    lines = process.wait_for("ready")
    assert [re.sub(r"\d+$", "N", line) for line in lines] == ["flymq on 127.0.0.1:N", "ready"]
    process.popen.send_signal(number)
    assert "Traceback" not in "\n".join(process.wait_for("nothing ends with this"))
    assert process.popen.wait(30) == 0
    assert (tmp_path / "data" / "clean-shutdown").exists()


def test_a_second_signal_ends_the_process_at_once(process: Process) -> None:
    process.wait_for("ready")
    with connect(f"flymq://127.0.0.1:{process.port}") as producer:
        producer.send("orders", bytes(4 << 20))
    body = struct.pack(">H6siQi", 6, b"orders", 0, 0, 1)
    fetch = HEADER.pack(0xAF, 1, Fetch.opcode, 0, len(body)) + body
    with process.connect() as client:
        client.sendall(fetch * 20)
        assert client.recv(1)  # they arrived; 80 MiB of answers stay unread, so the stop has something to wait for
        process.popen.send_signal(signal.SIGTERM)
        process.wait_for("stopping")
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(30) == -signal.SIGTERM


def test_an_error_at_the_start_is_one_line(tmp_path: Path, process: Process) -> None:
    process.wait_for("ready")
    second = Process(tmp_path)
    lines = second.wait_for("nothing ends with this")
    assert second.popen.wait(30) != 0
    assert len(lines) == 1
    assert "data" in lines[0]
    _end(second)


def test_a_process_with_few_descriptors_says_so_serves_and_recovers(tmp_path: Path) -> None:
    small = Process(tmp_path, descriptors_max=64)
    try:
        assert any("descriptors_short" in line for line in small.wait_for("ready"))
        clients = [small.connect() for _ in range(80)]  # the kernel keeps those that are not accepted
        small.wait_for("accepting_paused")
        _ask(clients[0])
        for client in clients:
            client.close()
        with small.connect() as late:
            _ask(late)
        assert small.popen.poll() is None
    finally:
        _end(small)


def test_a_process_with_next_to_no_descriptors_refuses_to_start(tmp_path: Path) -> None:
    tiny = Process(tmp_path, descriptors_max=40)
    lines = tiny.wait_for("nothing ends with this")
    assert tiny.popen.wait(30) != 0
    assert "may open only 40 files" in "\n".join(lines)
    _end(tiny)


def test_five_thousand_idle_connections_hold_and_cost_little(process: Process) -> None:
    process.wait_for("ready")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    count = min(5_000, limits[1] - 200)
    clients: list[socket.socket] = []
    try:
        for _ in range(50):  # what the first connections load is not theirs
            clients.append(process.connect())
            _ask(clients[-1])
        before_kib = process.resident_kib
        for _ in range(count):
            clients.append(process.connect())
            _ask(clients[-1])
        assert (process.resident_kib - before_kib) / count < CONNECTION_KIB_MAX
        for client in clients[::100]:
            _ask(client)
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert process.popen.poll() is None


PARTIAL_FRAMES = {
    "flymq": HEADER.pack(0xAF, 1, ListTopics.opcode, 0, 60_000) + bytes(50_000),
    "blipmq": struct.pack(">I", 60_000) + b"\x03" + bytes(50_000),
    "rustlog": struct.pack(">I", 60_000) + b"\x01" + bytes(50_000),
}


async def test_peers_that_have_not_authenticated_have_a_budget_of_their_own(tmp_path: Path) -> None:
    """Otherwise a handful of them could keep every client from being read."""
    listeners = {name: {"bind": "127.0.0.1:0"} for name in PARTIAL_FRAMES}
    config = config_for(
        tmp_path, listeners={**listeners, "flymq": {"bind": "127.0.0.1:0", "auth": "required"}}, dev=True
    )
    async with running(config) as server:
        budget = server.listeners["flymq"].budget
        writers = []
        for count, (name, part) in enumerate(PARTIAL_FRAMES.items(), 1):
            host, _, port = server.addresses[name].rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(part)
            writers.append(writer)
            kept_bytes = count * 50_000
            await until(lambda kept_bytes=kept_bytes: budget.unauthenticated.partial.total_bytes >= kept_bytes)  # type: ignore[misc]
        assert budget.partial.total_bytes == 0
        for writer in writers:
            await hang_up(writer)
        async with AsyncFlyMQClient(f"flymq://admin:admin@{server.addresses['flymq']}") as client:
            await client.send("orders", b"x")
            (connection,) = server.listeners["flymq"]._connections
            assert isinstance(connection, TcpConnection)
            assert connection._flow.budget is budget

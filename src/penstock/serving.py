"""A server as a process: from its checks before the start to the signal that ends it, and again as a node that leads no more."""

from __future__ import annotations

import asyncio
import gc
import shlex
import signal
import socket
from collections.abc import Callable, Mapping

import structlog
import uvloop

from penstock.config import Config
from penstock.errors import ConfigError, PenstockError
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.read_files import READ_FILES_MAX
from penstock.net.descriptors import DESCRIPTORS_MIN, raise_descriptor_limit
from penstock.net.listener import cannot_listen, listen_once, within
from penstock.server import Server
from penstock.session_sources import PROTOCOLS, QUIC_PROTOCOLS

RESTART_S = 2.0
YOUNG_OBJECTS_MAX = 10_000
"""How many objects are made before the collector looks at them. With Python's 700 it would look at those of each commit while that is
under way, and at those of each few topics while a start opens them; all for nothing."""

log = structlog.get_logger(__name__)


def run(config: Config, announce: Callable[[str], None], *, disk: Disk | None = None) -> None:
    """Be a broker until SIGTERM or SIGINT, then stop with everything committed; a second signal ends the process at once.

    `announce` is given one line per address, then `ready`. `disk` stands in for the real one in tests.
    """
    _prepare_process(config)
    _check_addresses(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, announce, disk))


def _prepare_process(config: Config) -> None:
    """What belongs to a process of our own and would be rude in somebody else's.

    Python's switch interval stays as it is: a shorter one, meant to give the committing thread the interpreter sooner, made pipelined
    writes slower when both were measured in turns.
    """
    gc.set_threshold(YOUNG_OBJECTS_MAX)
    limit = raise_descriptor_limit()
    if limit < DESCRIPTORS_MIN:
        raise ConfigError(
            f"this process may open only {limit} files, and a broker needs at least {DESCRIPTORS_MIN}: raise the limit,"
            " with `ulimit -n` in the shell or LimitNOFILE= in a systemd unit"
        )
    connections_max = sum(
        settings.max_connections for name, settings in config.listeners.enabled() if name in PROTOCOLS
    )
    # A checkpoint opens segments once more that are open for writing.
    wanted = connections_max + 2 * config.log.write_files_max + READ_FILES_MAX
    if limit < wanted:
        log.warning(
            "descriptors_short",
            limit=limit,
            wanted=wanted,
            consequence="accepting pauses when they are used up",
            advice="raise the limit (ulimit -n, LimitNOFILE=) or lower max_connections or log.write_files_max",
        )


def _check_addresses(config: Config) -> None:
    """Raises ConfigError if an address is taken: before there is a data directory, and before a log is recovered for nothing."""
    binds = [
        (f"listeners.{name}.bind", settings.bind, name in QUIC_PROTOCOLS)
        for name, settings in config.listeners.enabled()
    ]
    if config.admin is not None:
        binds.append(("admin.bind", config.admin.bind, False))
    if config.cluster is not None:
        binds.append(("cluster.bind", config.cluster.bind, False))
    for setting, bind, over_udp in binds:
        try:
            listen_once(bind, socket.SOCK_DGRAM if over_udp else socket.SOCK_STREAM)
        except OSError as error:
            raise cannot_listen(setting, f"{bind}/udp" if over_udp else bind, error) from None


def _setup_advice(server: Server) -> str:
    settings = server.config.listeners.flymq
    assert settings is not None
    address = f"flymq{'' if settings.tls is None else 's'}://{server.addresses['flymq']}"
    command = ["penstock", "user", "setup", "--data-dir", str(server.config.data_dir), "--server", address]
    return f"there is no administrator yet; create one with: {shlex.join(command)}"


async def _serve(config: Config, announce: Callable[[str], None], disk: Disk | None) -> None:
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()

    def stop_on(received: signal.Signals) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # the next one ends the process, as if it had crashed
        log.info("stopping", signal=received.name)
        asked_to_stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_on, number)
    server = Server(config, disk=disk)
    try:
        await server.start()
    except BaseException:
        # A closed loop would keep the signals, and swallow every one to come.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        raise
    try:
        # What lives now lives until the end; the collector need not look at it again.
        gc.collect()
        gc.freeze()
        for name, address in server.addresses.items():
            announce(f"{name} on {address}{'/udp' if name in QUIC_PROTOCOLS else ''}")
        if server.needs_setup:
            announce(_setup_advice(server))
        announce("ready")
        while not await _leads_no_more(server, asked_to_stop):
            server = await _started_again(server, asked_to_stop)
    finally:
        await server.stop()
    log.info("stopped")


async def _leads_no_more(server: Server, asked_to_stop: asyncio.Event) -> bool:
    """Wait until the process is asked to stop, or the server is to be replaced; returns which of them."""
    waits = [asyncio.ensure_future(event.wait()) for event in (asked_to_stop, server.deposed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return asked_to_stop.is_set()


async def _started_again(server: Server, asked_to_stop: asyncio.Event) -> Server:
    """Replace a server whose node has led by one that does not know what that one knew; its addresses stay."""
    config = _with_binds(server.config, server.addresses)
    log.warning(
        "node_deposed", reason=server.engine.deposed, consequence="clients are disconnected, and this node follows"
    )
    try:
        await server.stop()
    except PenstockError as error:
        log.info("stopped_with_error", error=str(error))  # what it would still write is refused
    while not asked_to_stop.is_set():
        server = Server(config)
        try:
            await server.start()
        except PenstockError as error:
            log.warning("start_failed", error=str(error), retry_s=RESTART_S)
            await within(RESTART_S, asked_to_stop)
        else:
            log.info("server_restarted", leads=server.broker.leading.leads)
            break
    return server


def _with_binds(config: Config, addresses: Mapping[str, str]) -> Config:
    """The same configuration, with the ports that were picked where it says 0."""
    listeners = {
        name: settings.model_copy(update={"bind": addresses[name]}) for name, settings in config.listeners.enabled()
    }
    update: dict[str, object] = {"listeners": config.listeners.model_copy(update=listeners)}
    if config.admin is not None:
        update["admin"] = config.admin.model_copy(update={"bind": addresses["admin"]})
    if config.cluster is not None:
        update["cluster"] = config.cluster.model_copy(update={"bind": addresses["cluster"]})
    return config.model_copy(update=update)

"""Who a Fujin client is, in a protocol without a login, and what that allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import ValidationError

import penstock
from penstock.broker.access.checks import ANONYMOUS, UNAUTHENTICATED, Operation, Principal, Resource
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.config import FujinListener
from penstock.errors import AccessDenied, PenstockError
from penstock.log.api import Engine
from penstock.protocols.fujin.session import Fujin
from penstock.protocols.fujin.wire import LOGIN_BODY_BYTES_MAX
from penstock.testing import RunningBroker
from penstock.testing.clock import ManualClock
from tests.protocols.fujin.memory import Client, Side, Timers, until
from tests.protocols.fujin.requests import ack, begin, commit, connect_reader, fetch, nack, tag, write, written


def can_write(**listeners: dict[str, Any]) -> bool:
    with RunningBroker(listeners=listeners) as broker, penstock.connect(broker.fujin_url) as client:
        try:
            client.send("orders", b"x")
        except PenstockError:
            return False
        return True


def test_everyone_may_do_everything_where_no_listener_asks_for_a_login() -> None:
    assert can_write()


def test_clients_are_strangers_where_flymq_asks_for_a_login() -> None:
    assert not can_write(flymq={"auth": "required"})


def test_the_listener_may_say_otherwise() -> None:
    assert can_write(flymq={"auth": "required"}, fujin={"auth": "none"})
    assert not can_write(fujin={"auth": "required"})


def test_beyond_loopback_it_needs_certificates_on_both_sides(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="QUIC needs a certificate"):
        FujinListener(bind="0.0.0.0:4848")
    file = tmp_path / "file.pem"
    file.touch()
    with pytest.raises(ValidationError, match=r"tls\.client_ca"):
        FujinListener.model_validate({"bind": "0.0.0.0:4848", "tls": {"cert": file, "key": file}})
    FujinListener.model_validate({"bind": "0.0.0.0:4848", "tls": {"cert": file, "key": file, "client_ca": file}})


def test_a_client_certificate_names_the_principal_and_its_rights(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("127.0.0.1", "alice", "mallory"):
        issued = authority.issue_cert(name if name == "127.0.0.1" else f"{name}@example.org", common_name=name)
        (tmp_path / f"{name}.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    server = tmp_path / "127.0.0.1"
    tls = {"cert": f"{server}.pem", "key": f"{server}.key", "client_ca": tmp_path / "ca.pem"}
    with RunningBroker(listeners={"fujin": {"auth": "required", "tls": tls}}) as broker:

        def url(name: str | None) -> str:
            shown = "" if name is None else f"&cert={tmp_path / name}.pem&key={tmp_path / name}.key"
            return f"fujin://{broker.addresses['fujin']}?ca={tmp_path / 'ca.pem'}{shown}"

        root = broker.connect()
        root.access.create_user("CN=alice,OU=" + _unit(tmp_path / "alice.pem"), "secret", ["producer"])
        with penstock.connect(url("alice")) as alice:
            alice.send("orders", b"x")
            with pytest.raises(PenstockError), alice.reader("orders"):
                pass
        with penstock.connect(url("mallory")) as mallory, pytest.raises(PenstockError):
            mallory.send("orders", b"x")
        with pytest.raises(PenstockError):
            penstock.connect(url(None), options=ClientOptions(retry=NO_RETRY)).send("orders", b"x")


def _unit(file: Path) -> str:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    subject = x509.load_pem_x509_certificate(file.read_bytes()).subject
    unit = subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)[0].value
    organization = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value
    return f"{unit!s},O={organization!s}"


# -- every command asks ------------------------------------------------------------------------------------------------------


class Switch:
    """Allows everything until it is turned, and then only what is named."""

    def __init__(self) -> None:
        self.allowed: set[Operation] = set(Operation)

    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        if operation not in self.allowed:
            raise AccessDenied(f"{principal.name} may not {operation.value} {resource.name}")


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
async def broker(engine: Engine, clock: ManualClock, switch: Switch) -> Any:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=switch)
    await broker.start()
    yield broker
    await broker.close()


@pytest.fixture
async def client(broker: Broker, timers: Timers) -> Client:
    return Client(Fujin(broker, principal=ANONYMOUS, after=timers.after), timers)


async def refused(side: Side, data: bytes, reply: int, number: int) -> None:
    before = len(side.stream.sent)
    side.say(data)
    await until(lambda: len(side.stream.sent) > before + 6)
    answer = side.stream.sent[before:]
    assert answer[:6] == bytes((reply, 0, 0, 0, number, 1))
    assert b"may not" in answer


@pytest.mark.parametrize("topic", [b"there", b"missing"])
async def test_writing_is_asked_for(client: Client, broker: Broker, switch: Switch, topic: bytes) -> None:
    side = client.writer()
    assert await side.ask(write(1, b"there", b"x"), size=6) == written(1)
    switch.allowed = {Operation.READ}
    await refused(side, write(2, topic, b"x"), 2, 2)
    assert not broker.topics.exists("missing")


async def test_each_step_of_a_transaction_is_asked_for(client: Client, broker: Broker, switch: Switch) -> None:
    side = client.writer()
    await side.ask(write(1, b"there", b"x"), size=6)
    switch.allowed = {Operation.READ}
    await refused(side, begin(2), 3, 2)
    switch.allowed = {Operation.WRITE}
    side.say(begin(3))
    await until(lambda: broker.transactions.stats.open == 1)
    switch.allowed = set()
    await refused(side, write(4, b"there", b"x"), 2, 4)
    await refused(side, commit(5), 4, 5)


async def test_reading_is_asked_for(client: Client, broker: Broker, switch: Switch) -> None:
    switch.allowed = {Operation.WRITE}
    side = client.open()
    side.say(connect_reader(b"orders"))
    await until(lambda: side.stream.sent)
    assert side.stream.sent[:2] == b"\1\1"
    assert b"may not commit" in side.stream.sent
    assert not broker.topics.exists("orders")


async def test_a_reader_that_may_not_read_any_more_is_refused(client: Client, switch: Switch) -> None:
    writer = client.writer()
    reader = await client.reader(b"orders", pull=True)
    await writer.ask(write(1, b"orders", b"x"), size=6)
    await reader.ask(fetch(1, 1), size=27)
    switch.allowed = {Operation.WRITE}
    await refused(reader, fetch(2, 1), 7, 2)
    for make, number in ((ack, 8), (nack, 9)):
        before = len(reader.stream.sent)
        _say(reader, make, tag(1))
        await until(lambda before=before: len(reader.stream.sent) > before)  # type: ignore[misc]
        answer = reader.stream.sent[before:]
        assert answer[:10] == bytes((number, 0, 0, 0, 3, 0, 0, 0, 0, 1)), "refused one by one"
        assert answer[22] == 1


def _say(side: Side, make: Callable[..., bytes], message_id: bytes) -> None:
    side.say(make(3, [message_id]))


async def test_a_reader_that_is_pushed_to_and_may_not_read_any_more_is_told_goodbye(
    client: Client, switch: Switch
) -> None:
    writer = client.writer()
    reader = await client.reader(b"orders")
    switch.allowed = {Operation.WRITE}
    await writer.ask(write(1, b"orders", b"x"), size=6)
    assert await reader.end() == b"\x0a"


async def test_a_message_of_a_client_that_nothing_identifies_is_small_where_something_must(
    broker: Broker, timers: Timers
) -> None:
    strict = Client(Fujin(broker, principal=UNAUTHENTICATED, login_required=True, after=timers.after), timers)
    side = strict.writer()
    side.say(write(1, b"there", bytes(LOGIN_BODY_BYTES_MAX + 1)))
    await until(lambda: b"is too large: at most 65536 are allowed" in side.stream.sent)

"""Users, roles and ACLs across kill -9: what was acknowledged is there and works, what was not is there whole or not at all."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import AuthenticationFailed, PenstockError
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess
from penstock.testing.crashing import CRASHED, CrashAt
from penstock.testing.diskfaults import Crash
from tests.crash import crash_targets

ROUNDS = 4
OPTIONS = ClientOptions(retry=NO_RETRY)


class Administrator:
    """Makes users and ACLs until the broker dies, and remembers what it was told is done."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.made: dict[str, list[str]] = {}
        self.tried: dict[str, list[str]] = {}
        self.deleted: set[str] = set()
        self.deleting: set[str] = set()

    def log_in(self) -> FlyMQClient:
        return FlyMQClient(f"flymq://root:root@{self.broker.address}", options=OPTIONS)

    def work(self) -> None:
        try:
            with self.log_in() as client:
                while True:
                    self._one_user(client, f"user-{len(self.tried)}")
        except PenstockError:
            pass

    def _one_user(self, client: FlyMQClient, name: str) -> None:
        roles = [["producer"], ["consumer"], ["producer", "consumer"]][len(self.tried) % 3]
        self.tried[name] = roles
        client.access.create_user(name, name, roles)
        client.access.set_acl(f"topic-of-{name}.*", [name])
        self.made[name] = roles
        if len(self.tried) % 5 == 0:
            self.deleting.add(name)
            client.access.delete_user(name)
            self.deleted.add(name)

    def check(self) -> None:
        with self.log_in() as client:
            users = {each.user: each.roles for each in client.access.users() if each.user != "root"}
            acls = {each.topic: each.users for each in client.access.acls()}
        for name, roles in self.made.items():
            assert users.get(name) == roles or name in self.deleting, name
            assert acls[f"topic-of-{name}.*"] == [name]
        assert not self.deleted & set(users)
        assert {name: self.tried[name] for name in users} == users
        assert all(topic == f"topic-of-{entries[0]}.*" for topic, entries in acls.items())
        if self.made:
            name = next(name for name in reversed(self.made) if name in users)
            with penstock.connect(f"flymq://{name}:{name}@{self.broker.address}", options=OPTIONS) as user:
                identity = user.access.whoami()
                assert identity is not None
                assert sorted(identity.roles) == sorted(self.made[name])
            with pytest.raises(AuthenticationFailed):
                penstock.connect(f"flymq://{name}:guess@{self.broker.address}", options=OPTIONS)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", environment={"PENSTOCK_LISTENERS__FLYMQ__AUTH": "required"}) as broker:
        token = (broker.data_dir / "setup-token").read_text()
        assert "there is no administrator yet; create one with: penstock user setup --data-dir" in broker.output
        assert token not in broker.output
        with penstock.connect(f"flymq://setup%3A:{token}@{broker.address}", options=OPTIONS) as client:
            client.access.create_user("root", "root", ["admin"])
        yield broker


@pytest.mark.timeout(120)
def test_users_and_acls_survive_many_kills(broker: BrokerProcess) -> None:
    administrator = Administrator(broker)
    chance = random.Random(7)
    for _ in range(ROUNDS):
        worker = threading.Thread(target=administrator.work)
        worker.start()
        time.sleep(chance.uniform(0.3, 0.8))  # the moment of the kill is the thing that varies
        broker.kill9()
        worker.join()
        broker.start()
        assert "there is no administrator" not in broker.output
        administrator.check()
    assert administrator.made


@pytest.mark.timeout(120)
@pytest.mark.parametrize("at", crash_targets.APPEND, ids=crash_targets.named)
def test_a_crash_at_each_step_of_a_change_leaves_users_whole(broker: BrokerProcess, at: CrashAt) -> None:
    administrator = Administrator(broker)
    broker.terminate()
    broker.start(disk=Crash(str(at._replace(nth=9))))
    administrator.work()
    assert broker.wait_exit() == CRASHED
    broker.start()
    administrator.check()

"""Two cores that talk in memory, under a clock of the test's and over a network as bad as the test likes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from penstock.net.certificates import own_certificate
from penstock.quic.core import QuicCore
from penstock.quic.events import STREAM_DATA
from penstock.quic.packets import VERSION, LongHeader
from penstock.quic.settings import QuicSettings
from penstock.quic.tls import TlsSettings, load_identity
from penstock.testing.clock import ManualClock

CLIENT, SERVER = ("127.0.0.1", 1), ("127.0.0.1", 2)
KIB, MIB = 1024, 1024 * 1024


class Talk:
    """A client and a server; `step` carries what they have to say, and moves the time."""

    def __init__(
        self,
        directory: Path,
        settings: QuicSettings | None = None,
        *,
        bad: random.Random | None = None,
        loss: float = 0.1,
    ) -> None:
        """`bad` makes the network lose that share of the datagrams, deliver some twice, and let some be overtaken."""
        files = own_certificate(directory, ManualClock())
        settings = settings or QuicSettings()
        self.now_s = 1.0
        self.client = QuicCore.connect(settings, TlsSettings(verify=False, server_name="localhost"), SERVER, self.now_s)
        self.server = QuicCore.accept(
            settings,
            TlsSettings(identity=load_identity(files.cert, files.key)),
            LongHeader(VERSION, True, self.client.ids.initial, self.client.ids.local, b""),
            CLIENT,
            self.now_s,
            local_cid=b"a server",
        )
        self.pairs = ((self.client, self.server), (self.server, self.client))
        self.received: dict[QuicCore, dict[int, bytearray]] = {self.client: {}, self.server: {}}
        self.events: dict[QuicCore, list[tuple[object, ...]]] = {self.client: [], self.server: []}
        self._bad = bad
        self._loss = loss
        self._under_way: list[tuple[QuicCore, bytes, tuple[str, int]]] = []

    def step(self, *, taking: tuple[QuicCore, ...] | None = None) -> None:
        for core, peer, source in ((self.client, self.server, CLIENT), (self.server, self.client, SERVER)):
            if core.must_send(self.now_s):
                for datagram, _ in core.take_datagrams(self.now_s, 100):
                    self._carry(peer, datagram, source)
        self.now_s += 0.002
        under_way, self._under_way = self._under_way, []
        for core, datagram, source in under_way:
            core.receive(datagram, len(datagram), source, self.now_s)
        for core in (self.client, self.server) if taking is None else taking:
            self.take(core)
        for core in (self.client, self.server):
            due_s = core.get_timer()
            if due_s is not None and due_s <= self.now_s:
                core.handle_timer(self.now_s)

    def take(self, core: QuicCore) -> None:
        while (event := core.take_event()) is not None:
            if event[0] == STREAM_DATA:
                self.received[core].setdefault(event[1], bytearray()).extend(event[2])
            self.events[core].append(event[:2] if event[0] == STREAM_DATA else event)

    def shake_hands(self) -> Talk:
        for _ in self.steps():
            if self.client.is_established and self.server.is_established:
                return self
        raise AssertionError("no handshake")

    def steps(self, count: int = 20_000) -> Iterator[None]:
        for _ in range(count):
            self.step()
            yield

    def _carry(self, to: QuicCore, datagram: bytes, source: tuple[str, int]) -> None:
        """Lose some, deliver some twice, and let some be overtaken."""
        chance = self._bad
        if chance is None:
            self._under_way.append((to, datagram, source))
            return
        if chance.random() < self._loss:
            return
        for _ in range(2 if chance.random() < 0.1 else 1):
            place = chance.randrange(len(self._under_way) + 1) if chance.random() < 0.3 else len(self._under_way)
            self._under_way.insert(place, (to, datagram, source))

"""The protocol inspector: the frames of real clients of all five protocols, bounded, with payloads hidden, and free when nobody looks."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import penstock
from penstock.admin import inspector
from penstock.broker.access.checks import SYSTEM
from penstock.errors import ShuttingDown, TopicNotFound
from penstock.inspection import Frame, View
from penstock.net.limits import AdminLimits
from penstock.protocols.dissectors import DISSECTORS
from penstock.protocols.flymq.codec.record_layouts import encode_produce
from penstock.protocols.flymq.inspection import FlyMQDissector
from penstock.testing.clock import ManualClock
from tests.admin.api.asking import LOGIN_REQUIRED, Asking, asking, new_key, on_loop

WAIT_S = 30.0


@pytest.fixture(scope="module")
def ask() -> Iterator[Asking]:
    with asking() as found:
        found.ok("POST", "/topics", {"name": "orders"})
        yield found


def frames_of(ask: Asking, inspection: str, wanted: Callable[[list[Any]], bool]) -> list[Any]:
    """The frames of an inspection, once they are as wanted."""
    deadline_s = time.monotonic() + WAIT_S
    frames: list[Any] = []
    while time.monotonic() < deadline_s:
        frames = ask.ok("GET", f"/inspections/{inspection}")["frames"]
        if wanted(frames):
            return frames
    pytest.fail(f"these frames are not as wanted: {frames}")


def names(frames: list[Any], direction: str) -> list[str]:
    return [each["name"] for each in frames if each["direction"] == direction]


def fields(frames: list[Any], name: str, direction: str = "received") -> dict[str, str]:
    """The fields of the first frame of a name."""
    found = next(each for each in frames if (each["name"], each["direction"]) == (name, direction))
    return {each["name"]: each["value"] for each in found["fields"]}


def inspect_next(ask: Asking, listener: str, **options: Any) -> str:
    return str(ask.ok("POST", "/inspections", {"listener": listener, **options})["id"])


def test_flymq_is_decoded_field_by_field(ask: Asking) -> None:
    inspection = inspect_next(ask, "flymq", payloads=True)
    with ask.broker.connect() as client:
        client.send("orders", b"a value", key=b"a key", headers=[("h", b"\x00\xff")])
        client.fetch("orders", 0, 0, max_records=1)
        with pytest.raises(TopicNotFound):
            client.describe_topic("none")
        frames = frames_of(ask, inspection, lambda seen: "ERROR" in names(seen, "sent"))
    assert fields(frames, "PRODUCE_ONCE")["topic"] == "orders"
    assert fields(frames, "PRODUCE_ONCE")["values"] == "[a value]"
    assert fields(frames, "FETCH_RECORDS", "sent")["keys"] == "[a key]"
    assert "topic not found: none" in fields(frames, "ERROR", "sent")["message"]
    assert "not decoded" not in {each["name"] for each in frames}
    assert [each["number"] for each in frames] == list(range(len(frames)))


def test_payloads_are_hidden_unless_asked_for(ask: Asking) -> None:
    inspection = inspect_next(ask, "flymq")
    with ask.broker.connect() as client:
        client.send("orders", b"a value", key=b"a key")
        client.fetch("orders", 0, 0, max_records=1)
        frames = frames_of(ask, inspection, lambda seen: "FETCH_RECORDS" in names(seen, "sent"))
    assert "a value" not in str(frames)
    assert "a key" not in str(frames)
    assert fields(frames, "PRODUCE_ONCE")["values"] == "[7 bytes]"


def test_blipmq_is_decoded_field_by_field(ask: Asking) -> None:
    inspection = inspect_next(ask, "blipmq", payloads=True)
    key = new_key(ask.broker, "blip", "admin")
    with penstock.connect(f"blipmq://{key}@{ask.broker.addresses['blipmq']}") as client:
        client.send("orders", b"blip")
        frames = frames_of(ask, inspection, lambda seen: "PONG" in names(seen, "sent"))
    assert fields(frames, "HELLO")["version"] == "1"
    assert fields(frames, "PUBLISH")["topic"] == "orders"
    assert fields(frames, "PUBLISH")["value"] == "blip"
    assert fields(frames, "AUTH")["key"] == "hidden"
    assert key not in str(frames)
    assert "not decoded" not in {each["name"] for each in frames}


@pytest.mark.parametrize(("scheme", "dialect"), [("rustlog+json", "JSON"), ("rustlog", "BINARY")])
def test_rustlog_is_decoded_field_by_field(ask: Asking, scheme: str, dialect: str) -> None:
    inspection = inspect_next(ask, "rustlog", payloads=True)
    with penstock.connect(f"{scheme}://{ask.broker.addresses['rustlog']}") as client:
        client.send("orders", b"rusty")
        client.fetch("orders", 0, 0)
        frames = frames_of(ask, inspection, lambda seen: "FETCH" in names(seen, "sent"))
    assert fields(frames, "PRODUCE") == {
        "dialect": dialect,
        "topic": "orders",
        "partition": "0",
        "values": "[rusty]",
    }
    assert fields(frames, "FETCH")["offset"] == "0"
    assert "next_offset" in fields(frames, "FETCH", "sent")
    assert "not decoded" not in {each["name"] for each in frames}


def quic_url(ask: Asking, protocol: str) -> str:
    certificate = ask.broker.server.config.data_dir / "dev-certificate.pem"
    return f"{protocol}://{ask.broker.addresses[protocol]}?ca={certificate}"


def test_fujin_is_decoded_field_by_field(ask: Asking) -> None:
    inspection = inspect_next(ask, "fujin", payloads=True)
    with penstock.connect(quic_url(ask, "fujin")) as client:
        client.send("orders", b"fuj")
        with client.reader("orders", pull=True) as reader:
            reader.fetch(1)
            frames = frames_of(ask, inspection, lambda seen: "BATCH" in names(seen, "sent"))
    assert fields(frames, "WRITE")["topic"] == "orders"
    assert fields(frames, "WRITE")["values"] == "[fuj]"
    assert fields(frames, "WRITE", "sent") == {"correlation_id": "1", "error": "None"}
    assert fields(frames, "CONNECT_READER")["kind"] == "2"
    assert "not decoded" not in {each["name"] for each in frames}
    assert len({each["stream"] for each in frames}) > 1


def test_felix_is_decoded_field_by_field(ask: Asking) -> None:
    inspection = inspect_next(ask, "felix", payloads=True)
    with penstock.connect(quic_url(ask, "felix")) as client:
        client.send("orders", b"feli")
        frames = frames_of(ask, inspection, lambda seen: "publish_ack" in names(seen, "sent"))
    assert fields(frames, "auth")["token"] == "hidden"
    assert fields(frames, "binary_publish")["stream"] == "orders"
    assert fields(frames, "binary_publish")["payloads"] == "[feli]"
    assert fields(frames, "publish_ack", "sent")["error"] == "None"
    assert "not decoded" not in {each["name"] for each in frames}


@pytest.mark.parametrize("protocol", ["flymq", "rustlog", "blipmq", "felix"])
def test_an_open_connection_is_inspected_from_its_next_frame_on(ask: Asking, protocol: str) -> None:
    urls = {
        "flymq": ask.broker.url,
        "rustlog": f"rustlog://{ask.broker.addresses['rustlog']}",
        "blipmq": f"blipmq://{new_key(ask.broker, f'open-{protocol}', 'admin')}@{ask.broker.addresses['blipmq']}",
        "felix": quic_url(ask, "felix"),
    }
    before = {each["peer"] for each in ask.ok("GET", "/connections") if each["listener"] == protocol}
    with penstock.connect(urls[protocol]) as client:
        client.send("orders", b"before")
        peers = {each["peer"] for each in ask.ok("GET", "/connections") if each["listener"] == protocol}
        [peer] = peers - before
        inspection = inspect_next(ask, protocol, peer=peer, payloads=True)
        assert ask("POST", "/inspections", {"listener": protocol, "peer": peer}).code == "invalid_request"
        client.send("orders", b"after")
        frames = frames_of(ask, inspection, lambda seen: "after" in str(seen))
    assert "before" not in str(frames)
    assert "not decoded" not in {each["name"] for each in frames}
    frames_of(ask, inspection, lambda _: ask.ok("GET", f"/inspections/{inspection}")["inspection"]["state"] == "closed")


def test_an_inspection_that_begins_within_a_frame_waits_for_the_next(ask: Asking) -> None:
    before = {each["peer"] for each in ask.ok("GET", "/connections")}
    host, _, port = ask.broker.addresses["flymq"].rpartition(":")
    frame = encode_produce("orders", b"first"), encode_produce("orders", b"second")
    with socket.create_connection((host, int(port))) as peer:
        peer.sendall(frame[0][:20])
        listener = ask.broker.server.listeners["flymq"]
        deadline_s = time.monotonic() + WAIT_S
        connection: Any = None
        while connection is None or not connection._watch.is_frame_pending:
            assert time.monotonic() < deadline_s
            connection = next((each for each in list(listener.connections) if each.peer not in before), None)
        inspection = inspect_next(ask, "flymq", peer=connection.peer, payloads=True)
        peer.sendall(frame[0][20:])
        assert peer.recv(1 << 10)  # the answer, so the next frame comes by itself
        peer.sendall(frame[1])
        frames = frames_of(ask, inspection, lambda seen: "PRODUCE" in names(seen, "received"))
    assert fields(frames, "PRODUCE")["values"] == "[second]"
    assert "first" not in str(frames)
    assert "not decoded" not in {each["name"] for each in frames}


def test_an_inspection_ends_at_its_bounds_and_lets_go_of_the_connection(
    ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspector, "BYTES_MAX", 2_000)
    inspection = inspect_next(ask, "flymq")
    with ask.broker.connect() as client:
        client.send("orders", b"x")
        for _ in range(10):
            client.send("orders", b"x" * 500)
        answer = ask.ok("GET", f"/inspections/{inspection}")
        assert answer["inspection"]["state"] == "full"
        assert 0 < sum(each["size"] for each in answer["frames"]) <= 2_000
        assert all(each.tap is None for each in ask.broker.server.listeners["flymq"].connections)
        monkeypatch.setattr(inspector, "FRAMES_MAX", 3)
        second = inspect_next(ask, "flymq", peer=answer["inspection"]["peer"])
        for _ in range(3):
            client.topics()
        answer = ask.ok("GET", f"/inspections/{second}")
        assert (len(answer["frames"]), answer["inspection"]["state"]) == (3, "full")
        assert ask.ok("GET", f"/inspections/{second}?after=2")["frames"] == answer["frames"][2:]
        assert all(each.tap is None for each in ask.broker.server.listeners["flymq"].connections)


def test_an_inspection_says_that_it_leaves_out_streams(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "STREAMS_MAX", 1)
    inspection = inspect_next(ask, "fujin")
    with penstock.connect(quic_url(ask, "fujin")) as client:
        client.send("orders", b"one stream")
        frames_of(ask, inspection, lambda seen: "WRITE" in names(seen, "sent"))
        assert ask.ok("GET", f"/inspections/{inspection}")["inspection"]["more_streams"] is False
        with client.reader("orders", pull=True) as reader:
            reader.fetch(1)
        answer = ask.ok("GET", f"/inspections/{inspection}")
    assert answer["inspection"]["more_streams"] is True
    assert len({each["stream"] for each in answer["frames"]}) == 1


def test_nobody_listens_in_when_nobody_asks(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = ask.broker.server.listeners["flymq"]
    assert listener.on_opened is None
    monkeypatch.setattr(inspector, "UNWATCHED_S_MAX", 0.01)
    inspection = inspect_next(ask, "flymq")

    def stopped() -> bool:
        return listener.on_opened is None and {"id": inspection, "state": "stopped"}.items() <= next(
            each.items() for each in ask.ok("GET", "/inspections") if each["id"] == inspection
        )

    deadline_s = time.monotonic() + WAIT_S
    while not stopped():
        assert time.monotonic() < deadline_s
    ask.ok("DELETE", f"/inspections/{inspection}")
    assert ask("GET", f"/inspections/{inspection}").code == "entry_not_found"
    assert ask("DELETE", f"/inspections/{inspection}").code == "entry_not_found"


def test_inspections_are_bounded(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ask.ok("GET", "/inspections"):
        ask.ok("DELETE", f"/inspections/{each['id']}")
    admin = ask.broker.server.admin
    assert admin is not None
    monkeypatch.setattr(admin._inspector, "limits", AdminLimits(inspections_max=2))
    first, second = inspect_next(ask, "flymq"), inspect_next(ask, "felix")
    refused = ask("POST", "/inspections", {"listener": "flymq"})
    assert refused.code == "limit_exceeded"
    assert b"raise admin.inspections_max" in refused.content
    ask.ok("DELETE", f"/inspections/{first}")
    ask.ok("DELETE", f"/inspections/{inspect_next(ask, 'rustlog')}")
    ask.ok("DELETE", f"/inspections/{second}")
    assert ask("POST", "/inspections", {"listener": "other"}).code == "invalid_request"
    assert ask("POST", "/inspections", {"listener": "flymq", "peer": "1.2.3.4:5"}).code == "entry_not_found"
    assert all(each.on_opened is None for each in ask.broker.server.listeners.values())


def test_a_peer_that_speaks_something_else_is_shown_as_such(ask: Asking) -> None:
    inspection = inspect_next(ask, "rustlog")
    host, _, port = ask.broker.addresses["rustlog"].rpartition(":")
    with socket.create_connection((host, int(port))) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        frames = frames_of(ask, inspection, bool)
    assert frames[0]["name"] == "not decoded"


class _Interrupted:
    """Runs work in place of a worker, and gives it up at its n-th step, as when the broker stops or the client disconnects."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    async def run(self, work: Callable[[Callable[[], None]], None]) -> None:
        work(self._check)

    def _check(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ShuttingDown("the request was given up")


async def test_what_was_noted_is_decoded_once_however_often_the_decoding_is_given_up() -> None:
    inspection = inspector.Inspection("flymq", "", View(payloads=True), DISSECTORS["flymq"], ManualClock())
    values = [b"%d" % number for number in range(12)]
    stream = b"".join(encode_produce("orders", value) for value in values)
    for at in range(0, len(stream), 50):
        inspection.received(stream[at : at + 50], 0, at_start=at == 0, at_frame=at == 0)
    for steps in (0, 1, 3, 1_000):
        with suppress(ShuttingDown):
            await inspection.decode(_Interrupted(steps))  # type: ignore[arg-type]
    shown = [dict(seen.frame.fields)["values"] for seen in inspection.frames]
    assert shown == [f"[{value.decode()}]" for value in values]


async def test_no_more_frames_are_decoded_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "FRAMES_MAX", 3)
    decoded: list[bytes] = []

    class Counting(FlyMQDissector):
        def _request(self, data: bytes) -> Frame:
            decoded.append(data)
            return super()._request(data)

    inspection = inspector.Inspection("flymq", "", View(), Counting, ManualClock())
    inspection.received(encode_produce("orders", b"x") * 100, 0, at_start=True, at_frame=True)
    await inspection.decode(_Interrupted(1_000))  # type: ignore[arg-type]
    assert len(decoded) == len(inspection.frames) == 3
    assert inspection.state == "full"


def test_administrators_inspect_audited_and_see_no_password() -> None:
    with asking(listeners=LOGIN_REQUIRED) as ask:
        users = ask.broker.server.broker.users
        on_loop(ask.broker, users.create_user(SYSTEM, "ann", "secret word", ["admin"]))
        root = ask.with_key(new_key(ask.broker, "root", "admin"))
        reader = ask.with_key(new_key(ask.broker, "reader", "consumer"))
        assert reader("POST", "/inspections", {"listener": "flymq"}).code == "access_denied"
        inspection = str(root.ok("POST", "/inspections", {"listener": "flymq", "payloads": True})["id"])
        assert reader("GET", f"/inspections/{inspection}").code == "access_denied"
        with penstock.connect(f"flymq://ann:secret%20word@{ask.broker.addresses['flymq']}") as client:
            client.topics()
            secret = client.keys.create("made", ["consumer"])
            frames = frames_of(root, inspection, lambda seen: "KEY_CREATE" in names(seen, "sent"))
        [event] = root.ok("GET", "/audit?type=inspection.start")["events"]
    assert secret not in str(frames)
    assert fields(frames, "KEY_CREATE", "sent") == {"key": "hidden"}
    assert fields(frames, "AUTH")["password"] == "hidden"
    assert "ann" in fields(frames, "AUTH").values()
    assert "secret word" not in str(frames)
    assert (event["user"], event["resource"], event["details"]["payloads"]) == ("key:root", "flymq", "true")

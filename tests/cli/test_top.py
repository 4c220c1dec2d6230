"""The live screen, in a terminal of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli.admin_access import AdminAccess
from penstock.cli.top import View, Watched
from penstock.errors import Unreachable
from penstock.testing import RunningBroker
from tests.cli.conftest import COLOUR_VARIABLES, Run

SHOWN_S_MAX = 60.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
"""The alternate screen: what was on the terminal before comes back."""


class Screen:
    """A terminal of 80 by 24 in which `penstock top` runs."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until the text is on the screen, counted from now."""
        start = len(self.seen)
        self.wait_until(lambda: text in ESCAPES.sub("", self.seen[start:]))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SHOWN_S_MAX
        while not condition():
            assert time.monotonic() < deadline, self.seen[-2000:]
            self.read()

    def read(self) -> bool:
        """Read what has arrived; False at the end."""
        ready, _, _ = select.select([self._terminal], [], [], 1.0)
        if not ready:
            return True
        try:
            data = os.read(self._terminal, 1 << 16)
        except OSError:  # the other side is closed
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def end(self) -> int:
        while self.read() and self.process.poll() is None:
            pass
        return self.process.wait(timeout=30)


@contextmanager
def top(*args: str, cwd: Path, **env: str) -> Iterator[Screen]:
    own, its = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name not in COLOUR_VARIABLES}
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "top", "--interval", "0.1", *args],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**clean, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **env},
        cwd=cwd,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),  # noqa: PLW1509
    )
    os.close(its)
    try:
        yield Screen(process, own)
    finally:
        process.kill()
        process.wait()
        os.close(own)


@pytest.fixture
def watched() -> Iterator[RunningBroker]:
    with RunningBroker(admin=True) as broker:
        broker.connect().create_topic("orders", 3)
        broker.connect().create_topic("aaa")
        yield broker


def test_the_screen_follows_the_broker_sorts_and_quits(watched: RunningBroker, tmp_path: Path) -> None:
    client = watched.connect()
    client.commit("orders", "billing", 0, 0)
    with top("--admin", watched.addresses["admin"], cwd=tmp_path) as screen:
        screen.wait_for("sort topics by: [r] rate")
        assert ENTER in screen.seen
        assert "orders" in screen.seen
        client.send_many("orders", [b"x"] * 25_000)
        screen.wait_for("25k")
        screen.type("n")
        screen.wait_for("[n] name")
        screen.type("s")
        screen.wait_for("[s] size")
        screen.type("q")
        assert screen.end() == 0
    assert screen.seen.rindex(LEAVE) > screen.seen.rindex(ENTER)
    lines = re.split(r"\x1b\[H|\r?\n", screen.seen)
    assert max(len(ESCAPES.sub("", line)) for line in lines) <= 80
    assert "Traceback" not in screen.seen


def test_ctrl_c_leaves_the_terminal_as_it_was(watched: RunningBroker, tmp_path: Path) -> None:
    with top("--admin", watched.addresses["admin"], cwd=tmp_path) as screen:
        screen.wait_for("q quit")
        screen.type("\x03")
        assert screen.end() == 128 + signal.SIGINT
    assert screen.seen.rindex(LEAVE) > screen.seen.rindex(ENTER)
    assert "Traceback" not in screen.seen


def test_a_broker_that_goes_away_and_comes_back_is_said_so(watched: RunningBroker, tmp_path: Path) -> None:
    with top("--admin", watched.addresses["admin"], cwd=tmp_path) as screen:
        screen.wait_for("ready")
        watched.stop()
        screen.wait_for("connecting again to http://")
        assert "gone" in screen.seen
        watched.start()
        screen.wait_for("reconnected after")
        screen.type("q")
        assert screen.end() == 0


def test_another_node_is_watched_once_the_first_is_gone(watched: RunningBroker) -> None:
    with RunningBroker(admin=True) as other:
        other.connect().create_topic("there")
        urls = iter(f"http://{broker.addresses['admin']}" for broker in (watched, other))
        node = Watched(lambda: next(urls), lambda url: AdminAccess())
        view = View(node, node.fetch(), "n")
        view.take(node.fetch())
        assert view.rates.seconds > 0
        watched.stop()
        with pytest.raises(Unreachable) as lost:
            node.fetch()
        view.take(lost.value)
        view.take(node.fetch())
        assert list(view.rates.after.topics) == ["there"]
        assert view.rates.seconds == 0, "there are no rates between two nodes"


def test_without_colours_the_screen_has_none(watched: RunningBroker, tmp_path: Path) -> None:
    with top("--admin", watched.addresses["admin"], cwd=tmp_path, NO_COLOR="1") as screen:
        screen.wait_for("q quit")
        screen.type("q")
        assert screen.end() == 0
    assert not re.search(r"\x1b\[[0-9;]*m", screen.seen)


def test_a_dumb_terminal_is_told_what_to_use_instead(watched: RunningBroker, tmp_path: Path) -> None:
    with top("--admin", watched.addresses["admin"], cwd=tmp_path, TERM="dumb") as screen:
        assert screen.end() == 2
    assert "use --once or --json" in screen.seen
    assert "\x1b" not in screen.seen


def test_one_sample_is_printed_for_people_and_for_programs(run: Run, watched: RunningBroker) -> None:
    where = ("--admin", watched.addresses["admin"], "--interval", "0.1")
    result = run("top", "--once", *where)
    assert result.code == 0
    assert "\x1b" not in result.text
    assert re.search(r"^orders +3 +0 +0 +0 B$", result.text, re.MULTILINE)
    assert max(map(len, result.text.splitlines())) <= 80
    document = json.loads(run("top", "--json", *where).out)
    assert document["interval_s"] >= 0.1
    assert document["records_per_s"] == 0
    assert [each["topic"] for each in document["topics"]] == ["aaa", "orders"]


def test_what_makes_no_sense_is_refused(run: Run) -> None:
    assert run("top", "--sort", "colour", "--once").code == 2
    assert run("top", "--interval", "0").code == 2
    assert "standard output is not a terminal" in run("top").err
    assert run("top", "--once", "--admin", "127.0.0.1:1").code == 1

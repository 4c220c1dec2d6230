"""`penstock top`: a running broker, live.

A thread asks the broker again and again, and writes a byte to a pipe when it has an answer; the loop that draws waits for that, for
keys, and for the next second. So a broker that does not answer delays no key.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import terminal
from penstock.cli.options import AdminOption, admin_access, admin_url, wants_json
from penstock.errors import Unreachable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.cli.admin_access import AdminAccess
    from penstock.cli.rates import Rates
    from penstock.cli.sample import Sample

Fetch = Callable[[], "Sample"]

REDRAW_S = 1.0
"""The screen is drawn at least this often: the uptime changes, and the terminal may be resized."""
RECONNECTED_SHOWN_S = 10.0
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.1, 3600.0


def top(
    context: typer.Context,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval", "-i", metavar="SECONDS", min=INTERVAL_S_MIN, max=INTERVAL_S_MAX, help="Time between samples."
        ),
    ] = 2.0,
    sort: Annotated[
        str, typer.Option("--sort", metavar="COLUMN", help="Sort topics by rate, name, size or records.")
    ] = "rate",
    once: Annotated[
        bool, typer.Option("--once", help="Print one sample and exit; its rates take an interval.")
    ] = False,
    admin: AdminOption = None,
) -> None:
    """Watch a broker: rates, lag, connections and disk, live.

    Reads the admin address of the broker. If that requires a login, the user
    of the broker's address logs in. Keys: q quits; r, n, s and c sort topics by
    rate, name, size and records. If the connection is lost, the last numbers
    stay, and it reconnects: of several nodes, to the first that answers.
    [bold]--json[/bold] prints one sample.

    Examples:
    $ penstock top
    $ penstock top --interval 0.5 --sort size
    $ penstock top --once --json | jq .records_per_s
    """
    from penstock.cli.top_screen import SORTS

    keys = {word: key for key, (word, _) in SORTS.items()}
    if sort not in keys:
        raise typer.BadParameter(f"{sort} is not a column to sort by: use {', '.join(keys)}", param_hint="--sort")
    watched = Watched(partial(admin_url, context, admin), partial(admin_access, context))
    if wants_json(context) or once:
        _print_once(watched.fetch, interval_s, keys[sort], as_json=wants_json(context))
        return
    if not terminal.on_terminal() or os.environ.get("TERM", "dumb") == "dumb":
        raise typer.BadParameter("standard output is not a terminal: use --once or --json")
    _watch(watched, interval_s, keys[sort])


class Watched:
    """The broker that is watched: of several nodes the first that answers, and another one once that does not."""

    def __init__(self, find: Callable[[], str], access_to: Callable[[str], AdminAccess]) -> None:
        self._find = find
        self._access_to = access_to
        self._look()

    def _look(self) -> None:
        self.url = self._find()
        self._access = self._access_to(self.url)

    def fetch(self) -> Sample:
        """Raises Unreachable; the next call may ask another node."""
        from penstock.cli.sample import fetch

        try:
            return fetch(self.url, self._access)
        except Unreachable:
            self._look()
            raise


def _print_once(fetch: Fetch, interval_s: float, sort: str, *, as_json: bool) -> None:
    from penstock.cli.rates import Rates, rates_json
    from penstock.cli.top_screen import LINES_AROUND, ROWS_MIN, render

    before = fetch()
    threading.Event().wait(interval_s)
    rates = Rates(before, fetch())
    if as_json:
        terminal.print_json(rates_json(rates))
        return
    sample = rates.after
    height = LINES_AROUND + 2 * ROWS_MIN + len(sample.listeners) + 2 * (len(sample.topics) + len(sample.groups))
    terminal.console().print(render(rates, sort=sort, height=height, note="", trouble="", keys=False))


def _watch(watched: Watched, interval_s: float, sort: str) -> None:
    from rich.live import Live

    first = watched.fetch()  # no broker to begin with is an error like that of any command
    console = terminal.console()
    view = View(watched, first, sort)
    with (
        _sampling(watched.fetch, interval_s) as sampler,
        _keys() as keyboard,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(view.render(console.height), refresh=True)
            waiting = [sampler.wakes] if keyboard is None else [sampler.wakes, keyboard]
            ready, _, _ = select.select(waiting, [], [], REDRAW_S)
            if sampler.wakes in ready:
                view.take(sampler.latest())
            if keyboard is not None and keyboard in ready and not view.press(os.read(keyboard, 64)):
                return


class View:
    """What is on the screen: two samples, how topics are sorted, and what became of the connection."""

    def __init__(self, watched: Watched, first: Sample, sort: str) -> None:
        self._watched = watched
        self._url = watched.url
        """Where the last sample is from."""
        self._before: Sample | None = None
        self._after = first
        self._sort = sort
        self._lost_s: float | None = None
        """Since when there is no answer."""
        self._note: tuple[float, str] | None = None

    def take(self, answer: Sample | Exception) -> None:
        """Note a new sample, or that there was none."""
        now_s = time.monotonic()
        if isinstance(answer, Exception):
            self._lost_s = now_s if self._lost_s is None else self._lost_s
            return
        if self._lost_s is not None:
            self._note = now_s, f"reconnected after {now_s - self._lost_s:.0f} s"
            self._lost_s = None
        self._before = self._after if self._watched.url == self._url else None  # there are no rates between two nodes
        self._after, self._url = answer, self._watched.url

    def press(self, keys: bytes) -> bool:
        """Obey keys; False to quit."""
        from penstock.cli.top_screen import SORTS

        for key in keys.decode("utf-8", "replace"):
            if key in ("q", "Q", "\x04"):
                return False
            if key.lower() in SORTS:
                self._sort = key.lower()
        return bool(keys)

    @property
    def rates(self) -> Rates:
        from penstock.cli.rates import Rates

        return Rates(self._before, self._after)

    def render(self, height: int) -> RenderableType:
        from penstock.cli.top_screen import render

        now_s = time.monotonic()
        note = trouble = ""
        if self._note is not None and now_s - self._note[0] < RECONNECTED_SHOWN_S:
            note = self._note[1]
        if self._lost_s is not None:
            trouble = f"no answer for {now_s - self._lost_s:.0f} s, connecting again to {self._watched.url}"
        return render(self.rates, sort=self._sort, height=height, note=note, trouble=trouble, keys=True)


class Sampler:
    """Asks a broker every so often, in a thread of its own."""

    def __init__(self, fetch: Fetch, interval_s: float) -> None:
        self._fetch = fetch
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._answer: Sample | Exception | None = None
        self.wakes, self._waking = os.pipe()
        """Readable when there is a new answer."""
        self._thread = threading.Thread(target=self._run, name="penstock-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. A request under way ends with the process."""
        self._stopping.set()

    def latest(self) -> Sample | Exception:
        """The newest answer, or why there was none."""
        os.read(self.wakes, 4096)
        assert self._answer is not None
        return self._answer

    def _run(self) -> None:
        from penstock.errors import PenstockError

        while not self._stopping.wait(self._interval_s):
            try:
                self._answer = self._fetch()
            except PenstockError as error:
                self._answer = error
            os.write(self._waking, b"!")


@contextmanager
def _sampling(fetch: Fetch, interval_s: float) -> Iterator[Sampler]:
    sampler = Sampler(fetch, interval_s)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


@contextmanager
def _keys() -> Iterator[int | None]:
    """Standard input without line editing and echo, as a descriptor; None if it is no terminal."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

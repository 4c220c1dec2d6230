"""The error texts that docs/troubleshooting.md shows are those that the commands print."""

from __future__ import annotations

from pathlib import Path

from penstock.testing import BrokerProcess, RunningBroker
from tests.cli.conftest import Run
from tests.manual import blocks, page

SHOWN = [line for block in blocks("text", page("docs/troubleshooting.md")) for line in block.splitlines()]
ADDRESS = "127.0.0.1:9092"
ADMIN = "127.0.0.1:9600"
DIRECTORY = "/var/lib/penstock"


def shown(begin: str, example: str = "", here: str = "") -> str:
    """The line of the page that begins so, with a value of this test in the place of the one that the page has."""
    (line,) = [line for line in SHOWN if line.startswith(f"error: {begin}")]
    return f"{line.replace(example, here)}\n"


def test_the_page_shows_what_the_tests_below_cover() -> None:
    assert len(SHOWN) == 6
    assert all(line.startswith("error: ") for line in SHOWN)


def test_a_broker_that_is_not_there(run: Run) -> None:
    assert run("topic", "list", "--server", "127.0.0.1:1").err == shown(
        "cannot connect to flymq:", ADDRESS, "127.0.0.1:1"
    )


def test_tls_where_there_is_none(run: Run, penstock_broker: RunningBroker) -> None:
    address = penstock_broker.address
    assert run("topic", "list", "--server", f"flymqs://{address}").err == shown(
        "cannot connect to flymqs:", ADDRESS, address
    )


def test_a_topic_that_is_not_there(run: Run, penstock_broker: RunningBroker) -> None:
    assert run("consume", "nosuch", "--server", penstock_broker.url).err == shown("topic not found")


def test_an_address_that_others_can_reach(run: Run) -> None:
    Path("penstock.toml").write_text('[listeners.flymq]\nbind = "0.0.0.0:9092"\n')
    assert run("serve", "--config", "penstock.toml").err == shown("penstock.toml")


def test_a_directory_and_a_port_that_are_in_use(run: Run, tmp_path: Path) -> None:
    config = '[admin]\nbind = "127.0.0.1:0"\n'
    with BrokerProcess(tmp_path / "data", config=config) as broker:
        admin = broker.addresses["admin"]
        for directory, bind, expected in (
            (tmp_path / "data", "127.0.0.1:0", shown(DIRECTORY, DIRECTORY, str(tmp_path / "data"))),
            (tmp_path / "other", admin, shown("admin.bind", ADMIN, admin)),
        ):
            (tmp_path / "penstock.toml").write_text(f'data_dir = "{directory}"\n')
            flags = ("--set", "listeners.flymq.bind=127.0.0.1:0", "--set", f"admin.bind={bind}")
            printed = run("serve", "--config", str(tmp_path / "penstock.toml"), *flags)
            assert (printed.code, printed.err.splitlines(keepends=True)[-1]) == (1, expected)

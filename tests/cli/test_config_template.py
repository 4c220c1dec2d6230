"""The file that `penstock config init` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from penstock.cli.config_template import render
from penstock.config import Config, load_config
from tests.cli.conftest import Run

# `listeners` holds the sections; a table of TLS files and one of topics need files and names that exist.
LEFT_COMMENTED = re.compile(
    r"^# (\[(?:listeners\.\w+|kafka)\.(?:tls|sasl)\]|ca|cert|key|client_ca|mechanism|username|password|token_file|\[\[\w+\]\])(?![\w])",
    re.MULTILINE,
)


def test_the_file_changes_nothing_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(render())
    loaded, default = load_config(file, env={}), Config()
    assert {**loaded.values, "data_dir": None} == {**default.values, "data_dir": None}


def test_every_setting_can_be_uncommented_and_has_its_default(tmp_path: Path) -> None:
    text = render()
    before_topics, _, topic = text.partition("# [[topics]]")
    topic, _, pipeline = topic.partition("# [[pipelines]]")
    # A section that changes something by being there, and whose settings are called like others.
    before_topics = re.sub(r"# \[cluster\]\n.*?\n\n", "\n", before_topics, flags=re.DOTALL)
    lines = [
        line.removeprefix("# ") if re.match(r"# \w+ = ", line) and not LEFT_COMMENTED.match(line) else line
        for line in before_topics.splitlines()
    ]
    file = tmp_path / "all.toml"
    file.write_text("\n".join(lines) + "\n")
    loaded, default = load_config(file, env={}), Config()
    assert {**loaded.values, "data_dir": None} == {**default.values, "data_dir": None}
    given = [key for key, origin in loaded.origins.items() if origin != "default"]
    assert len(given) > 100
    file.write_text("[listeners.flymq]\n[[topics]]\n" + re.sub(r"^# ", "", topic, flags=re.MULTILINE))
    [declared] = load_config(file, env={}).topics
    assert (declared.name, declared.partitions) == ("orders", 3)
    file.write_text("[listeners.flymq]\n[[pipelines]]\n" + re.sub(r"^# ", "", pipeline, flags=re.MULTILINE))
    [startable] = load_config(file, env={}).pipelines
    assert (startable.name, startable.file, startable.autostart) == ("sales", tmp_path / "sales.toml", False)


def test_a_file_is_written_once(run: Run, tmp_path: Path) -> None:
    assert (
        run("config", "init").text
        == "wrote penstock.toml; start a broker with: penstock serve --config penstock.toml\n"
    )
    assert (tmp_path / "penstock.toml").read_text() == render()
    again = run("config", "init")
    assert (again.code, again.err) == (
        1,
        "error: penstock.toml exists: name another file, or add --force to overwrite it\n",
    )
    (tmp_path / "penstock.toml").write_text("mine")
    assert json.loads(run("config", "init", "--force", "--json").out) == {"file": "penstock.toml"}
    assert (tmp_path / "penstock.toml").read_text() == render()
    assert run("config", "check", "--config", "penstock.toml", "--changed").code == 0


def test_it_can_be_printed(run: Run) -> None:
    assert run("config", "init", "-").text == render()
    assert run("config", "init", "-", "--json").code == 2
